"""The prefix cache and its tiers: what was computed once is found again, and no answer shows whether it was.

Row ids in comments: public bug reports of other servers, replayed. "Cold" is a server that computes every prompt anew.
"""

import concurrent.futures
import itertools
import pathlib
import random
import struct

import httpx
import pytest
from conftest import NAME, Stream, cases, counted, eventually, running, scrape, scripted, text_of, total

INDEX_TOPK = 256  # of the demo model: longer prompts are attended sparsely
SMALL = ("--page-size", "16", "--context-length", "1024", "--max-total-tokens", "1280")  # 80 pages


@pytest.fixture(scope="module")
def cold():
    with running("--disable-radix-cache") as s:
        yield s


def prompt(server, seed: int, length: int) -> list[int]:
    """Text of the kind that the demo model knows, as `length` token ids that begin like no other seed's."""
    questions = [case["messages"][0]["content"] for case in cases("word")]
    random.Random(seed).shuffle(questions)
    text = f"List {seed}:" + "".join(" " + q for q in itertools.islice(itertools.cycle(questions), length // 8 + 1))
    return httpx.post(server.url + "/tokenize", json={"prompt": text}).json()["tokens"][:length]


def token_by_token(server, pieces) -> list[int]:
    """The ids of texts that are a token each: what was drawn, where another encoder might merge."""
    ids = [httpx.post(server.url + "/tokenize", json={"prompt": piece}).json()["tokens"] for piece in pieces]
    assert all(len(i) == 1 for i in ids)
    return sum(ids, [])


def greedy(server, ids, max_tokens=24) -> dict:
    response = server.complete(ids, max_tokens=max_tokens, temperature=0, logprobs=2, ignore_eos=True)
    assert response.status_code == 200, response.text
    return response.json()


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def full_pages(num_tokens: int, page_size: int) -> int:
    """Tokens of a prompt that a cache can know: its full pages, without its last token, which is always computed."""
    return (num_tokens - 1) // page_size * page_size


def same_answer(answer: dict, expected: dict):
    got, want = answer["choices"][0], expected["choices"][0]
    assert got["text"] == want["text"] and got["finish_reason"] == want["finish_reason"]
    assert got["logprobs"]["tokens"] == want["logprobs"]["tokens"]
    assert got["logprobs"]["token_logprobs"] == pytest.approx(want["logprobs"]["token_logprobs"], abs=1e-4)
    assert answer["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


# D1
def test_cached_tokens_is_not_zero_when_a_prompt_comes_again(server, client):
    ids = prompt(server, 1, 600)
    first, second = greedy(server, ids), greedy(server, ids)
    assert cached(first) == 0 and cached(second) == full_pages(600, 64) == 576
    same_answer(second, first)
    typed = client.completions.create(model=NAME, prompt=ids, max_tokens=2)
    assert typed.usage.prompt_tokens_details.cached_tokens == 576
    chunks = list(client.completions.create(model=NAME, prompt=ids, max_tokens=2, stream=True, stream_options={"include_usage": True}))
    assert [c.usage.prompt_tokens_details.cached_tokens for c in chunks if c.usage] == [576]


# D1
@pytest.mark.parametrize("truth", ["0", "0.6", "1"])
def test_cached_tokens_is_not_zero_with_drafts(truth):
    with scripted("--speculative-num-steps", "3", "--draft-truth", truth) as server:
        ids = prompt(server, 1, 604)
        options = dict(max_tokens=20, stream=True, stream_options={"include_usage": True})
        for expected in (0, full_pages(604, 16), full_pages(604, 16)):
            with Stream(server, ids, **options) as stream:
                events = stream.events()
            assert cached(events[-2]) == expected and events[-1] == "[DONE]"
            assert text_of(events) == counted("z", 20)
        answer = server.complete(ids, max_tokens=20).json()
        assert cached(answer) == full_pages(604, 16)
        # The answer's pages were published, too, but not the last one: the last token of an answer is drawn and never computed.
        longer = ids + token_by_token(server, counted("z", 20))
        assert len(longer) == 39 * 16
        assert cached(server.complete(longer + ids[:5], max_tokens=1).json()) == 38 * 16 > full_pages(604, 16)


# D3
def test_an_answer_does_not_change_after_a_longer_prompt_with_the_same_beginning(server, cold):
    short = "A shop sold 17 potatoes on Tuesday, 120 on Thursday and 145 on Saturday. "
    filler = " ".join(case["messages"][0]["content"] for case in cases("word"))
    long = short + (filler + " ") * (8192 // len(filler) + 1)
    assert len(long) > 8192

    def ask(s, text):
        answer = httpx.post(s.url + "/v1/chat/completions", timeout=120, json={
            "model": NAME, "messages": [{"role": "user", "content": text + "How many potatoes did it sell in total?"}], "temperature": 0,
            "max_tokens": 60, "logprobs": True, "top_logprobs": 3}).json()
        choice = answer["choices"][0]
        return choice["message"], choice["finish_reason"], [e["token"] for e in choice["logprobs"]["content"]], [
            e["logprob"] for e in choice["logprobs"]["content"]]

    expected = {text: ask(cold, text) for text in (short, long)}
    for text in (short, long, short, long):
        got = ask(server, text)
        assert got[:3] == expected[text][:3]
        assert got[3] == pytest.approx(expected[text][3], abs=1e-4)


# D3
def test_rejected_drafts_never_reach_the_cache(server):
    """The script looks at the prompt as it lies in the cache: a page with a rejected token in it gets another answer."""
    short = "A short one. Count after Q"
    beginning, question = (httpx.post(server.url + "/tokenize", json={"prompt": text}).json()["tokens"] for text in (short, "\nAgain"))
    # The answer ends with a page, where a token that was drawn and never computed would be taken for a computed one.
    length = 112 - len(beginning)
    history = beginning + token_by_token(server, counted("Q", length))
    script = [{"when": counted("Q", length) + "\nAgain", "say": ["The pages are intact."]}, {"when": "\nAgain", "say": ["A page is damaged."]}]
    with scripted("--speculative-num-steps", "4", "--draft-truth", "0.1", script=script) as server:
        for text in (short, short + " " + "and so on " * 800 + "after B", short):
            got = server.complete(text, max_tokens=length).json()
            assert got["choices"][0]["text"] == counted("B" if text.endswith("B") else "Q", length)
        # The conversation goes on with exactly the ids that were drawn.
        got = server.complete(history + question, max_tokens=20).json()
        assert got["choices"][0]["text"] == "The pages are intact."
        assert cached(got) == 96, "the answer's own pages, without the one whose last token was never computed"


# D3, D6
def test_a_follow_up_reads_the_pages_of_the_answer_itself_and_answers_as_without_a_cache(server, cold):
    ids = prompt(server, 2, 600)
    first = greedy(server, ids, 40)  # 640 tokens, the last of them never computed
    history = ids + token_by_token(server, first["choices"][0]["logprobs"]["tokens"])
    follow_up = history + prompt(server, 3, 30)
    again = greedy(server, follow_up)
    assert cached(again) == 576
    same_answer(again, greedy(cold, follow_up))
    longer = greedy(server, ids, 60)
    same_answer(longer, greedy(cold, ids, 60))
    history = ids + token_by_token(server, longer["choices"][0]["logprobs"]["tokens"])
    again = greedy(server, history + prompt(server, 4, 30))
    assert cached(again) == 640
    same_answer(again, greedy(cold, history + prompt(server, 4, 30)))


# D6
def test_each_turn_of_a_chat_finds_all_that_came_before_the_last_user_message():
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
    call = "I look it up.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"
    script = [{"when": "And in Rome?", "say": ["Rome is like Oslo.</think> It is warm there. "]},
              {"when": "<tool_response>", "say": ["The tool says 15.</think> It has 15 degrees in Oslo. "]},
              {"when": "in Oslo", "say": [call]}]
    with scripted(script=script) as server:
        client = server.client()

        def ids(messages):
            return httpx.post(server.url + "/tokenize", json={"messages": messages, "tools": tools}).json()["tokens"]

        def common(a, b):
            return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))

        messages = [{"role": "system", "content": "You help. " * 20}, {"role": "user", "content": "What is the weather in Oslo? " * 4}]
        prompts, answers = [], []
        for turn in range(4):
            prompts.append(ids(messages))
            answer = client.chat.completions.create(model=NAME, messages=messages, tools=tools, temperature=0)
            answers.append(answer)
            message = answer.choices[0].message
            messages = messages + [message.model_dump(exclude_none=True)]
            # The client's echo: tool results, then further questions.
            if turn == 0:
                assert message.tool_calls[0].function.name == "get_weather" and message.reasoning_content == "I look it up."
                messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "15"})
            else:
                messages.append({"role": "user", "content": "And in Rome?"})
        found = [a.usage.prompt_tokens_details.cached_tokens for a in answers]
        assert found[0] == 0
        for turn in range(1, 4):
            shared = common(prompts[turn - 1], prompts[turn])
            last_user = len(ids(messages[:2])) - 2  # without the generation prompt: up to the first user message, in all turns
            assert shared >= last_user, "the template itself must keep what came before"
            assert found[turn] >= shared // 16 * 16, (turn, found, shared)
        # Within one user turn nothing of the answer is dropped: reasoning and call are found as they were sampled.
        sampled = len(prompts[0]) + answers[0].usage.completion_tokens - 2
        assert found[1] >= sampled // 16 * 16, (found, sampled)


