"""Speculation seen from outside: an answer is the same with drafts and without, whatever the drafts are worth, and says what they earned.

The comments before the tests name rows of the public bug reports. A scripted server drafts with --draft-truth: the share of drafts that are
right. The last part runs the real model with its MTP layer.
"""

import concurrent.futures
import json
import math
import subprocess

import httpx
import pytest

from conftest import BINARY, COUNTING, MODEL, NAME, SCRIPTED, Stream, cases, counted, eventually, running, scrape, scripted, template_kwargs, text_of, total

OFF = {"enabled": False}
SPECULATION = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps")


def drafting(truth, steps=5, *flags, script=()):
    return scripted(*SPECULATION, str(steps), "--draft-truth", str(truth), *flags, script=script)


def ids_of(server, text: str) -> list[int]:
    return httpx.post(server.url + "/tokenize", json={"prompt": text}).json()["tokens"]


def told(answer: dict) -> tuple:
    """All that an answer says, apart from what it cost."""
    usage = {k: v for k, v in answer["usage"].items() if k not in ("speculative", "prompt_tokens_details")}
    return answer["choices"], usage


def chat(server, text: str, **options) -> dict:
    response = httpx.post(server.url + "/v1/chat/completions", timeout=120,
                          json={"model": NAME, "messages": [{"role": "user", "content": text}], "temperature": 0, **options})
    assert response.status_code == 200, response.text
    return response.json()


# -- what an answer says about its drafts ---------------------------------------------------------------------------------------------------


def test_usage_says_what_the_drafts_of_a_request_came_to():
    with drafting(1) as server:
        usage = server.complete("Count after z", max_tokens=31).json()["usage"]
        # The first token comes from the prompt's step; then five steps of five drafts and one more token.
        assert usage["speculative"] == {"drafted": 25, "accepted": 25, "accepted_per_position": [5] * 5, "mean_acceptance_length": 6.0}
        assert usage["completion_tokens"] == 31 and usage["total_tokens"] == usage["prompt_tokens"] + 31
        with Stream(server, "Count after z", max_tokens=31, stream_options={"include_usage": True}) as stream:
            events = stream.events()
        assert events[-2]["usage"]["speculative"] == usage["speculative"]
        assert text_of(events) == counted("z", 31)
        assert all("usage" not in e for e in events[:-2])
    with drafting(0) as server:
        spoken = server.complete("Count after z", max_tokens=31).json()["usage"]["speculative"]
        assert spoken["drafted"] > 100 and spoken["accepted"] == 0 and spoken["accepted_per_position"] == [0] * 5
        assert spoken["mean_acceptance_length"] == 1


def test_usage_is_silent_where_nothing_was_drafted():
    with drafting(1) as server, scripted("--speculative-algorithm", "none", "--draft-truth", "1") as off:
        for answer in (server.complete("Count after 0", max_tokens=9, speculative=OFF), server.complete("Count after 0", max_tokens=9, speculative={"num_steps": 0}),
                       server.complete("Count after 0", max_tokens=1), off.complete("Count after 0", max_tokens=9)):
            assert "speculative" not in answer.json()["usage"]
        assert not any(name.startswith(("ingot:speculative_position0", "ingot:speculative_drafted")) for name, _ in scrape(off))


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_request_may_draft_less_than_the_server_and_never_more(steps):
    with drafting(1, 4) as server:
        spoken = server.complete("Count after z", max_tokens=61, speculative={"num_steps": steps}).json()["usage"]["speculative"]
        assert len(spoken["accepted_per_position"]) == min(steps, 4)


