"""Fields of chat and completions that change the answer: choices, prompts, echo, forms, tools, thinking, streams. Each is seen to be obeyed."""

import json
import re
import time

import httpx
import pytest
from conftest import NAME, Stream, counted, eventually, question, running, scripted

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"], "additionalProperties": False}}},
         {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}


def post(server, path, **body) -> httpx.Response:
    return httpx.post(server.url + path, json={"model": NAME, **body}, timeout=120)


def chat(server, text="Hello!", **body) -> dict:
    response = post(server, "/v1/chat/completions", messages=question(text), **body)
    assert response.status_code == 200, response.text
    return response.json()


def complete(server, prompt, **body) -> dict:
    response = post(server, "/v1/completions", prompt=prompt, **body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response, param, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    return error["message"]


def chunks(server, path, **body) -> list:
    prompt = body.pop("prompt", None)
    with Stream(server, prompt, path=path, **body) as stream:
        events = stream.events()
    assert stream.status == 200 and events[-1] == "[DONE]" and events.count("[DONE]") == 1
    return events[:-1]


def fold(events) -> dict:
    """index -> what the chunks of a choice come to."""
    choices = {}
    for event in events:
        for choice in event["choices"]:
            state = choices.setdefault(choice["index"], {"role": [], "content": "", "reasoning": "", "text": "", "finish": [], "arguments": {}, "after": 0})
            if state["finish"]:
                state["after"] += 1
            delta = choice.get("delta", {})
            state["role"] += [delta["role"]] if "role" in delta else []
            state["content"] += delta.get("content") or ""
            state["reasoning"] += delta.get("reasoning_content") or ""
            state["text"] += choice.get("text", "")
            for call in delta.get("tool_calls", []):
                state["arguments"][call["index"]] = state["arguments"].get(call["index"], "") + call["function"]["arguments"]
            if choice["finish_reason"]:
                state["finish"].append(choice["finish_reason"])
    return choices


# --- several choices, several prompts

@pytest.fixture(scope="module")
def counting():
    """Steps of 20 ms: a long answer still runs while something is done to it."""
    with scripted("--max-running-requests", "8", "--step-ms", "20") as server:
        yield server


def test_choices_draw_with_seeds_of_their_own_and_repeat(server):
    body = dict(max_tokens=12, temperature=1.0, seed=7, ignore_eos=True)
    three = complete(server, "Once upon a time", n=3, **body)
    texts = [c["text"] for c in three["choices"]]
    assert [c["index"] for c in three["choices"]] == [0, 1, 2] and len(set(texts)) == 3
    assert texts == [c["text"] for c in complete(server, "Once upon a time", n=3, best_of=3, **body)["choices"]]
    for i in range(3):  # choice i is what a request with seed + i gets
        assert complete(server, "Once upon a time", **{**body, "seed": 7 + i})["choices"][0]["text"] == texts[i]
    assert three["usage"]["completion_tokens"] == 36
    assert three["usage"]["prompt_tokens"] == server.count("Once upon a time")


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_streamed_choices_say_the_same_as_whole_ones(server, endpoint):
    body = dict(n=3, max_tokens=10, temperature=1.0, seed=3, ignore_eos=True)
    if endpoint == "chat":
        path, body = "/v1/chat/completions", {**body, **PLAIN, "messages": question("Tell me a story.")}
        whole = [c["message"]["content"] for c in post(server, path, **body).json()["choices"]]
    else:
        path, body = "/v1/completions", {**body, "prompt": "Once upon a time"}
        whole = [c["text"] for c in post(server, path, **body).json()["choices"]]
    events = chunks(server, path, stream_options={"include_usage": True}, **body)
    choices = fold(events)
    assert [choices[i]["content" if endpoint == "chat" else "text"] for i in range(3)] == whole
    for choice in choices.values():
        assert choice["finish"] == ["length"] and choice["after"] == 0
        assert choice["role"] == (["assistant"] if endpoint == "chat" else [])
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 30
    assert sum("usage" in event for event in events) == 1


def test_prompts_of_one_request_are_answered_in_order(counting):
    prompts = ["Count after 3", "Count after Q", "Count after x"]
    answer = complete(counting, prompts, n=2, max_tokens=4, temperature=0)
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    assert [c["text"] for c in answer["choices"]] == [counted(p[-1], 4) for p in prompts for _ in range(2)]
    assert answer["usage"]["prompt_tokens"] == sum(counting.count(p) for p in prompts)
    assert answer["usage"]["completion_tokens"] == 24
    ids = [post(counting, "/tokenize", prompt=p).json()["tokens"] for p in prompts]
    assert [c["text"] for c in complete(counting, ids, max_tokens=4)["choices"]] == [counted(p[-1], 4) for p in prompts]
    streamed = fold(chunks(counting, "/v1/completions", prompt=prompts, max_tokens=4))
    assert [streamed[i]["text"] for i in range(3)] == [counted(p[-1], 4) for p in prompts]


def test_too_many_choices_and_a_bad_prompt_among_good_ones_are_refused(counting):
    refused(post(counting, "/v1/completions", prompt="x", n=129), "n")
    refused(post(counting, "/v1/completions", prompt=["x"] * 65, n=2), "prompt")
    refused(post(counting, "/v1/completions", prompt=["x", ""]), "prompt")
    refused(post(counting, "/v1/completions", prompt="x", best_of=2), "best_of")


def test_a_client_that_hangs_up_frees_all_choices(counting):
    with Stream(counting, "Count after A", n=4, max_tokens=100000) as stream:
        while len(fold([stream.event()])) == 0:
            pass
        eventually(lambda: counting.health()["running"] == 4, 10, counting.health)
    eventually(counting.idle, 10, counting.health)


def test_a_choice_that_cannot_be_queued_ends_the_others():
    with scripted("--max-running-requests", "1", "--max-queued-requests", "2", "--step-ms", "20") as server:
        response = post(server, "/v1/completions", prompt="Count after A", n=8, max_tokens=500)
        assert response.status_code == 429 and response.headers["retry-after"]
        eventually(server.idle, 10, server.health)
        assert complete(server, "Count after A", n=2, max_tokens=3)["usage"]["completion_tokens"] == 6


def test_cached_tokens_of_choices_count_what_was_there_before(server):
    prompt = "The old lighthouse keeper counted the ships again. " * 20
    first = complete(server, prompt, n=3, max_tokens=2, temperature=0)["usage"]
    again = complete(server, prompt, n=3, max_tokens=2, temperature=0)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 64 <= again["prompt_tokens_details"]["cached_tokens"] <= again["prompt_tokens"]


# --- echo and scores

def test_echo_puts_the_prompt_before_the_text(server):
    plain = complete(server, "It was a dark and", max_tokens=5, temperature=0)["choices"][0]["text"]
    assert complete(server, "It was a dark and", max_tokens=5, temperature=0, echo=True)["choices"][0]["text"] == "It was a dark and" + plain
    streamed = fold(chunks(server, "/v1/completions", prompt="It was a dark and", max_tokens=5, temperature=0, echo=True))
    assert streamed[0]["text"] == "It was a dark and" + plain
    several = complete(server, ["It was", "A dark"], max_tokens=2, temperature=0, echo=True)["choices"]
    assert several[0]["text"].startswith("It was") and several[1]["text"].startswith("A dark")


def test_a_prompt_is_scored_without_a_new_token(server):
    text = "Naïve 東京 sailors sang in the dark"
    tokens = post(server, "/tokenize", prompt=text).json()["tokens"]
    answer = complete(server, text, max_tokens=0, echo=True, logprobs=2, temperature=0)
    choice = answer["choices"][0]
    lists = choice["logprobs"]
    assert choice["text"] == text and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0 and answer["usage"]["prompt_tokens"] == len(tokens)
    assert {len(lists[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {len(tokens)}
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    assert all(value <= 0 for value in lists["token_logprobs"][1:]) and all(len(top) >= 2 for top in lists["top_logprobs"][1:])
    for token, offset in zip(lists["tokens"], lists["text_offset"]):
        if "\ufffd" not in token:  # parts of a character have no text of their own
            assert text[offset:].startswith(token), (token, offset)
    # The score of a token does not depend on how it came: what the model says greedily is scored alike as part of a prompt.
    said = complete(server, text, max_tokens=4, logprobs=1, temperature=0)["choices"][0]
    scored = complete(server, text + said["text"], max_tokens=0, echo=True, logprobs=1, temperature=0)["choices"][0]["logprobs"]
    if scored["tokens"][len(tokens):] == said["logprobs"]["tokens"]:
        for a, b in zip(scored["token_logprobs"][len(tokens):], said["logprobs"]["token_logprobs"]):
            assert abs(a - b) < 0.05
    refused(post(server, "/v1/completions", prompt="x", max_tokens=0), "max_tokens")


def test_echo_with_logprobs_lists_prompt_and_text_whole_and_streamed(server):
    body = dict(prompt="It was a dark and", max_tokens=4, temperature=0, echo=True, logprobs=1, ignore_eos=True)
    whole = post(server, "/v1/completions", **body).json()["choices"][0]
    assert len(whole["logprobs"]["tokens"]) == server.count("It was a dark and") + 4
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]
    events = chunks(server, "/v1/completions", **body)
    joined = {}
    for event in events:
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            joined.setdefault(name, []).extend(values)
    assert joined["tokens"] == whole["logprobs"]["tokens"] and joined["text_offset"] == whole["logprobs"]["text_offset"]


def test_token_ids_are_named_when_asked(server):
    body = dict(prompt="It was a dark and", max_tokens=4, temperature=0, ignore_eos=True)
    choice = complete(server, body["prompt"], **{k: v for k, v in body.items() if k != "prompt"}, return_token_ids=True, logprobs=0,
                      return_tokens_as_token_ids=True)["choices"][0]
    assert post(server, "/detokenize", tokens=choice["token_ids"]).json()["prompt"] == choice["text"]
    assert choice["prompt_token_ids"] == post(server, "/tokenize", prompt=body["prompt"]).json()["tokens"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]
    events = chunks(server, "/v1/completions", return_token_ids=True, **body)
    assert sum((e["choices"][0]["token_ids"] for e in events), []) == choice["token_ids"]
    assert [e["choices"][0]["prompt_token_ids"] for e in events if "prompt_token_ids" in e["choices"][0]] == [choice["prompt_token_ids"]]
    plain = complete(server, "x", max_tokens=1)["choices"][0]
    assert "token_ids" not in plain and "prompt_token_ids" not in plain


def test_min_tokens_holds_back_the_end(server):
    with scripted(script=[{"say": ["Yes."]}]) as model:
        short = complete(model, "x", max_tokens=20)
        assert short["choices"][0]["finish_reason"] == "stop"
        long = complete(model, "x", max_tokens=20, min_tokens=9)
        assert long["usage"]["completion_tokens"] >= 9 > short["usage"]["completion_tokens"]
    refused(post(server, "/v1/completions", prompt="x", max_tokens=4, min_tokens=5), "min_tokens")


# --- the form of an answer

@pytest.mark.parametrize("thinking", [False, True])
def test_json_schema_answers_are_valid_json(server, thinking):
    format = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for seed in range(4):
        choice = chat(server, "Name a sailor and his age.", response_format=format, max_tokens=400, seed=seed, temperature=1.0, thinking_budget=40,
                      enable_thinking=thinking)["choices"][0]
        if choice["finish_reason"] == "stop":
            person = json.loads(choice["message"]["content"])
            assert set(person) == {"name", "age"} and isinstance(person["name"], str) and isinstance(person["age"], int)


@pytest.mark.parametrize("field", [{"regex": r"[A-D]\.[0-9]{2}"}, {"guided_regex": r"[A-D]\.[0-9]{2}"}, {"structured_outputs": {"regex": r"[A-D]\.[0-9]{2}"}}])
def test_a_regex_is_the_whole_answer(server, field):
    for seed in range(3):
        answer = complete(server, "The grade is", max_tokens=30, temperature=1.0, seed=seed, **field)["choices"][0]
        assert re.fullmatch(r"[A-D]\.[0-9]{2}", answer["text"]) and answer["finish_reason"] == "stop", answer


def test_a_choice_among_texts_is_one_of_them(server):
    for seed in range(4):
        content = chat(server, "Yes or no?", guided_choice=["yes", "no (never)"], seed=seed, **PLAIN)["choices"][0]["message"]["content"]
        assert content in ("yes", "no (never)")


def test_json_object_is_an_object(server):
    choice = chat(server, "Some JSON, please.", response_format={"type": "json_object"}, max_tokens=300, temperature=0, **PLAIN)["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    else:
        assert choice["message"]["content"].lstrip().startswith("{")


def test_every_choice_follows_the_form_by_itself(server):
    answer = complete(server, "The grade is", n=4, regex="[A-D][+-]?", max_tokens=8, temperature=1.0, seed=1)
    assert all(re.fullmatch("[A-D][+-]?", c["text"]) for c in answer["choices"])


@pytest.mark.parametrize("body, param", [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}, "response_format.json_schema.schema"),
    ({"regex": "(unclosed"}, "regex"),
    ({"guided_json": "{"}, "guided_json"),
    ({"ebnf": "root ::= x"}, "ebnf"),
])
def test_a_form_that_cannot_be_held_is_refused_by_its_field(server, body, param):
    response = post(server, "/v1/chat/completions", messages=question("x"), **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param), response.text


# --- tools

# B24, B25
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_required_call_comes_as_a_call_and_ends(server, choice, thinking, stream):
    body = dict(messages=question("Hello!"), tools=TOOLS, tool_choice=choice, max_tokens=500, temperature=0, enable_thinking=thinking, thinking_budget=30)
    if stream:
        state = fold(chunks(server, "/v1/chat/completions", **body))[0]
        assert state["finish"] == ["tool_calls"] and state["content"] == ""
        assert state["arguments"] and all(isinstance(json.loads(text), dict) for text in state["arguments"].values())
        return
    answer = post(server, "/v1/chat/completions", **body).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None, answer
    for call in answer["message"]["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "get_weather":
            assert isinstance(arguments["city"], str) and isinstance(arguments.get("days", 1), int)
        else:
            assert call["function"]["name"] == "get_time" and choice == "required"


def test_one_call_at_most_when_parallel_calls_are_off(server):
    # Arguments that end whatever is drawn.
    parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 16}}, "required": ["city"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}, TOOLS[1]]
    for seed in range(3):
        message = chat(server, "What is the weather in Bern and in Basel?", tools=tools, tool_choice="required", parallel_tool_calls=False, seed=seed,
                       max_tokens=400, **PLAIN)["choices"][0]["message"]
        assert len(message["tool_calls"]) == 1