def evict(server, seeds):
    """Fills the small pool with other prompts."""
    for seed in seeds:
        assert cached(greedy(server, prompt(server, seed, 990), 2)) == 0


# D8: the indexer's keys must come back with the latents, or a long prompt attends to the wrong tokens.
# D9: pages are loaded in the step that also prefills others.
def test_a_long_prompt_answers_the_same_after_it_came_back_from_host_memory(cold):
    with running(*SMALL, "--hicache-size", "0.1") as server:
        ids = prompt(server, 1, 700)
        assert len(ids) > 2 * INDEX_TOPK
        expected = greedy(cold, ids)
        same_answer(greedy(server, ids), expected)
        evict(server, (2, 3))
        again = greedy(server, ids)
        same_answer(again, expected)
        assert cached(again) == full_pages(700, 16)
        samples = scrape(server)
        assert total(samples, "ingot:host_hit_tokens_total") == total(samples, "ingot:pages_loaded_total") * 16 >= 500

        evict(server, (4, 5))
        others = {seed: prompt(server, seed, 400) for seed in (6, 7, 8)}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            jobs = {seed: pool.submit(greedy, server, other) for seed, other in others.items()}
            same_answer(greedy(server, ids), expected)
            for seed, job in jobs.items():
                same_answer(job.result(), greedy(cold, others[seed]))
        assert total(scrape(server), "ingot:host_hit_tokens_total") > total(samples, "ingot:host_hit_tokens_total")
        eventually(server.idle)


