"""Replicas behind one door (--dp): work is spread by tokens, a conversation stays where its prefix is, and answers don't tell.

Row ids in comments: public bug reports of other servers, replayed.
"""

import concurrent.futures
import contextlib
import random

import httpx
import pytest
from conftest import NAME, Stream, cases, counted, eventually, running, scrape, scripted, template_kwargs, text_of, total

REPLICAS = 4
ENDLESS = {"max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def four():
    """Steps of 50 ms: a burst is at the door before the first of its answers ends."""
    with scripted("--dp", str(REPLICAS), "--step-ms", "50") as s:
        yield s


@pytest.fixture(autouse=True)
def idle_at_the_end(request):
    yield
    if "four" in request.fixturenames:
        eventually(request.getfixturevalue("four").idle)


def replica(answer) -> int:
    """Of a streamed or a whole answer."""
    return int((answer.read_head() if isinstance(answer, Stream) else answer).headers["x-ingot-replica"])


def unique(rng: random.Random, words: int) -> str:
    """A prompt that shares no page with any other."""
    return f"{rng.random()} " + "".join(rng.choice(("red ", "green ", "blue ", "grey ")) for _ in range(words)) + "Count after 0"


# N1
def test_a_burst_of_mixed_lengths_is_spread_by_tokens(four):
    rng = random.Random(11)
    tokens = [0] * REPLICAS
    requests = [0] * REPLICAS
    largest = 0
    with contextlib.ExitStack() as stack:
        jobs = []
        for _ in range(64):
            text, answer = unique(rng, rng.choice((5, 50, 500, 1500))), rng.choice((200, 500, 1000))
            jobs.append((four.count(text) + answer, text, answer))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            streams = list(pool.map(lambda job: stack.enter_context(Stream(four, job[1], max_tokens=job[2], ignore_eos=True)).read_head(), jobs))
        assert all(s.status == 200 for s in streams)
        for stream, (cost, _, _) in zip(streams, jobs):
            tokens[replica(stream)] += cost
            requests[replica(stream)] += 1
            largest = max(largest, cost)
        # Each goes where least is in flight, so no two replicas are further apart than one request.
        assert min(requests) > 0 and max(tokens) - min(tokens) <= largest, (tokens, largest)
        assert max(tokens) / min(tokens) < 1.5
        # Not by heads: the counts differ, and the metrics agree with the headers.
        eventually(lambda: four.health()["running"] == 64)
        samples = scrape(four)
        assert [total(samples, "vllm:num_requests_running", engine=str(i)) for i in range(REPLICAS)] == requests


# N3
def test_a_replica_counts_as_loaded_until_its_stream_has_ended(four):
    rng = random.Random(12)
    with contextlib.ExitStack() as stack:
        long = [stack.enter_context(Stream(four, unique(rng, 20), **ENDLESS)) for _ in range(1)]
        while len(long) < REPLICAS - 1:
            assert all(s.event()["choices"][0]["text"] for s in long), "they stream"
            long.append(stack.enter_context(Stream(four, unique(rng, 20), **ENDLESS)))
            replica(long[-1])
        taken = {replica(s) for s in long}
        (free,) = set(range(REPLICAS)) - taken
        for _ in range(6):
            for s in long:
                s.event()
            short = four.complete(unique(rng, 20), max_tokens=2)
            assert replica(short) == free and short.status_code == 200
        # One stream ends: its replica is as good as the free one again, and the next two go to these two.
        ended = replica(long[0])
        long[0].close()
        eventually(lambda: four.health()["running"] == REPLICAS - 2)
        pair = [stack.enter_context(Stream(four, unique(rng, 20), **ENDLESS)) for _ in range(1)]
        pair[0].read_head()
        pair.append(stack.enter_context(Stream(four, unique(rng, 20), **ENDLESS)).read_head())
        assert {replica(s) for s in pair} == {free, ended}


def test_a_conversation_stays_with_the_replica_that_has_its_prefix(four):
    rng = random.Random(13)
    with contextlib.ExitStack() as stack:
        # Two replicas are busy for a moment, so that the conversation begins on a third.
        busy = [stack.enter_context(Stream(four, unique(rng, 5), **ENDLESS)).read_head() for _ in range(2)]
        history = unique(rng, 300)
        home = replica(four.complete(history, max_tokens=2))
        assert home not in {replica(s) for s in busy}
        for s in busy:
            s.close()
        eventually(four.idle)
        for _ in range(3):
            history += " And " + unique(rng, 20)
            answer = four.complete(history, max_tokens=2)
            assert replica(answer) == home
            assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 300
        # Prompts that nobody has seen go elsewhere when something runs at home.
        with Stream(four, history + " And so on", **ENDLESS) as stream:
            assert replica(stream) == home
            assert replica(four.complete(unique(rng, 20), max_tokens=2)) != home
            # Work in flight there costs more than the prefix saves: the conversation moves, and is answered all the same.
            moved = four.complete(history + " Count after Z", max_tokens=5)
            assert replica(moved) != home and moved.json()["choices"][0]["text"] == counted("Z", 5)


# N4
def test_replicas_that_run_out_of_work_leave_the_others_alone(four):
    rng = random.Random(14)
    with contextlib.ExitStack() as stack:
        # The short one last: its replica must not be free again while another one is given out.
        lengths = (60, 50, 40, 2)
        streams = [stack.enter_context(Stream(four, unique(rng, 10), max_tokens=n)).read_head() for n in lengths]
        assert len({replica(s) for s in streams}) == REPLICAS
        for s, n in zip(streams, lengths):
            events = s.events()
            assert text_of(events) == counted("0", n) and events[-1] == "[DONE]"


# H9
def test_a_request_is_refused_only_when_every_replica_is_full():
    with scripted("--dp", "2", "--step-ms", "50", "--max-running-requests", "2", "--max-queued-requests", "3") as server, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(Stream(server, f"{i} Count after 0", **ENDLESS)).read_head() for i in range(14)]
        assert [s.status for s in streams] == [200] * 10 + [429] * 4
        assert sorted(replica(s) for s in streams[:10]) == [0] * 5 + [1] * 5
        eventually(lambda: (server.health()["running"], server.health()["waiting"]) == (4, 6))
        for s in streams:
            s.close()
        eventually(server.idle)


def test_two_replicas_of_the_demo_model_answer_as_one(server):
    chosen = cases("word")[:5] + cases("tool")[:3]

    def ask(s, case):
        body = {"model": NAME, "messages": case["messages"], "temperature": 0, "max_tokens": 120, "logprobs": True, **template_kwargs(case)}
        if case["tools"]:
            body["tools"] = case["tools"]
        response = httpx.post(s.url + "/v1/chat/completions", json=body, timeout=120)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        for call in choice["message"].get("tool_calls") or []:
            call["id"] = ""
        entries = choice["logprobs"]["content"]
        said = (choice["message"], choice["finish_reason"], [e["token"] for e in entries])
        return replica(response), said, [e["logprob"] for e in entries]

    with running("--dp", "2") as two:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda case: ask(two, case), chosen))
        assert {used for used, _, _ in answers} == {0, 1}
        for case, (_, said, logprobs) in zip(chosen, answers):
            _, expected, expected_logprobs = ask(server, case)
            assert said == expected and logprobs == pytest.approx(expected_logprobs, abs=1e-4)
        assert two.health()["replicas"] == 2
        eventually(two.idle)