def test_allowed_tools_narrow_the_choice_and_leave_the_prompt_alone(server):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}}
    allowed = chat(server, "Weather in Bern?", tools=TOOLS, tool_choice=choice, max_tokens=300, temperature=0, **PLAIN)
    assert {c["function"]["name"] for c in allowed["choices"][0]["message"]["tool_calls"]} == {"get_time"}
    assert allowed["usage"]["prompt_tokens"] == chat(server, "Weather in Bern?", tools=TOOLS, max_tokens=1, **PLAIN)["usage"]["prompt_tokens"]


def test_no_tools_no_calls_and_a_tool_that_is_not_there_is_refused(server):
    none = chat(server, "Weather in Bern?", tools=TOOLS, tool_choice="none", max_tokens=60, temperature=0, **PLAIN)["choices"][0]
    assert not none["message"].get("tool_calls")
    refused(post(server, "/v1/chat/completions", messages=question("x"), tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}}), "tool_choice")
    refused(post(server, "/v1/chat/completions", messages=question("x"), tool_choice="required"), "tool_choice")


def test_a_form_and_tools_together_give_one_or_the_other(server):
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    kinds = set()
    for text in ("What is the weather in Bern?", "Name a sailor and his age."):
        for seed in range(3):
            choice = chat(server, text, tools=TOOLS, response_format=format, max_tokens=400, seed=seed, **PLAIN)["choices"][0]
            if choice["finish_reason"] == "tool_calls":
                kinds.add("call")
                assert choice["message"]["content"] is None
            elif choice["finish_reason"] == "stop":
                kinds.add("form")
                assert set(json.loads(choice["message"]["content"])) == {"name", "age"}
    assert kinds


