"""Starts real servers of the built binary for the end-to-end tests and stops them at the end."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "demo"
BINARY = ROOT / "build" / "release" / "ingot"
GOLDEN = ROOT / "tests" / "golden" / "eval"
NAME = "ingot-demo"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, *flags: str):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [str(BINARY), "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", NAME, *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = []
        deadline = time.monotonic() + 60
        for line in self.process.stderr:
            self.lines.append(line)
            if "ready" in line:
                break
            assert time.monotonic() < deadline, "".join(self.lines)
        assert self.process.poll() is None and self.lines and "ready" in self.lines[-1], "".join(self.lines)
        # Keep reading, so that a full pipe never blocks the server.
        self.drain = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    def client(self, **options) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"), max_retries=0, timeout=120, **options)

    def stop(self, sig=signal.SIGTERM, seconds=10) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.drain.kill()


@contextlib.contextmanager
def running(*flags: str):
    server = Server(*flags)
    try:
        yield server
    finally:
        server.stop()


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
