"""How much sooner the first token comes after a restart when the disk tier has the prompt: a server with an empty --hicache-dir, a prompt of
3,000 tokens, SIGTERM, a second server on the same folder, the same prompt. Run with .venv/bin/python bench/restart.py [ROUNDS=5]."""

import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPT_TOKENS = 3000


def first_token_seconds(folder: str, prompt: list[int]) -> tuple[float, int]:
    """Starts a server on the folder, asks, stops it: seconds to the first token, and tokens found in the cache."""
    server = subprocess.Popen([ROOT / "build/release/ingot", "serve", ROOT / "models/demo", "--port", "0", "--hicache-dir", folder],
                              stderr=subprocess.PIPE, text=True)
    url = ""
    for line in server.stderr:
        if "ready: " in line:
            url = line.split("ready: ")[1].split("/v1")[0]
            break
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    start = time.monotonic()
    first = None
    cached = 0
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event["choices"] and first is None:
                first = time.monotonic() - start
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    return first, cached


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    ratios = []
    for n in range(rounds):
        prompt = [100 + (17 * i + n) % 5000 for i in range(PROMPT_TOKENS)]
        with tempfile.TemporaryDirectory() as folder:
            cold, found_cold = first_token_seconds(folder, prompt)
            warm, found_warm = first_token_seconds(folder, prompt)
        assert found_cold == 0 and found_warm > 0, (found_cold, found_warm)
        ratios.append(cold / warm)
        print(f"cold {cold * 1e3:7.1f} ms   after a restart {warm * 1e3:6.1f} ms ({found_warm} of {PROMPT_TOKENS} tokens found)   {cold / warm:.1f} x")
    print(f"median {statistics.median(ratios):.1f} x (least {min(ratios):.1f}, most {max(ratios):.1f})")


if __name__ == "__main__":
    main()