def test_counters_and_the_request_log_agree_with_the_answers_usage(tmp_path):
    log = tmp_path / "requests.jsonl"
    with drafting(0.7, 4, "--request-log", str(log)) as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(server.complete, f"Count after {COUNTING[i]}", max_tokens=10 + i) for i in range(40)]
            usages = [job.result().json()["usage"] for job in jobs]
        eventually(server.idle)
        samples = scrape(server)
        sums = {key: sum(u["speculative"][key] for u in usages) for key in ("drafted", "accepted")}
        per_position = [sum(u["speculative"]["accepted_per_position"][p] for u in usages) for p in range(4)]
        assert total(samples, "vllm:spec_decode_num_draft_tokens_total") == total(samples, "ingot:speculative_drafted_tokens_total") == sums["drafted"]
        assert total(samples, "vllm:spec_decode_num_accepted_tokens_total") == total(samples, "ingot:speculative_accepted_tokens_total") == sums["accepted"]
        assert 0 < sums["accepted"] < sums["drafted"] and per_position == sorted(per_position, reverse=True)
        for p in range(4):
            assert total(samples, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(p)) == per_position[p]
            assert total(samples, "ingot:speculative_accepted_tokens_total", position=str(p)) == per_position[p]
        steps = total(samples, "ingot:speculative_steps_total")
        assert steps == total(samples, "vllm:spec_decode_num_drafts_total") == total(samples, "ingot:speculative_drafted_tokens_total", position="0")
        assert math.isclose(total(samples, "ingot:speculative_position0_acceptance"), per_position[0] / steps)
        assert total(samples, "ingot:metrics_ignored_total") == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted((l["completion"], l["drafted"], l["accepted"], l["accepted_per_position"]) for l in lines) == sorted(
        (u["completion_tokens"], *(u["speculative"][k] for k in ("drafted", "accepted", "accepted_per_position"))) for u in usages)
    assert sum(l["draft_steps"] for l in lines) == steps and all("forced_acceptance" not in l for l in lines)


# C11
def test_first_drafts_that_are_always_wrong_are_an_alarm_once():
    with drafting(0, 1) as server:
        for _ in range(3):
            server.complete("Count after 0", max_tokens=1100)
        eventually(lambda: "first drafts were accepted" in server.log())
        assert server.log().count("first drafts were accepted") == 1
        assert total(scrape(server), "ingot:speculative_position0_acceptance") == 0
    with drafting(0.9, 1) as server:
        server.complete("Count after 0", max_tokens=2500)
        assert 0.8 < total(scrape(server), "ingot:speculative_position0_acceptance") < 1
    assert "first drafts" not in server.log()


# -- the same answer with drafts and without ------------------------------------------------------------------------------------------------

TRUTHS = [0, 0.5, 1]


# C1
@pytest.mark.parametrize("truth", TRUTHS)
def test_a_stop_token_within_an_accepted_draft_wins_over_the_cap_behind_it(truth):
    script = [{"when": "stop early", "tokens": [100, 101, 102, 120, 121, 122], "finish": "none"},
              {"when": "end early", "tokens": [100, 101, 6108, 120, 121, 122], "finish": "none"}]
    with drafting(truth, script=script) as server:
        for text, options in (("stop early", {"stop_token_ids": [102]}), ("end early", {})):
            for cap in range(1, 9):
                on = server.complete(text, max_tokens=cap, temperature=0, logprobs=0, **options).json()
                off = server.complete(text, max_tokens=cap, temperature=0, logprobs=0, speculative=OFF, **options).json()
                assert told(on) == told(off), (text, cap)
                assert on["usage"]["completion_tokens"] == min(cap, 3)
                assert on["choices"][0]["finish_reason"] == ("stop" if cap >= 3 else "length")
                assert len(on["choices"][0]["logprobs"]["tokens"]) == min(cap, 2), "the stop token itself is not shown"
        # A stop token past the cap is never reached, and not one token leaks.
        late = server.complete("stop early", max_tokens=5, temperature=0, stop_token_ids=[122]).json()
        assert late["choices"][0]["finish_reason"] == "length" and late["usage"]["completion_tokens"] == 5


