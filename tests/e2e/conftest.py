"""Starts real servers of the built binary for the end-to-end tests and stops them at the end."""

import contextlib
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "demo"
BINARY = ROOT / "build" / "release" / "ingot"
SCRIPTED = ROOT / "build" / "release" / "scripted_server"
GOLDEN = ROOT / "tests" / "golden" / "eval"
NAME = "ingot-demo"
COUNTING = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Server:
    """A server in a process of its own; `lines` is its log so far."""

    def __init__(self, *flags: str, command=(str(BINARY), "serve")):
        command = [*command, str(MODEL), "--host", "127.0.0.1", "--port", "0", "--served-model-name", NAME, *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, errors="replace")
        self.lines = []
        # Reads to the end, so that a full pipe never blocks the server.
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True)
        self.reader.start()
        try:
            # Long, for a machine that does other things: a server that can't start ends, and is seen at once.
            found = eventually(lambda: re.search(r"ready: http://127\.0\.0\.1:(\d+)/", self.log()) or self.process.poll() is not None, 180, self.log)
            assert found is not True, self.log()
        except BaseException:
            self.process.kill()
            raise
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return "".join(list(self.lines))

    def client(self, **options) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"), max_retries=0, timeout=120, **options)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=120)

    def health(self) -> dict:
        response = self.get("/health")
        assert response.status_code == 200, response.text
        return response.json()

    def idle(self) -> bool:
        """Nobody runs or waits, and every page is free or can be evicted."""
        state = self.health()
        return state["running"] == state["waiting"] == 0 and state["free_pages"] + state["cached_pages"] == state["total_pages"]

    def complete(self, prompt, **options) -> httpx.Response:
        return httpx.post(self.url + "/v1/completions", json={"model": NAME, "prompt": prompt, **options}, timeout=120)

    def count(self, text: str) -> int:
        return httpx.post(self.url + "/tokenize", json={"prompt": text}, timeout=120).json()["count"]

    # Longer than the server waits for answers that still run (20 s), then for those that it cancelled (5 s).
    def stop(self, sig=signal.SIGTERM, seconds=40) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.reader.join(5)


@contextlib.contextmanager
def running(*flags: str, command=(str(BINARY), "serve")):
    server = Server(*flags, command=command)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def scripted(*flags: str, script=()):
    """The real server around a scripted model. `script`: lines as tests/support/scripted_model.h has them; what no line answers is counted."""
    assert SCRIPTED.exists(), f"{SCRIPTED} is not built"
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(line) + "\n" for line in script))
        file.flush()
        with running("--script", file.name, *flags, command=(str(SCRIPTED),)) as server:
            yield server


def counted(after: str, length: int) -> str:
    """What a scripted model that counts answers to "Count after <after>", in so many tokens."""
    first = COUNTING.index(after) + 1
    return "".join(COUNTING[(first + i) % len(COUNTING)] for i in range(length))


def free_port() -> int:
    """Below those that the kernel hands out by itself, so that no connection of another's takes it before it is bound."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, max(lowest, 20_000))
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def eventually(condition, seconds=10.0, what=lambda: "", interval=0.01):
    """The first true value of `condition()`; fails after `seconds`, with the last value and what() says."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {seconds} s: {what()}"
        time.sleep(interval)
    return value


class Stream:
    """A streamed answer on a connection of its own: read event by event, or hung up at any moment.

    The request is sent as HTTP/1.0, so that the answer is lines up to the end of the connection.
    """

    def __init__(self, server, prompt, path="/v1/completions", **options):
        body = json.dumps({"model": NAME, **({} if prompt is None else {"prompt": prompt}), "stream": True, **options}).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.socket.sendall(b"POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
        self.file = self.socket.makefile("rb")
        self.status = 0
        self.headers = {}

    def read_head(self) -> "Stream":
        if self.status == 0:
            self.status = int(self.file.readline().split()[1])
            while line := self.file.readline().strip():
                name, value = line.decode().split(":", 1)
                self.headers[name.lower()] = value.strip()
        return self

    def event(self):
        """The next event: an object, "[DONE]", or None at the end of the connection."""
        self.read_head()
        for line in self.file:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                return "[DONE]" if data == b"[DONE]" else json.loads(data)
        return None

    def events(self) -> list:
        return list(iter(self.event, None))

    def close(self):
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def text_of(events: list) -> str:
    return "".join(c["text"] for e in events if e != "[DONE]" for c in e.get("choices", []))


def scrape(server) -> dict[tuple[str, frozenset], float]:
    """All samples of /metrics by name and labels, as Prometheus' own parser reads them."""
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def total(samples: dict, name: str, **labels) -> float:
    """The sum of the samples with this name and at least these labels; at least one there must be."""
    found = [value for (n, have), value in samples.items() if n == name and labels.items() <= dict(have).items()]
    assert found, f"no sample {name} {labels}"
    return sum(found)


@pytest.fixture(scope="session")
def server():
    assert BINARY.exists(), f"{BINARY} is not built"
    with running() as s:
        yield s


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=120) as c:
        yield c


def cases(name: str) -> list[dict]:
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]


def template_kwargs(case: dict) -> dict:
    kwargs = {"enable_thinking": case["enable_thinking"]}
    if case["reasoning_effort"]:
        kwargs["reasoning_effort"] = case["reasoning_effort"]
    return {"chat_template_kwargs": kwargs}


def question(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]