# --- thinking

def reasoning(message) -> str:
    return message.get("reasoning_content") or ""


# B27
@pytest.mark.parametrize("off", [{"enable_thinking": False}, {"reasoning_effort": "none"}, {"reasoning_effort": "minimal"}, {"thinking": {"type": "disabled"}},
                                 {"chat_template_kwargs": {"enable_thinking": False}}])
def test_thinking_is_switched_off_by_every_name(server, off):
    message = chat(server, "What is 2 + 3?", max_tokens=40, temperature=0, **off)["choices"][0]["message"]
    assert reasoning(message) == "" and message["content"]


def test_the_prompt_says_the_effort_that_was_asked(server):
    def prompt(**body):
        tokens = post(server, "/tokenize", messages=question("x"), **body).json()["tokens"]
        return post(server, "/detokenize", tokens=tokens).json()["prompt"]

    for effort, word in [("low", "High"), ("medium", "High"), ("high", "High"), ("xhigh", "Max"), ("max", "Max")]:
        assert f"Reasoning Effort: {word}" in prompt(reasoning_effort=effort)
    assert "Reasoning Effort: Max" in prompt() and "Reasoning Effort" not in prompt(reasoning_effort="none")
    history = question("x") + [{"role": "assistant", "content": "a", "reasoning_content": "why"}] + question("y")
    kept = post(server, "/tokenize", messages=history, thinking={"type": "enabled", "clear_thinking": False}).json()
    gone = post(server, "/tokenize", messages=history).json()
    assert kept["count"] > gone["count"]