# C2
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("steps", [2, 5, 8])
def test_a_stop_string_within_a_step_cuts_text_ids_logprobs_and_usage_alike(truth, steps):
    script = [{"when": "laugh", "say": ["He said", " ha", " ha", " ha", " ho", " and went", " home, ha ha ha"]}]
    with drafting(truth, steps, script=script) as server:
        options = dict(max_tokens=60, temperature=0, stop=[" ha ha ha"], logprobs=2)
        on, off = (server.complete("laugh", **options, **extra).json() for extra in ({}, {"speculative": OFF}))
        assert told(on) == told(off)
        choice = on["choices"][0]
        assert choice["text"] == "He said" and choice["finish_reason"] == "stop"
        tokens = choice["logprobs"]["tokens"]
        assert "".join(tokens) == "He said ha ha ha" and on["usage"]["completion_tokens"] == len(tokens)
        assert {len(choice["logprobs"][k]) for k in ("token_logprobs", "top_logprobs", "text_offset")} == {len(tokens)}
        with Stream(server, "laugh", stream_options={"include_usage": True}, **options) as stream:
            events = stream.events()
        assert text_of(events) == "He said"
        parts = [e["choices"][0]["logprobs"] for e in events[:-2] if e["choices"][0]["logprobs"]]
        for key, values in choice["logprobs"].items():
            assert [v for part in parts for v in part[key]] == values, key
        assert events[-2]["usage"]["completion_tokens"] == len(tokens)


# C6
def test_logprobs_of_tokens_that_came_in_one_step_are_each_its_own():
    with drafting(1) as server:
        on, off = (server.complete("Count after 0", max_tokens=40, temperature=0, logprobs=3, speculative=s).json()["choices"][0]["logprobs"] for s in ({}, OFF))
        assert on == off
        assert "".join(on["tokens"]) == counted("0", 40) and len(on["token_logprobs"]) == 40 and all(len(t) == 3 for t in on["top_logprobs"])
        for s in ({}, OFF):
            entries = chat(server, "Count after 0", max_tokens=40, logprobs=True, top_logprobs=3, speculative=s)["choices"][0]["logprobs"]["content"]
            assert "".join(e["token"] for e in entries) == counted("0", 40)


# C4: a bias against a token that every draft proposes, and for one that none does
@pytest.mark.parametrize("truth", TRUTHS)
def test_a_bias_holds_at_every_verified_position(truth):
    with drafting(truth) as server:
        one, bang = ids_of(server, "3")[-1], ids_of(server, "!")[-1]
        options = dict(max_tokens=80, temperature=0, logit_bias={str(one): -100, str(bang): 60})
        on, off = (server.complete("Count after 0", **options, speculative=s).json() for s in ({}, OFF))
        assert told(on) == told(off)
        assert on["choices"][0]["text"] == counted("0", 80).replace("3", "!")


# C5
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("penalty", [{"presence_penalty": 2}, {"frequency_penalty": 2}, {"presence_penalty": -2}, {"repetition_penalty": 2}])
def test_penalties_change_an_answer_alike_with_drafts_and_without(truth, penalty):
    with drafting(truth) as server:
        # Almost as likely as what is due: whatever is due and was said before falls behind it.
        options = dict(max_tokens=130, temperature=0, logit_bias={str(ids_of(server, "!")[-1]): 99})
        on, off = (server.complete("Count after z", **options, **penalty, speculative=s).json() for s in ({}, OFF))
        assert told(on) == told(off)
        plain = server.complete("Count after z", **options).json()["choices"][0]["text"]
        assert plain == counted("z", 130)
        text = on["choices"][0]["text"]
        if penalty == {"presence_penalty": 2}:
            assert text == plain[:62] + "!" + plain[63:], "once it was said, it has the penalty, too"
        elif penalty == {"presence_penalty": -2}:
            assert text == plain
        else:
            assert "!" in text


@pytest.mark.parametrize("truth", TRUTHS)
def test_a_seed_and_a_temperature_give_the_same_text_with_drafts(truth):
    with drafting(truth) as server:
        # Every second token or so is another one than the script's.
        options = dict(max_tokens=60, temperature=12.0, ignore_eos=True, seed=7)
        on, off = (server.complete("Count after 0", **options, speculative=s).json() for s in ({}, OFF))
        assert told(on) == told(off)
        assert on["choices"][0]["text"] != server.complete("Count after 0", **{**options, "seed": 8}).json()["choices"][0]["text"]


