"""Two `ingot serve` processes behind the SGLang model gateway (PyPI's sglang-router), as people run it.

Symptoms: a worker that the gateway does not take in or whose answers it cannot use, a conversation whose second turn lands where nothing is cached,
a request that hangs or vanishes when a worker dies, a worker that is not taken back after its restart.
"""

import collections
import concurrent.futures
import pathlib
import random
import signal
import subprocess
import sys
import threading

import httpx
import openai
import pytest
from conftest import BINARY, MODEL, NAME, eventually, free_port

pytest.importorskip("sglang_router", reason="sglang-router is for Linux on x86-64 and arm64 alone")


class Process:
    def __init__(self, command, log: pathlib.Path):
        self.command, self.path = command, log
        self.start()

    def start(self):
        with self.path.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def log(self):
        return self.path.read_text(errors="replace")[-3000:]

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()


class Worker(Process):
    def __init__(self, log, *flags):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = ("--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", NAME, "--threads", "1", "--page-size", "16")
        super().__init__([str(BINARY), "serve", str(MODEL), *options, *flags], log)

    def ready(self):
        try:
            return httpx.get(self.url + "/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def times_asked(self, path):
        """Requests to this path that were answered so far."""
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("ingot:http_requests_total") and f'route="{path}"' in line)

    def steps(self):
        return httpx.get(self.url + "/server_info").json()["internal_states"][0]["steps"]


class Gateway(Process):
    def __init__(self, log, workers, *flags):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port", str(free_port()), "--log-level", "warn"]
        options += ["--worker-urls", *(w.url for w in workers), "--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"]
        options += ["--health-failure-threshold", "2", "--health-success-threshold", "1", "--cb-timeout-duration-secs", "2"]
        super().__init__([sys.executable, "-m", "sglang_router.launch_router", *options, *flags], log)

    def workers(self):
        try:
            return {w["url"]: w for w in httpx.get(self.url + "/workers", timeout=5).json()["workers"]}
        except (httpx.HTTPError, ValueError, KeyError):
            return {}

    def client(self):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module", params=["cache_aware"])
def house(tmp_path_factory, request):
    logs = tmp_path_factory.mktemp("router")
    workers = [Worker(logs / f"worker{i}.log") for i in range(2)]
    gateway = None
    try:
        for worker in workers:
            eventually(worker.ready, 60, worker.log, 0.1)
        gateway = Gateway(logs / "gateway.log", workers, "--policy", request.param, "--balance-abs-threshold", "32")
        eventually(lambda: [w["is_healthy"] for w in gateway.workers().values()] == [True, True], 60, gateway.log, 0.1)
        yield gateway, workers
    finally:
        for process in [gateway, *workers]:
            if process is not None:
                process.stop()


def test_the_gateway_takes_workers_in_with_name_and_loads(house):
    gateway, workers = house
    taken = gateway.workers()
    assert taken.keys() == {w.url for w in workers}
    assert {w["model_id"] for w in taken.values()} == {NAME}, taken
    loads = httpx.get(gateway.url + "/get_loads").json()["workers"]
    assert all(w["load"] >= 0 for w in loads), f"-1 is a load that the gateway could not read: {loads}"
    models = httpx.get(gateway.url + "/v1/models").json()["data"]
    assert [m["id"] for m in models] == [NAME]
    assert "ingot" in httpx.get(gateway.url + "/get_server_info").text or httpx.get(workers[0].url + "/get_server_info").json()["engine"] == "ingot"
    info = httpx.get(gateway.url + "/get_model_info").json()
    assert info["is_generation"] is True


