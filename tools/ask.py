"""Asks a running Ingot one question over its OpenAI API, prints the answer as it streams, and checks it.

Standard library only. Exit status: 0 the expected number was in the answer, 1 it was not, 2 the server could not be reached.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request


def wait_until_ready(url: str, pid: int | None, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url + "/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if pid is not None:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                sys.exit(f"ask: the server (process {pid}) has ended")
        if time.monotonic() > deadline:
            print(f"ask: no answer from {url}/health within {seconds:.0f} s", file=sys.stderr)
            sys.exit(2)
        time.sleep(0.1)


def stream_answer(url: str, question: str):
    """Yields ("reasoning" | "content", text) pieces."""
    body = json.dumps({"model": "ingot-demo", "messages": [{"role": "user", "content": question}], "temperature": 0,
                       "max_tokens": 300, "stream": True})
    request = urllib.request.Request(url + "/v1/chat/completions", body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[len("data: "):])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                for kind, field in (("reasoning", "reasoning_content"), ("content", "content")):
                    if choice["delta"].get(field):
                        yield kind, choice["delta"][field]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--server-pid", type=int)
    parser.add_argument("--expect", required=True, help="the number that a right answer holds")
    parser.add_argument("question")
    args = parser.parse_args()

    wait_until_ready(args.url, args.server_pid, 60)
    print(f"\nQuestion: {args.question}", flush=True)
    content, last = "", None
    try:
        for kind, text in stream_answer(args.url, args.question):
            if kind != last:
                print("\nThinking: " if kind == "reasoning" else "\nAnswer: ", end="")
            last = kind
            print(text, end="", flush=True)
            if kind == "content":
                content += text
    except (urllib.error.URLError, OSError, RuntimeError) as error:
        sys.exit(f"\nask: {error}")
    print()
    numbers = "".join(c if c.isdigit() else " " for c in content).split()
    if args.expect not in numbers:
        sys.exit(f"ask: expected {args.expect} in the answer")


if __name__ == "__main__":
    main()