# B6, B29: the seven shapes in which several tokens of one step arrive, each with its tool calls
PING, BOOK = "<tool_call>ping</tool_call>", "<tool_call>book<arg_key>city</arg_key><arg_value>Zürich 🙂\n</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
TOOLS = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
         {"type": "function", "function": {"name": "book", "parameters": {"type": "object", "properties": {
             "city": {"type": "string"}, "days": {"type": "integer"}}}}}]
PING_CALL, BOOK_CALL = ("ping", {}), ("book", {"city": "Zürich 🙂\n", "days": 3})
SHAPES = {
    "thoughts end, text, a call begins": ("Hm.</think> xxx" + BOOK, [BOOK_CALL]),
    "a call begins within": ("Hm.</think>I will. Now: " + PING, [PING_CALL]),
    "a call ends after a newline": ("Hm.</think>" + BOOK.replace("</arg_value></tool_call>", "</arg_value>\n</tool_call>"), [BOOK_CALL]),
    "text behind a call": ("Hm.</think>" + BOOK + "yyy", [BOOK_CALL]),
    "a whole call": ("</think>" + PING, [PING_CALL]),
    "several calls": ("Hm.</think>.." + PING + PING + BOOK, [PING_CALL, PING_CALL, BOOK_CALL]),
    "a call ends, a call begins": ("Hm.</think>" + BOOK + BOOK, [BOOK_CALL, BOOK_CALL]),
}


def streamed(server, text: str, **options) -> dict:
    """A streamed chat, put together as a client does it."""
    with Stream(server, None, path="/v1/chat/completions", messages=[{"role": "user", "content": text}], temperature=0, **options) as stream:
        events = stream.events()
    assert events[-1] == "[DONE]"
    message, calls = {"reasoning_content": "", "content": ""}, []
    for choice in (c for e in events[:-1] for c in e["choices"]):
        for key in message:
            message[key] += choice["delta"].get(key) or ""
        for call in choice["delta"].get("tool_calls", []):
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    return {**message, "calls": calls, "finish": events[-2]["choices"][0]["finish_reason"] if events[-2]["choices"] else None}


@pytest.mark.parametrize("truth", [0.5, 1])
def test_tool_calls_and_thoughts_are_parsed_alike_however_tokens_are_bundled(truth):
    script = [{"when": f"shape {i};", "say": [text]} for i, (text, _) in enumerate(SHAPES.values())]
    with drafting(truth, 8, script=script) as server:
        for i, (name, (_, calls)) in enumerate(SHAPES.items()):
            expected = None
            for steps in range(9):
                options = dict(tools=TOOLS, max_tokens=200, speculative={"num_steps": steps})
                message = chat(server, f"shape {i};", **options)["choices"][0]["message"]
                got = {"reasoning_content": message.get("reasoning_content", ""), "content": message["content"] or "",
                       "calls": [[c["function"]["name"], c["function"]["arguments"]] for c in message["tool_calls"]], "finish": "tool_calls"}
                expected = expected or got  # of no drafts
                assert got == expected, (name, steps)
                assert streamed(server, f"shape {i};", **options) == expected, (name, steps)
                assert [(n, json.loads(a)) for n, a in got["calls"]] == calls, (name, steps)


# P1
def test_a_stream_has_fewer_events_than_tokens_and_usage_counts_the_tokens():
    with drafting(1) as server:
        with Stream(server, "Count after 0", max_tokens=301, stream_options={"include_usage": True}) as stream:
            events = stream.events()
        texts = [e["choices"][0]["text"] for e in events[:-2] if e["choices"][0]["text"]]
        assert len(texts) == 51 and max(map(len, texts)) == 6
        assert "".join(texts) == counted("0", 301) and events[-2]["usage"]["completion_tokens"] == 301


