"""Clients that leave, queues that fill, deadlines, signals, a hanging engine: nothing leaks and everybody is told.

Row ids in comments: public bug reports of other servers, replayed. The engine and HTTP are real; the model is scripted, so that its pace is.
"""

import asyncio
import concurrent.futures
import json
import random
import signal
import socket

import httpx
import pytest
from conftest import COUNTING, NAME, Stream, counted, eventually, question, scrape, scripted, text_of, total

ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


def steps(server) -> float:
    return total(scrape(server), "ingot:steps_total")


def post(server, path, body) -> socket.socket:
    """Sends a request and returns the connection, unread: closing it is hanging up."""
    data = json.dumps({"model": NAME, **body}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    return connection


@pytest.fixture(scope="module")
def slow():
    """Steps of 0.2 s, one request at a time, 64 tokens of a prompt a step."""
    with scripted("--step-ms", "200", "--max-running-requests", "1", "--chunked-prefill-size", "64") as s:
        yield s


# H1
@pytest.mark.parametrize("body", [
    {"prompt": "Count after A", **ENDLESS},
    {"prompt": "Count after A", **ENDLESS, "stream": True},
    {"messages": question("Count after A"), **ENDLESS},
    {"prompt": "a prompt of many steps " * 400, **ENDLESS},
], ids=["whole", "streaming", "chat", "prefill"])
def test_a_client_that_hangs_up_frees_its_pages_within_two_steps(slow, body):
    connection = post(slow, "/v1/chat/completions" if "messages" in body else "/v1/completions", body)
    eventually(lambda: slow.health()["running"] == 1)
    assert not slow.idle()
    connection.close()
    before = steps(slow)  # counted from here on: how long it took to come here is the machine's business
    eventually(slow.idle, what=lambda: str(slow.health()))
    assert steps(slow) - before <= 2


# H1
def test_a_client_with_a_timeout_of_half_a_second_frees_its_pages(slow):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(slow.url + "/v1/completions", json={"model": NAME, "prompt": "Count after A", **ENDLESS}, timeout=0.5)
    before = steps(slow)
    eventually(slow.idle, what=lambda: str(slow.health()))
    assert steps(slow) - before <= 3


# H1, H9
@pytest.mark.parametrize("stream", [False, True])
def test_a_queued_client_that_hangs_up_leaves_the_queue(slow, stream):
    with Stream(slow, "Count after 0", **ENDLESS) as occupant:
        assert occupant.event()["choices"][0]["text"] == "1"
        queued = post(slow, "/v1/completions", {"prompt": "Count after A", **ENDLESS, "stream": stream})
        eventually(lambda: slow.health()["waiting"] == 1)
        queued.close()
        eventually(lambda: slow.health()["waiting"] == 0)
        assert slow.health()["running"] == 1
        assert [occupant.event()["choices"][0]["text"] for _ in range(3)] == list("234"), "the other one goes on, and loses nothing"
    eventually(slow.idle)


# H4
def test_a_follow_up_over_the_context_length_does_not_cost_the_conversation_its_cache(server, client):
    def ask(messages):
        return httpx.post(server.url + "/v1/chat/completions", timeout=120, json={
            "model": NAME, "messages": messages, "max_tokens": 16, "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}})

    history = [{"role": "system", "content": "Be brief. " * 60}, *question("What is 37 + 58?")]
    first = ask(history).json()
    history.append(first["choices"][0]["message"])
    refused = ask(history + question("word " * 20_000))
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == "messages"
    after = ask(history + question("And 1 + 1?")).json()
    pages_before = first["usage"]["prompt_tokens"] // 64 * 64
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] >= pages_before >= 64
    again = ask(history[:2]).json()
    assert again["choices"][0]["message"]["content"] == first["choices"][0]["message"]["content"]


# H5
def test_hundreds_of_streams_with_aborts_and_scrapes_lose_nothing():
    num_streams, length = 400, 40
    rng = random.Random(7)
    plans = [(i, rng.choice(COUNTING), rng.choice((None, None, rng.randrange(12)))) for i in range(num_streams)]

    async def stream(server, i, after, abort_at):
        prompt = f"{i} {'filler ' * (i % 50)}Count after {after}"
        body = json.dumps({"model": NAME, "prompt": prompt, "max_tokens": length, "stream": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            assert b" 200 " in await reader.readline()
            events = []
            while line := await reader.readline():
                if not line.startswith(b"data: "):
                    continue
                if abort_at is not None and len(events) >= abort_at:
                    return None
                events.append("[DONE]" if line.strip() == b"data: [DONE]" else json.loads(line[6:]))
            return events
        finally:
            writer.close()

    async def scrapes(server, done):
        count = 0
        async with httpx.AsyncClient(timeout=60) as client:
            while not done.is_set():
                for path in ("/metrics", "/health", "/v1/models"):
                    assert (await client.get(server.url + path)).status_code == 200
                count += 1
                await asyncio.sleep(0.05)
        return count

    async def bad_frames(server, done):
        while not done.is_set():
            for frame in (b"\x00\xff" * 50, b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(frame)
                await writer.drain()
                writer.close()
            await asyncio.sleep(0.02)

    async def everything(server):
        done = asyncio.Event()
        scrapers = [asyncio.create_task(scrapes(server, done)) for _ in range(2)]
        vandal = asyncio.create_task(bad_frames(server, done))
        answers = await asyncio.gather(*(stream(server, *plan) for plan in plans))
        done.set()
        await vandal
        return answers, sum(await asyncio.gather(*scrapers))

    with scripted("--step-ms", "10", "--speculative-num-steps", "3", "--draft-truth", "0.4") as server:
        answers, num_scrapes = asyncio.run(everything(server))
        assert num_scrapes > 2
        for (i, after, abort_at), events in zip(plans, answers):
            if abort_at is not None:
                continue
            assert events[-1] == "[DONE]" and text_of(events) == counted(after, length), i
            assert [c["finish_reason"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]] == ["length"]
        eventually(server.idle)
        samples = scrape(server)
        finished = total(samples, "vllm:request_success_total")
        survivors = sum(plan[2] is None for plan in plans)
        # One that aborts late may have its whole answer on the way.
        assert finished == num_streams and survivors <= total(samples, "vllm:request_success_total", finished_reason="length") <= num_streams
        assert server.complete("Count after 0", max_tokens=3).json()["choices"][0]["text"] == "123"


# H7
def test_sigterm_lets_running_streams_finish_and_refuses_new_ones():
    with scripted("--step-ms", "50", "--drain-timeout", "30") as server:
        streams = [Stream(server, f"Count after {after}", max_tokens=40) for after in "01234"]
        occupant = Stream(server, "Count after 0", **ENDLESS)  # the server does not end before the refusals were looked at
        first = [s.event() for s in streams]
        assert occupant.event() != "[DONE]"
        assert server.get("/ready").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.get("/ready").status_code == 503)
        assert server.get("/ready").json()["error"]["code"] == "shutting_down"
        refused = server.complete("Count after 0", max_tokens=2)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down" and "retry-after" in refused.headers
        occupant.close()
        for after, s, event in zip("01234", streams, first):
            events = [event, *s.events()]
            assert text_of(events) == counted(after, 40) and events[-1] == "[DONE]"
            assert events[-2]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(20) == 0


# H7
def test_sigterm_tells_the_streams_that_outlast_the_drain_timeout():
    with scripted("--step-ms", "50", "--drain-timeout", "0.3", "--max-running-requests", "3") as server:
        streams = [Stream(server, f"Count after {after}", **ENDLESS) for after in "01234"]
        eventually(lambda: server.health()["running"] == 3 and server.health()["waiting"] == 2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            whole = pool.submit(server.complete, "Count after 0", **ENDLESS)
            eventually(lambda: server.health()["waiting"] == 3)
            server.process.send_signal(signal.SIGTERM)
            for after, s in zip("01234", streams):
                events = s.events()
                assert events[-1] == "[DONE]" and events[-2]["error"]["code"] == "shutting_down"
                text = text_of(events)
                assert text == counted(after, len(text)), "what came before the error is whole"
            assert whole.result().status_code == 503 and whole.result().json()["error"]["code"] == "shutting_down"
        assert server.process.wait(20) == 0


# H8
def test_a_hanging_engine_is_unhealthy_with_a_reason_and_recovers():
    script = [{"when": "hang", "say": ["done"], "first_token_seconds": 5}]
    with scripted("--watchdog-timeout", "0.3", script=script) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(server.complete, "hang", max_tokens=1)
        sick = eventually(lambda: (r := server.get("/health")).status_code == 503 and r)
        assert sick.json()["error"]["code"] == "engine_unhealthy" and "run" in sick.json()["error"]["message"], sick.text
        assert server.get("/ready").status_code == 503
        assert job.result().status_code == 200
        eventually(lambda: server.get("/health").status_code == 200 and server.get("/ready").status_code == 200)
        assert sick.json()["error"]["message"].split(":")[0] in server.log()


# H9
def test_a_full_queue_refuses_with_retry_after_and_its_gauges_are_right():
    running_limit, queue_limit, num_requests = 4, 16, 500
    with scripted("--step-ms", "50", "--max-running-requests", str(running_limit), "--max-queued-requests", str(queue_limit)) as server:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            streams = list(pool.map(lambda i: Stream(server, f"{i} Count after 0", **ENDLESS).read_head(), range(num_requests)))
        accepted = [s for s in streams if s.status == 200]
        refused = [s for s in streams if s.status == 429]
        assert len(accepted) + len(refused) == num_requests
        assert len(accepted) == running_limit + queue_limit
        for s in refused:
            assert int(s.headers["retry-after"]) > 0
            error = json.loads(s.file.read())["error"]
            assert error["code"] == "queue_full" and error["type"] == "rate_limit_error"
        state = eventually(lambda: (h := server.health())["running"] == running_limit and h)
        assert state["waiting"] == queue_limit
        samples = scrape(server)
        assert total(samples, "vllm:num_requests_running") == running_limit and total(samples, "vllm:num_requests_waiting") == queue_limit
        assert total(samples, "ingot:refused_requests_total", reason="queue_full") == len(refused)
        assert total(samples, "ingot:http_requests_total", status="429") == len(refused)

        # Some give up, whether they run or wait: their places are free again.
        for s in accepted[-8:]:
            s.close()
        eventually(lambda: server.health()["running"] + server.health()["waiting"] == running_limit + queue_limit - 8)
        with Stream(server, "Count after 0", **ENDLESS) as late:
            assert late.read_head().status == 200
        for s in streams:
            s.close()
        eventually(server.idle)
        assert total(scrape(server), "vllm:num_requests_waiting") == 0


def read_log(path) -> dict[str, dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines), "one line a request"
    return {line["id"]: line for line in lines}


def test_deadlines_end_requests_with_their_own_codes_and_the_log_and_the_trace_tell(tmp_path):
    """One server, one story: each kind of end once, then SIGTERM; then what the request log and the trace say of it."""
    log, traces = tmp_path / "requests.jsonl", tmp_path / "traces"
    script = [{"when": "short", "say": ["A short answer."]}]
    with scripted("--step-ms", "20", "--max-running-requests", "1", "--queue-timeout", "0.4", "--request-timeout", "3", "--request-log", str(log),
                  "--trace-dir", str(traces), script=script) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = server.complete("a short question", max_tokens=50).json()
        cut = server.complete("Count after 0 " + "again " * 50, max_tokens=5, priority=3).json()
        hit = server.complete("Count after 0 " + "again " * 50, max_tokens=5).json()
        assert hit["usage"]["prompt_tokens_details"]["cached_tokens"] == 48

        with Stream(server, "Count after 0", **ENDLESS) as occupant:
            first = occupant.event()
            whole = pool.submit(server.complete, "Count after 0", **ENDLESS)
            with Stream(server, "Count after 0", **ENDLESS) as queued:
                events = queued.events()
                assert [e if e == "[DONE]" else e["error"]["code"] for e in events] == ["queue_timeout", "[DONE]"]
            answer = whole.result()
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "queue_timeout" and "retry-after" in answer.headers
            events = [first, *occupant.events()]
            assert events[-1] == "[DONE]" and events[-2]["error"]["code"] == "request_timeout"
            assert text_of(events) == counted("0", len(text_of(events))) and len(text_of(events)) > 5
            timed_out = first["id"]
        late = server.complete("Count after 0", **ENDLESS)
        assert late.status_code == 504 and late.json()["error"]["code"] == "request_timeout"

        with Stream(server, "Count after 0", **ENDLESS) as left:
            cancelled = [left.event() for _ in range(4)][0]["id"]
        eventually(server.idle)
        assert server.stop() == 0

    lines = read_log(log)
    assert sorted(line["finish"] for line in lines.values()) == sorted(
        ["stop", "length", "length", "queue_timeout", "queue_timeout", "timeout", "timeout", "cancelled"])
    for answer, finish in ((done, "stop"), (cut, "length"), (hit, "length")):
        line, usage = lines[answer["id"]], answer["usage"]
        assert (line["finish"], line["prompt"], line["cached"], line["completion"], line["replica"]) == (
            finish, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"], 0)
        assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["e2e_ms"] and line["tpot_ms"] >= 0 and line["tok_s"] > 0
        assert line["time"].endswith("Z") and "error" not in line
    assert lines[cut["id"]]["priority"] == 3 and "priority" not in lines[hit["id"]]
    assert lines[timed_out]["finish"] == "timeout" and lines[timed_out]["completion"] > 5
    assert lines[cancelled]["finish"] == "cancelled" and lines[cancelled]["completion"] >= 4
    for line in lines.values():
        if line["finish"] == "queue_timeout":
            assert line["completion"] == 0 and not {"queue_ms", "ttft_ms", "tok_s"} & line.keys() and line["e2e_ms"] >= 400
    assert "short" not in log.read_text(), "never a prompt's text"

    (trace,) = traces.glob("*.json")
    events = json.loads(trace.read_text())
    assert isinstance(events, list) and all({"ph", "pid", "name"} <= e.keys() for e in events)
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
    assert {"plan", "run", "commit"} <= {e["name"] for e in spans}
    for request in (done["id"], cancelled, timed_out):
        assert request in trace.read_text()


def test_a_request_of_high_priority_overtakes_those_that_wait(tmp_path):
    log = tmp_path / "requests.jsonl"
    with scripted("--step-ms", "20", "--max-running-requests", "1", "--request-log", str(log)) as server:
        with Stream(server, "Count after 0", **ENDLESS) as occupant:
            occupant.event()
            waiting = []
            for priority in (0, -2, 0, 7, 3, 7):
                waiting.append(Stream(server, f"Count after {len(waiting)}", max_tokens=3, priority=priority))
                eventually(lambda: server.health()["waiting"] == len(waiting))
        answers = [s.events() for s in waiting]
        assert [text_of(events) for events in answers] == [counted(str(i), 3) for i in range(6)]
        assert server.stop() == 0
    ended = list(read_log(log))
    place = {events[0]["id"]: i for i, events in enumerate(answers)}
    # One runs at a time, so they end in the order in which they were let in: by priority, then by arrival.
    assert [place[i] for i in ended if i in place] == [3, 5, 4, 0, 2, 1]


def test_a_late_request_of_high_priority_does_not_throw_out_the_one_that_runs():
    with scripted("--step-ms", "20", "--max-running-requests", "1") as server:
        with Stream(server, "Count after 0", max_tokens=30) as running_one:
            events = [running_one.event()]
            with Stream(server, "Count after A", max_tokens=3, priority=9) as urgent:
                assert text_of([*events, *running_one.events()]) == counted("0", 30)
                assert text_of(urgent.events()) == counted("A", 3)


# E3
@pytest.mark.parametrize("bias", [{"191222": -100}, {"-1": 1}, {"x": 1}, {"5": 1e9}, {"5": "much"}, [1], "all"])
def test_a_logit_bias_that_cannot_be_honoured_is_a_400_and_not_a_crash(server, bias):
    response = server.complete("Hello", max_tokens=2, logit_bias=bias)
    assert response.status_code == 400 and response.json()["error"]["param"] == "logit_bias"
    assert server.complete("Hello", max_tokens=2).status_code == 200


# E3
@pytest.mark.parametrize("ids", [[191222], [-1], ["x"], [1.5], 7])
def test_stop_token_ids_outside_of_the_vocabulary_are_a_400_and_not_a_crash(server, ids):
    response = server.complete("Hello", max_tokens=2, stop_token_ids=ids)
    assert response.status_code == 400 and response.json()["error"]["param"] == "stop_token_ids"


# E6
@pytest.mark.parametrize("temperature", [1e-8, 1e-4, 1e-3])
def test_a_tiny_temperature_is_greedy(server, temperature):
    greedy, tiny = (server.complete("It was a dark and", max_tokens=12, temperature=t, seed=3).json() for t in (0, temperature))
    assert tiny["choices"][0]["text"] == greedy["choices"][0]["text"] != ""


# E6
def test_a_huge_temperature_gives_tokens_and_a_distribution(server):
    answer = server.complete("It was a dark and", max_tokens=12, temperature=100, seed=3, ignore_eos=True, logprobs=2).json()
    assert answer["usage"]["completion_tokens"] == 12
    assert all(-50 < x <= 0 for x in answer["choices"][0]["logprobs"]["token_logprobs"])


# E8
def test_an_answer_does_not_run_on_after_any_of_the_end_of_sequence_tokens():
    ends = [6108, 6115, 6117]  # generation_config.json's list
    script = [{"when": f"end {i}", "tokens": [100, 101, end, 102, 103], "finish": "none"} for i, end in enumerate(ends)]
    for drafts in ((), ("--speculative-num-steps", "4", "--draft-truth", "1")):
        with scripted(*drafts, script=script) as server:
            shown = httpx.post(server.url + "/detokenize", json={"tokens": [100, 101]}).json()["prompt"]
            for i in range(len(ends)):
                answer = server.complete(f"end {i}", max_tokens=20).json()
                choice = answer["choices"][0]
                assert choice["text"] == shown and choice["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 3
                on = server.complete(f"end {i}", max_tokens=5, ignore_eos=True).json()
                assert on["choices"][0]["finish_reason"] == "length" and on["usage"]["completion_tokens"] == 5
                assert on["choices"][0]["text"].startswith(shown) and len(on["choices"][0]["text"]) > len(shown)


# E1, E9
def test_a_seed_gives_the_same_text_beside_unseeded_neighbours_and_from_the_cache(server):
    request = dict(max_tokens=16, temperature=1.0, ignore_eos=True)
    text = "It was a dark and stormy night. " * 12  # more than a page: the later ones find it in the cache
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            jobs = [pool.submit(server.complete, text, **request, **extra) for extra in ({"seed": 42}, {}, {"seed": 43}, {}, {"seed": 42})]
            texts = [job.result().json()["choices"][0]["text"] for job in jobs]
            alone = server.complete(text, **request, seed=42).json()
            assert texts[0] == texts[4] == alone["choices"][0]["text"] != texts[2]
            assert alone["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


# E10
@pytest.mark.parametrize("change, param", [({"logprobs": 21}, "logprobs"), ({"logprobs": True}, "logprobs"), ({"priority": "high"}, "priority"),
                                           ({"priority": 2_000_000}, "priority"), ({"temperature": -0.1}, "temperature")])
def test_a_bad_field_of_a_completion_is_a_400_with_its_name(server, change, param):
    response = server.complete("Hello", **change)
    assert response.status_code == 400 and response.json()["error"]["param"] == param and response.json()["error"]["type"] == "invalid_request_error"