def test_every_kind_of_request_passes_the_gateway(house):
    gateway, _ = house
    client = gateway.client()
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    whole = client.chat.completions.create(model=NAME, messages=messages, max_tokens=12, temperature=0).choices[0]
    pieces = list(client.chat.completions.create(model=NAME, messages=messages, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in pieces if c.choices)
    assert text == (whole.message.content or "") and pieces[-1].usage.completion_tokens > 0
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    assert client.chat.completions.create(model=NAME, messages=messages, max_tokens=4, tools=tools, temperature=0).choices[0].finish_reason
    one = client.completions.create(model=NAME, prompt="1 2 3", max_tokens=6, temperature=0).choices[0].text
    assert one == "".join(c.choices[0].text for c in client.completions.create(model=NAME, prompt="1 2 3", max_tokens=6, temperature=0, stream=True) if c.choices)
    with pytest.raises(openai.APIStatusError):
        client.chat.completions.create(model=NAME, messages=messages, temperature=-1)


def test_the_second_turn_goes_where_the_first_is_cached(house):
    gateway, workers = house
    client = gateway.client()
    before = [w.steps() for w in workers]

    def converse(user):
        words = random.Random(user)
        messages = [{"role": "user", "content": "".join(words.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(200))}]
        last, cached = None, []
        for _ in range(4):
            turn = client.chat.completions.create(model=NAME, messages=messages, max_tokens=24, temperature=0)
            if last is not None:
                cached.append((turn.usage.prompt_tokens_details.cached_tokens, last.usage.prompt_tokens))
            messages += [{"role": "assistant", "content": turn.choices[0].message.content or "ok"}, {"role": "user", "content": "and then?"}]
            last = turn
        return cached

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        turns = [turn for cached in pool.map(converse, range(24)) for turn in cached]
    # All pages of the last turn's prompt but the last one: "and then?" may be tokenized anew together with what follows.
    hits = sum(cached >= (before // 16 - 1) * 16 > 0 for cached, before in turns)
    assert hits >= 0.95 * len(turns), f"{hits} of {len(turns)} turns found their conversation: {turns}"
    assert all(w.steps() > b for w, b in zip(workers, before)), "new conversations are spread over both"


def test_the_gateways_flush_reaches_both_workers(house):
    gateway, workers = house
    client = gateway.client()
    prompt = "The same beginning for all of them. " * 8
    client.completions.create(model=NAME, prompt=prompt, max_tokens=1)
    assert client.completions.create(model=NAME, prompt=prompt, max_tokens=1).usage.prompt_tokens_details.cached_tokens > 0
    answer = httpx.post(gateway.url + "/flush_cache")
    assert answer.status_code == 200, answer.text
    for worker in workers:
        state = httpx.get(worker.url + "/health").json()
        assert state["free_pages"] == state["total_pages"]
    assert client.completions.create(model=NAME, prompt=prompt, max_tokens=1).usage.prompt_tokens_details.cached_tokens == 0


def ask_streaming(url, number, outcomes):
    """One streamed request to its end: "whole", or how the client saw that it failed."""
    # Each prompt begins differently, so that the gateway is free to choose.
    prompt = "".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz ", k=60))
    body = {"model": NAME, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True}
    try:
        with httpx.stream("POST", url + "/v1/completions", json=body, timeout=30) as response:
            if response.status_code != 200:
                response.read()
                outcomes[number] = f"status {response.status_code}"
                return
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        finished = any('"finish_reason":"length"' in line.replace(" ", "") for line in lines)
        outcomes[number] = "whole" if finished and lines[-1] == "data: [DONE]" else "cut"
    except httpx.TimeoutException:
        outcomes[number] = "hung"
    except httpx.HTTPError as error:
        outcomes[number] = f"error {type(error).__name__}"


def test_a_worker_killed_and_restarted_under_load_costs_no_request_silently(house):
    gateway, workers = house
    outcomes, numbers, lock, stop = {}, iter(range(10**6)), threading.Lock(), threading.Event()

    def user():
        while not stop.is_set():
            with lock:
                number = next(numbers)
            ask_streaming(gateway.url, number, outcomes)

    users = [threading.Thread(target=user) for _ in range(12)]
    [u.start() for u in users]
    try:
        eventually(lambda: len(outcomes) > 40, 60, gateway.log)
        assert set(outcomes.values()) == {"whole"}, collections.Counter(outcomes.values())
        victim = workers[1]
        victim.stop(signal.SIGKILL)
        killed_at = len(outcomes)
        eventually(lambda: len(outcomes) > killed_at + 60, 90, gateway.log)
        victim.start()
        eventually(victim.ready, 60, victim.log, 0.1)
        eventually(lambda: gateway.workers().get(victim.url, {}).get("is_healthy"), 60, gateway.log, 0.1)
        back_at, steps = len(outcomes), victim.steps()
        eventually(lambda: len(outcomes) > back_at + 60, 90, gateway.log)
    finally:
        stop.set()
        [u.join(60) for u in users]
    with lock:
        started = next(numbers)
    assert len(outcomes) == started, "a request whose client was never told anything"
    seen = collections.Counter(outcomes.values())
    # What was streaming from the dead worker ends in an error of the connection or without [DONE]: the client can tell. Nothing hangs.
    assert seen["hung"] == 0, seen
    assert seen["whole"] >= started * 0.7, seen
    assert all(outcomes[n] == "whole" for n in range(started - 20, started)), f"both work again: {seen}"
    assert victim.steps() > steps, "it was taken back, and works"
    print(f"worker killed under load: {started} requests, {dict(seen)}")


def test_power_of_two_reads_the_loads(tmp_path, house):
    _, workers = house
    gateway = Gateway(tmp_path / "gateway.log", workers, "--policy", "power_of_two")
    try:
        eventually(lambda: [w["is_healthy"] for w in gateway.workers().values()] == [True, True], 60, gateway.log, 0.1)
        asked = [w.times_asked("/get_load") for w in workers]
        answer = gateway.client().completions.create(model=NAME, prompt="1 2", max_tokens=2, temperature=0, extra_body={"ignore_eos": True})
        assert answer.usage.completion_tokens == 2
        # What it says of an answer comes before it asks again.
        eventually(lambda: all(w.times_asked("/get_load") >= a + 2 for w, a in zip(workers, asked)), 60, gateway.log, 0.1)
        assert "Failed to" not in gateway.log() and "Invalid load" not in gateway.log(), gateway.log()
    finally:
        gateway.stop()