# P1
def test_the_load_test_counts_tokens_not_events():
    load = BINARY.parent / "stream_load"
    with drafting(1, 5, "--step-ms", "5") as server:
        run = subprocess.run([str(load), "--port", str(server.port), "--streams", "20", "--tokens", "61", "--rounds", "2", "--drafts", "5", "--json"],
                             capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr
        report = json.loads(run.stdout)
        assert report["ok"] == 40 and report["tokens"] == 40 * 61 and report["gap"]["count"] == 40 * 60
        assert report["peak_tokens_per_second"] >= report["tokens_per_second"] > report["events_per_second"]
        # A server that drafts more than was said is a fault.
        run = subprocess.run([str(load), "--port", str(server.port), "--streams", "2", "--tokens", "20", "--json"], capture_output=True, text=True, timeout=120)
        assert run.returncode == 1 and json.loads(run.stdout)["failed"] == {"merged_tokens": 2}


def test_many_clients_with_drafts_of_every_worth_get_their_own_text():
    with drafting(0.6, 8, "--speculative-adaptive", "--max-total-tokens", "2048", "--context-length", "400") as server:
        def ask(i):
            options = {"speculative": {"enabled": i % 3 != 0, "num_steps": i % 9}, "priority": i % 4}
            return server.complete(f"{'and so on ' * (i % 11)}Count after {COUNTING[i % 62]}", max_tokens=20 + i % 90, **options).json()

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(ask, range(200)))
        for i, answer in enumerate(answers):
            assert answer["choices"][0]["text"] == counted(COUNTING[i % 62], 20 + i % 90), i
        eventually(server.idle)
        assert total(scrape(server), "ingot:metrics_ignored_total") == 0


# -- flags --------------------------------------------------------------------------------------------------------------------------------

BAD_FLAGS = [
    (["--speculative-num-steps", "9"], "--speculative-num-steps 9"),
    (["--speculative-num-steps", "0"], "--speculative-num-steps 0"),
    (["--speculative-eagle-topk", "4"], "--speculative-eagle-topk 4"),
    (["--speculative-num-steps", "3", "--speculative-num-draft-tokens", "6"], "--speculative-num-draft-tokens 6"),
    (["--speculative-algorithm", "EAGLE"], "--speculative-algorithm EAGLE"),
    (["--speculative-algorithm", "none", "--speculative-adaptive"], "--speculative-algorithm none"),
    (["--speculative-force-acceptance", "3.5"], "--benchmark-mode"),
    (["--speculative-force-acceptance", "7", "--benchmark-mode"], "--speculative-force-acceptance 7"),
]


@pytest.mark.parametrize("flags, name", BAD_FLAGS)
def test_a_bad_flag_is_refused_by_name(flags, name):
    for command in ([str(BINARY), "serve", str(MODEL), "--port", "0"], [str(BINARY), "generate", str(MODEL), "--prompt", "x"]):
        run = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and name in run.stderr, run.stderr