def test_the_servers_default_gives_way_to_the_request():
    with running("--default-chat-template-kwargs", '{"enable_thinking": false}') as server:
        assert reasoning(chat(server, "What is 2 + 3?", max_tokens=40, temperature=0)["choices"][0]["message"]) == ""
        for on in ({"enable_thinking": True}, {"reasoning_effort": "high"}):
            assert reasoning(chat(server, "What is 2 + 3?", max_tokens=40, temperature=0, **on)["choices"][0]["message"]) != ""


@pytest.mark.parametrize("budget", [0, 5, 20])
def test_thinking_ends_with_its_budget(server, budget):
    answer = chat(server, "A shop sold 17 potatoes on Tuesday and 120 on Thursday. How many in total?", max_tokens=200, temperature=0, thinking_budget=budget)
    used = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert used <= budget
    assert answer["choices"][0]["message"]["content"]
    if budget == 0:
        assert reasoning(answer["choices"][0]["message"]) == ""


def test_reasoning_is_left_out_or_left_in_as_asked(server):
    body = dict(max_tokens=120, temperature=0)
    apart = chat(server, "What is 2 + 3?", **body)["choices"][0]["message"]
    hidden = chat(server, "What is 2 + 3?", include_reasoning=False, **body)
    inside = chat(server, "What is 2 + 3?", separate_reasoning=False, **body)["choices"][0]["message"]
    assert reasoning(apart)
    assert "reasoning_content" not in hidden["choices"][0]["message"] and hidden["choices"][0]["message"]["content"] == apart["content"]
    assert hidden["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert "reasoning_content" not in inside and inside["content"] == reasoning(apart) + "</think>" + apart["content"]
    streamed = fold(chunks(server, "/v1/chat/completions", messages=question("What is 2 + 3?"), include_reasoning=False, **body))[0]
    assert streamed["reasoning"] == "" and streamed["content"] == apart["content"]


# --- streams

def test_running_usage_is_on_every_event_when_asked(server):
    events = chunks(server, "/v1/chat/completions", messages=question("Hello!"), max_tokens=8, ignore_eos=True, temperature=0,
                    stream_options={"include_usage": True, "continuous_usage_stats": True})
    usage = [e["usage"]["completion_tokens"] for e in events]
    assert usage == sorted(usage) and usage[-1] == 8 and events[-1]["choices"] == []


# G5
def test_headers_come_before_a_slow_prefill_is_done():
    with scripted(script=[{"say": ["Done."], "first_token_seconds": 3}]) as server:
        began = time.monotonic()
        with Stream(server, "x", max_tokens=8) as stream:
            stream.read_head()
            assert stream.status == 200 and time.monotonic() - began < 2.5
            events = stream.events()
        assert events[-1] == "[DONE]" and time.monotonic() - began >= 3


# G4
def test_a_stream_behind_a_prompt_of_eight_thousand_words_ends():
    with scripted("--context-length", "40000", "--chunked-prefill-size", "512") as server:
        events = chunks(server, "/v1/completions", prompt="the old ship sails on " * 1600 + "Count after B", max_tokens=10)
        assert fold(events)[0]["text"] == counted("B", 10) and fold(events)[0]["finish"] == ["length"]


def test_an_endpoint_that_is_not_there_says_so(server):
    for path in ("/v1/embeddings", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/images/generations", "/v1/rerank", "/rerank", "/v1/score",
                 "/v1/moderations", "/v1/files", "/v1/batches", "/v1/assistants", "/generate", "/v1/nonsense"):
        for call in (lambda path: post(server, path, input="x"), server.get):
            response = call(path)
            assert response.status_code == 404, path
            error = response.json()["error"]
            assert path in error["message"] and error["type"] == "invalid_request_error" and error["code"] == "not_found"


# --- histories

CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}