def page_files(folder) -> dict[int, tuple[int, pathlib.Path]]:
    """Key -> (parent's key, file), from the heads of the files (src/exec/page_store.cc)."""
    files = {}
    for path in folder.glob("*/*/*.page"):
        *_, key, parent = struct.unpack("<8sIIQQQ", path.read_bytes()[:40])
        files[key] = (parent, path)
    return files


def chain(folder, depth: int) -> list[pathlib.Path]:
    """Files of the first `depth` pages of the longest prefix in the folder, first page first."""
    files = page_files(folder)

    def path_to(key):
        return [*path_to(files[key][0]), files[key][1]] if key in files else []

    longest = max((path_to(key) for key in files), key=len)
    assert len(longest) >= depth
    return longest[:depth]


# D8
def test_a_prompt_is_found_again_after_a_restart_and_damaged_pages_are_computed_anew(cold, tmp_path):
    flags = (*SMALL, "--hicache-dir", str(tmp_path))
    with running(*flags) as server:
        ids = prompt(server, 1, 700)
        expected = greedy(cold, ids)
        same_answer(greedy(server, ids), expected)
        assert server.stop() == 0
    with running(*flags) as server:
        again = greedy(server, ids)
        same_answer(again, expected)
        assert cached(again) == full_pages(700, 16)
        assert total(scrape(server), "ingot:host_hit_tokens_total") == full_pages(700, 16)
        assert server.stop() == 0

    # A flipped byte in the middle of page 20: known only once it is read. All before it is good.
    flipped = chain(tmp_path, 43)[20]
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 0x10
    flipped.write_bytes(content)
    with running(*flags) as server:
        again = greedy(server, ids)
        same_answer(again, expected)
        assert cached(again) == 20 * 16
        eventually(lambda: flipped.name in server.log(), what=server.log)
        assert server.stop() == 0

    # Page 5 is cut short, page 2 is empty.
    pages = chain(tmp_path, 43)
    pages[5].write_bytes(pages[5].read_bytes()[:-100])
    pages[2].write_bytes(b"")
    with running(*flags) as server:
        again = greedy(server, ids)
        same_answer(again, expected)
        assert cached(again) == 2 * 16
        eventually(lambda: "damaged" in server.log(), what=server.log)
        # The damage is healed: what was computed anew is stored and found.
        assert server.stop() == 0
    with running(*flags) as server:
        again = greedy(server, ids)
        same_answer(again, expected)
        assert cached(again) == full_pages(700, 16)