def test_a_model_without_a_draft_layer_is_served_without_and_refused_when_drafts_are_required():
    with scripted("--speculative-num-steps", "3") as server:
        answer = server.complete("Count after 0", max_tokens=9).json()
        assert answer["choices"][0]["text"] == counted("0", 9) and "speculative" not in answer["usage"]
    for flags in (["--speculative-algorithm", "NEXTN"], ["--speculative-force-acceptance", "2", "--benchmark-mode"]):
        run = subprocess.run([str(SCRIPTED), str(MODEL), "--port", "0", *flags], capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and flags[0] in run.stderr and "MTP layer" in run.stderr, run.stderr


def test_forced_acceptance_labels_every_output(tmp_path):
    log = tmp_path / "requests.jsonl"
    with drafting(0, 5, "--speculative-force-acceptance", "3.5", "--benchmark-mode", "--request-log", str(log)) as server:
        eventually(lambda: "--speculative-force-acceptance 3.5" in server.log())
        response = server.complete("Count after 0", max_tokens=1500, ignore_eos=True)
        body = response.json()
        assert response.headers["x-ingot-forced-acceptance"] == "3.5"
        assert body["system_fingerprint"].endswith("-forced-acceptance-3.5")
        spoken = body["usage"]["speculative"]
        assert spoken["forced_acceptance"] == 3.5 and body["usage"]["completion_tokens"] == 1500
        assert abs(spoken["mean_acceptance_length"] - 3.5) < 0.2
        # Even an answer without one draft.
        assert server.complete("Count after 0", max_tokens=1).json()["usage"]["speculative"]["forced_acceptance"] == 3.5
        with Stream(server, "Count after 0", max_tokens=20, ignore_eos=True, stream_options={"include_usage": True}) as stream:
            events = stream.events()
            assert stream.headers["x-ingot-forced-acceptance"] == "3.5"
        assert all(e["system_fingerprint"].endswith("-forced-acceptance-3.5") for e in events[:-1])
        assert events[-2]["usage"]["speculative"]["forced_acceptance"] == 3.5
        assert total(scrape(server), "ingot:forced_acceptance") == 3.5
    assert [json.loads(line)["forced_acceptance"] for line in log.read_text().splitlines()] == [3.5] * 3
    assert "first drafts" not in server.log()


# -- the real model and its MTP layer -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain():
    with running("--speculative-algorithm", "none") as server:
        yield server


def ask_case(server, case: dict, **options) -> dict:
    body = {"model": NAME, "messages": case["messages"], "temperature": 0, "max_tokens": 120, "logprobs": True, "top_logprobs": 3, **template_kwargs(case), **options}
    if case.get("tools"):
        body["tools"] = case["tools"]
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()


def without_ids(answer: dict):
    choices, usage = told(answer)
    for choice in choices:
        for call in choice["message"].get("tool_calls", []):
            call.pop("id")
    return choices, usage


REAL = [
    *[(kind, i, {}) for kind in ("word", "tool") for i in range(3)],
    ("word", 2, {"stop": ["\n"]}),
    *[("word", 3, {"max_tokens": n}) for n in range(1, 8)],
    ("word", 4, {"presence_penalty": 1.5, "frequency_penalty": 0.5}),
    ("word", 4, {"repetition_penalty": 1.3}),
    ("word", 5, {"logit_bias": {"100": 5, "200": -100}}),
    ("word", 5, {"temperature": 0.8, "seed": 11}),
    ("tool", 2, {"temperature": 1.0, "seed": 3, "min_p": 0.05, "top_k": 20}),
]


@pytest.mark.parametrize("kind, number, options", REAL)
def test_the_real_model_answers_alike_with_its_mtp_layer_and_without(server, plain, kind, number, options):
    case = cases(kind)[number]
    on = ask_case(server, case, **options)
    off = ask_case(server, case, speculative=OFF, **options)
    assert without_ids(on) == without_ids(off) == without_ids(ask_case(plain, case, **options))
    assert "speculative" not in off["usage"]
    if on["usage"]["completion_tokens"] > 2:
        assert on["usage"]["speculative"]["drafted"] > 0


@pytest.mark.parametrize("steps", range(1, 9))
def test_every_depth_gives_the_real_models_answer(server, plain, steps):
    case = cases("word")[6]
    with running("--speculative-num-steps", str(steps)) as deep:
        on = ask_case(deep, case)
    assert without_ids(on) == without_ids(ask_case(plain, case))
    assert len(on["usage"]["speculative"]["accepted_per_position"]) == steps


# C11
def test_the_demo_models_drafts_are_worth_their_cost(server):
    spoken = [ask_case(server, case)["usage"]["speculative"] for case in cases("word")[:8]]
    steps = sum(s["drafted"] / len(s["accepted_per_position"]) for s in spoken)
    assert sum(s["accepted_per_position"][0] for s in spoken) / steps > 0.6
    assert sum(s["mean_acceptance_length"] for s in spoken) / len(spoken) > 3


def test_generate_says_what_speculation_earned():
    command = [str(BINARY), "generate", str(MODEL), "--prompt", cases("word")[0]["messages"][-1]["content"], "--temperature", "0", "--max-tokens", "80"]
    on = subprocess.run(command, capture_output=True, text=True, timeout=300)
    off = subprocess.run([*command, "--speculative-algorithm", "none"], capture_output=True, text=True, timeout=300)
    assert on.returncode == off.returncode == 0, on.stderr + off.stderr
    assert on.stdout == off.stdout
    assert "speculation: mean acceptance length" in on.stderr and "speculation" not in off.stderr
    forced = subprocess.run([*command, "--benchmark-mode", "--speculative-force-acceptance", "3"], capture_output=True, text=True, timeout=300)
    assert forced.returncode == 0 and "acceptance forced to 3" in forced.stderr, forced.stderr