@pytest.mark.parametrize("messages", [
    [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}],
    [{"role": "developer", "content": "Be brief."}, *question("Hello!")],
    question("x") + [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "15C"}],
    question("x") + [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "15C"}]}],
    question("x") + [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "content": ""}],
    question("x") + [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a": '}}]}, *question("y")],
    question("x") + [{"role": "assistant", "content": "a", "tool_calls": []}, *question("y")],
    question("x") + [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *question("y")],
    question("x") + [{"role": "assistant", "content": None, "refusal": "No.", "audio": None, "function_call": None, "annotations": []}, *question("y")],
    question("x") + [{"role": "assistant", "content": "a", "reasoning": "b"}, *question("y")],
    [{"role": "assistant", "content": "I begin."}],
    [{"role": "system", "content": "Only a system message."}],
])
def test_histories_of_every_shape_are_answered(server, messages):
    response = post(server, "/v1/chat/completions", messages=messages, max_tokens=4)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("message, param", [
    ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}, "messages[0].content[1].type"),
    ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": [{"type": "video_url"}]}, "messages[0].content[0].type"),
    ({"role": "function", "name": "f", "content": "1"}, "messages[0].role"),
    ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, "messages[0].function_call"),
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": {"text": "a"}}, "messages[0].content"),
    ({"content": "a"}, "messages[0].role"),
    ("hello", "messages[0]"),
])
def test_a_message_that_cannot_be_read_is_refused_by_its_place(server, message, param):
    refused(post(server, "/v1/chat/completions", messages=[message], max_tokens=4), param)