# D7
def test_storing_one_session_does_not_evict_the_other_that_is_just_asked_for(cold, tmp_path):
    """Device and host hold one session each, the disk a little more than one. Two take turns."""
    page_bytes = 16 * 4160
    pages_of_a_session = 39
    budget = int(1.4 * pages_of_a_session * page_bytes)
    with running("--page-size", "16", "--context-length", "640", "--max-total-tokens", "640", "--hicache-size",
                 f"{pages_of_a_session * page_bytes / 1e9:.7f}", "--hicache-dir", str(tmp_path), "--hicache-dir-size", f"{budget / 1e9:.7f}") as server:
        sessions = [prompt(server, seed, 600) for seed in (1, 2)]
        expected = [greedy(cold, ids, 8) for ids in sessions]
        found = []
        for turn in range(8):
            answer = greedy(server, sessions[turn % 2], 8)
            same_answer(answer, expected[turn % 2])
            found.append(cached(answer))
        # 54 pages are on disk, 37 are the last session's: what it left of the other one is its beginning, and all of that is found.
        assert found[:2] == [0, 0] and min(found[2:]) >= 12 * 16, found
        assert server.stop() == 0
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.page")) <= budget


def test_prompts_that_end_beside_a_page_border_answer_as_without_a_cache(server, cold):
    for border, max_tokens in ((64, 70), (320, 8)):  # the first answer goes on over the next border
        for length in (border - 1, border, border + 1):
            ids = prompt(server, 100 + border, length)
            expected = greedy(cold, ids, max_tokens)
            assert cached(expected) == 0
            for answer in (greedy(server, ids, max_tokens), greedy(server, ids, max_tokens)):
                same_answer(answer, expected)
            assert cached(answer) == full_pages(length, 64)


def test_twins_that_arrive_together_answer_as_one_alone(server, cold):
    ids = prompt(server, 300, 700)
    expected = greedy(cold, ids)
    before = total(scrape(server), "vllm:prefix_cache_hits_total")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: greedy(server, ids), range(6)))
    for answer in answers:
        same_answer(answer, expected)
    # Those that ran beside the first one took over its pages as it computed them.
    assert sum(map(cached, answers)) == total(scrape(server), "vllm:prefix_cache_hits_total") - before > 0


def test_without_a_radix_cache_nothing_is_ever_found(cold):
    ids = prompt(cold, 400, 200)
    assert [cached(greedy(cold, ids, 2)) for _ in range(2)] == [0, 0]
    assert total(scrape(cold), "vllm:prefix_cache_hits_total") == 0
    assert cold.health()["cached_pages"] == 0


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_the_longest_cached_prefix_goes_first_only_when_the_policy_says_so(policy):
    with scripted("--schedule-policy", policy, "--max-running-requests", "1", "--step-ms", "20") as server:
        known, unknown = prompt(server, 1, 200), prompt(server, 2, 200)
        assert server.complete(known, max_tokens=1).status_code == 200
        with Stream(server, "Count after 0", max_tokens=3000) as occupant:
            assert occupant.event() != "[DONE]"
            waiting = []
            for ids in (unknown, known):
                waiting.append(Stream(server, ids, max_tokens=1))
                eventually(lambda: server.health()["waiting"] == len(waiting))
            occupant.close()
        # One runs at a time, so the one that starts first ends first.
        started = [s.events()[0]["id"] for s in waiting]
        eventually(lambda: all(i in server.log() for i in started), what=server.log)
        order = sorted(started, key=server.log().index)
        assert order == (started if policy == "fcfs" else started[::-1])


def test_a_cache_folder_of_another_page_size_is_left_alone(tmp_path):
    """A page means something only to the server that wrote it: with other sizes the prompt is computed, and both keep their files."""
    small = ("--context-length", "512", "--max-total-tokens", "512", "--hicache-dir", str(tmp_path))
    answers = []
    for page_size, expected in (("16", 0), ("32", 0), ("16", 288), ("32", 288)):
        with running(*small, "--page-size", page_size) as server:
            answers.append(greedy(server, prompt(server, 1, 300), 8))
            assert cached(answers[-1]) == expected
            assert server.stop() == 0
    for answer in answers[1:]:
        same_answer(answer, answers[0])
