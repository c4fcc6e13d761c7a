"""Real clients against the scripted server built with the thread sanitizer: two replicas, all tiers and observers on, streams that end and
streams that are hung up on, scrapes in between. Fails on any report of the sanitizer, a lost token, or a page that is not given back."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 10


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [ROOT / "build/tsan/scripted_server", ROOT / "models/demo", "--port", "0", "--step-ms", "10", "--dp", "2", "--max-total-tokens", "20000",
             "--hicache-dir", f"{folder}/pages", "--trace-dir", f"{folder}/trace", "--request-log", f"{folder}/requests"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, "TSAN_OPTIONS": "exitcode=66"})
        lines = []
        port = 0
        for line in server.stderr:
            lines.append(line)
            found = re.search(r"ready: http://127.0.0.1:(\d+)/", line)
            if found:
                port = int(found.group(1))
                break
        assert port, "".join(lines)
        reader = threading.Thread(target=lambda: lines.extend(server.stderr))
        reader.start()
        done = threading.Event()

        def scrape():
            while not done.wait(0.1):
                for path in ("metrics", "health", "ready"):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30).read()

        wrong = []

        def several_choices():
            """Requests of several prompts and choices, whose pieces meet in one answer."""
            prompts = ["Count after A", "Count after 3"]
            body = json.dumps({"prompt": prompts, "n": 4, "max_tokens": 8, "echo": True, "return_token_ids": True}).encode()
            while not done.wait(0.05):
                request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
                choices = json.load(urllib.request.urlopen(request, timeout=30))["choices"]
                texts = [c["text"] for c in choices]
                if texts != ["Count after ABCDEFGHI"] * 4 + ["Count after 3456789AB"] * 4 or any(len(c["token_ids"]) != 8 for c in choices):
                    wrong.append(texts)

        scraper = threading.Thread(target=scrape)
        scraper.start()
        asker = threading.Thread(target=several_choices)
        asker.start()
        load = subprocess.run(
            [ROOT / "build/release/stream_load", "--port", str(port), "--streams", "100", "--tokens", "10:60", "--seconds", str(SECONDS),
             "--disconnect", "0.3", "--pid", str(server.pid), "--json"], capture_output=True, text=True)
        done.set()
        scraper.join()
        asker.join()
        server.send_signal(signal.SIGTERM)
        status = server.wait(60)
        reader.join()
        log = "".join(lines)
        report = json.loads(load.stdout) if load.returncode == 0 else load.stdout + load.stderr
        if load.returncode != 0 or status != 0 or "ThreadSanitizer" in log or wrong:
            print(log[-8000:], report, wrong[:3], f"server {status}, load {load.returncode}", sep="\n")
            return 1
        requests = sum(1 for _ in open(f"{folder}/requests"))
        print(f"{report['requests']} requests, {report['tokens']} tokens, {requests} lines in the request log, no report of the sanitizer")
        return 0


if __name__ == "__main__":
    sys.exit(main())
