"""Anthropic's client against the Messages API: blocks, events in their order, tools, usage, errors."""

import concurrent.futures
import json
import random
import time

import anthropic
import httpx
import pytest
from conftest import NAME, eventually, running, scripted

CALLS = ("<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
         "<tool_call>ping</tool_call>")
TOOLS = [{"name": "weather", "description": "Tells it", "cache_control": {"type": "ephemeral"}, "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}, {"name": "ping", "input_schema": {"type": "object"}}]
THINK = {"type": "adaptive"}
SCRIPT = [
    {"when": "<tool_response>Error: no network</tool_response>", "say": ["Not now", ".</think>The network is down."]},
    {"when": "<tool_response>sunny\nand warm</tool_response><tool_response>pong</tool_response>", "say": ["Good", ".</think>It is sunny."]},
    {"when": "Speak up", "say": ["Loud", ".</think>Hello", " there."]},
    {"when": "Think and call", "say": ["I", " need", " two", " tools", ".", "</think>", "\n\n", "Let me", " look.", "\n", CALLS]},
    {"when": "Call at once", "say": ["Sure", "</think>", "\n\n", CALLS]},
    {"when": "<think></think>", "say": ["Plain", " answer", " without", " a thought", " END", " and more"]},
    {"when": "Just talk", "say": ["Easy", ".", "</think>", "Hello", " there", ".", " END", " and more"]},
    {"when": "Slow", "first_token_seconds": 4, "say": ["</think>done"]},
]


@pytest.fixture(scope="module")
def server():
    with scripted("--page-size", "16", script=SCRIPT) as s:
        yield s


@pytest.fixture
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def ask(text, **options):
    return {"model": NAME, "max_tokens": 200, "messages": [{"role": "user", "content": text}], **options}


def raw_events(server, body) -> list[tuple[str, dict]]:
    """Names and data of a stream as they stand on the wire."""
    events, name = [], None
    with httpx.stream("POST", server.url + "/v1/messages", json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                events.append((name, json.loads(line[6:])))
            else:
                assert not line or line.startswith(":"), line
    assert all(name == data["type"] for name, data in events)
    return events


# G8: deltas target the wrong block, thinking is no block, message_start knows nothing of the cache.
def test_blocks_come_one_after_the_other_each_with_an_index_of_its_own(server):
    body = ask("Think and call", thinking=THINK, tools=TOOLS)
    httpx.post(server.url + "/v1/messages", json=body, timeout=60)  # now its prompt is cached
    events = raw_events(server, body)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "ping"] and names[-2:] == ["message_delta", "message_stop"]
    open_index, blocks = None, []
    for name, data in events[2:-2]:
        if name == "content_block_start":
            assert open_index is None and data["index"] == len(blocks)
            open_index = data["index"]
            blocks.append((data["content_block"], []))
        elif name == "content_block_delta":
            assert data["index"] == open_index
            blocks[-1][1].append(data["delta"])
        else:
            assert name == "content_block_stop" and data["index"] == open_index
            open_index = None
    assert open_index is None
    assert [block["type"] for block, _ in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert [{d["type"] for d in deltas} for _, deltas in blocks] == [{"thinking_delta", "signature_delta"}, {"text_delta"}, {"input_json_delta"},
                                                                    {"input_json_delta"}]
    assert blocks[0][1][-1]["type"] == "signature_delta" and blocks[0][1][-1]["signature"]
    assert blocks[2][0]["name"] == "weather" and blocks[2][0]["input"] == {} and blocks[2][0]["id"] != blocks[3][0]["id"]
    assert len(blocks[1][1]) > 1, "text must come in pieces"
    start = events[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["role"] == "assistant"
    usage = start["usage"]
    assert usage["cache_read_input_tokens"] > 0 and usage["input_tokens"] > 0 and usage["cache_creation_input_tokens"] == 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == server_count(server, body)
    assert usage["cache_read_input_tokens"] == (server_count(server, body) - 1) // 16 * 16
    last = events[-2][1]
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None} and last["usage"]["output_tokens"] > 10


def server_count(server, body) -> int:
    fields = {k: body[k] for k in ("model", "messages", "tools", "thinking", "system") if k in body}
    return httpx.post(server.url + "/v1/messages/count_tokens", json=fields, timeout=60).json()["input_tokens"]


@pytest.mark.parametrize("thinking", [THINK, {"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, None])
@pytest.mark.parametrize("text", ["Think and call", "Call at once", "Just talk"])
def test_a_stream_says_the_same_as_a_whole_answer(client, text, thinking):
    body = ask(text, tools=TOOLS, **({"thinking": thinking} if thinking else {}), **({} if thinking != THINK else {"stop_sequences": ["END"]}))
    if thinking and thinking["type"] == "enabled":
        body["max_tokens"] = 2000
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    hidden = {"id", "signature", "usage", "parsed_output"}
    strip = lambda message: [block.model_dump(exclude=hidden) for block in message.content]
    assert strip(streamed) == strip(whole)
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    thinks = bool(thinking) and thinking["type"] != "disabled"
    assert ("thinking" in [block.type for block in whole.content]) == thinks
    if thinks and text == "Think and call":
        assert whole.content[0].thinking == "I need two tools."
        assert whole.content[1].text.strip() == "Let me look."
        assert [(b.name, b.input) for b in whole.content if b.type == "tool_use"] == [("weather", {"city": "Bern", "days": 3}), ("ping", {})]
    if thinks and text == "Call at once":
        assert [block.type for block in whole.content] == ["thinking", "tool_use", "tool_use"], "white space alone is no block"
    if thinking == THINK and text == "Just talk":
        assert (whole.stop_reason, whole.stop_sequence, whole.content[-1].text) == ("stop_sequence", "END", "Hello there. ")


def test_tool_results_of_all_shapes_reach_the_model(client):
    first = client.messages.create(**ask("Think and call", thinking=THINK, tools=TOOLS))
    ids = [block.id for block in first.content if block.type == "tool_use"]
    history = [{"role": "user", "content": [{"type": "text", "text": "Think and call", "cache_control": {"type": "ephemeral"}}]},
               {"role": "assistant", "content": first.content}]
    results = [{"type": "tool_result", "tool_use_id": ids[0], "content": [{"type": "text", "text": "sunny"}, {"type": "text", "text": "and warm"}]},
               {"type": "tool_result", "tool_use_id": ids[1], "content": "pong", "cache_control": {"type": "ephemeral"}}]
    second = client.messages.create(model=NAME, max_tokens=50, thinking=THINK, tools=TOOLS, messages=history + [{"role": "user", "content": results}])
    assert second.content[-1].text == "It is sunny." and second.stop_reason == "end_turn"
    failed = [{"type": "tool_result", "tool_use_id": ids[0], "content": "no network", "is_error": True}]
    third = client.messages.create(model=NAME, max_tokens=50, thinking=THINK, tools=TOOLS, messages=history + [{"role": "user", "content": failed}])
    assert third.content[-1].text == "The network is down."


def test_thinking_of_others_and_hidden_thinking_are_accepted(client):
    answer = client.messages.create(model=NAME, max_tokens=50, messages=[
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": "of another server"},
                                          {"type": "redacted_thinking", "data": "AAAA"}, {"type": "text", "text": "Hello"}]},
        {"role": "user", "content": "Speak up"}], thinking=THINK)
    assert answer.content[-1].text == "Hello there."


def test_thinking_can_be_left_out_of_the_answer(client):
    body = ask("Just talk", thinking={"type": "adaptive", "display": "omitted"})
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[0].thinking == "" and message.content[0].signature


def test_what_claude_code_sends_is_answered(server):
    """Betas, cache_control everywhere, a billing line that differs each time, tools with eager streaming."""
    def body(number):
        return {"model": NAME, "max_tokens": 32000, "stream": True, "metadata": {"user_id": "user_1"}, "thinking": {"type": "enabled", "budget_tokens": 31999},
                "temperature": 1, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                "output_config": {"effort": "high"},
                "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number};"},
                           {"type": "text", "text": "You are a coder. " * 20, "cache_control": {"type": "ephemeral"}}],
                "tools": [{**TOOLS[0], "eager_input_streaming": True}, TOOLS[1]],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"},
                                                          {"type": "text", "text": "Think and call", "cache_control": {"type": "ephemeral"}}]}]}
    cached = []
    for number in range(2):
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "x-api-key": "k"}
        text = httpx.post(server.url + "/v1/messages?beta=true", json=body(number), headers=headers, timeout=60).text
        start = json.loads(text.split("data: ")[1].split("\n")[0])
        cached.append(start["message"]["usage"]["cache_read_input_tokens"])
        assert '"name":"weather"' in text and text.rstrip().endswith('data: {"type":"message_stop"}')
    assert cached[1] > 100, "the billing line must not end the prefix"


def test_headers_come_at_once_and_the_start_with_the_first_token(server):
    begun = time.monotonic()
    with httpx.stream("POST", server.url + "/v1/messages", json=ask("Slow", thinking=THINK, stream=True), timeout=60) as response:
        assert response.status_code == 200 and time.monotonic() - begun < 3
        first = next(line for line in response.iter_lines() if line.startswith("event: "))
        assert first == "event: message_start"


def test_count_tokens_counts_the_prompt_of_the_answer(client):
    fields = dict(model=NAME, messages=[{"role": "user", "content": "Just talk"}], system="Be brief.", tools=TOOLS, thinking=THINK)
    count = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(max_tokens=5, **fields).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == count
    assert client.messages.create(max_tokens=5, **fields).stop_reason == "max_tokens"


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


@pytest.mark.parametrize("change, field", [
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, "messages[0].content[1].type"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}]}]},
     "messages[0].content[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages[1].role"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": []}, "messages"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools[0].name"),
    ({"tools": [{"name": "x", "input_schema": 5}]}, "tools[0].input_schema"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
    ({"wibble": 1}, "wibble"),
])
def test_what_is_not_obeyed_is_refused_by_its_name(client, change, field):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.post("/v1/messages", body={**ask("hi"), **change}, cast_to=object)
    body = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(field + ":"), body


def test_errors_have_anthropics_form_and_status(client, server):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**ask("hi"), "model": "claude-opus-9"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as long:
        client.messages.create(**ask("word " * 5000))
    assert long.value.body["error"]["message"].startswith("prompt is too long")
    assert httpx.post(server.url + "/v1/messages", content=b"{", timeout=60).json()["error"]["type"] == "invalid_request_error"
    assert httpx.get(server.url + "/v1/messages", timeout=60).json()["type"] == "error"
    with pytest.raises(anthropic.APIStatusError) as large:
        client.messages.create(**ask("x" * (33 << 20)))
    assert large.value.status_code == 413 and large.value.body["type"] == "error" and large.value.body["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("options", [{"api_key": "secret"}, {"auth_token": "secret", "api_key": None}])
def test_keys_come_in_either_header(options):
    with scripted("--api-key", "secret", script=SCRIPT) as server:
        right = anthropic.Anthropic(base_url=server.url, max_retries=0, **options)
        assert right.messages.create(**ask("Just talk")).content[0].text.startswith("Plain answer")
        with pytest.raises(anthropic.AuthenticationError) as caught:
            anthropic.Anthropic(base_url=server.url, max_retries=0, api_key="wrong").messages.create(**ask("hi"))
        assert caught.value.body == {"type": "error", "error": {"type": "authentication_error", "message": caught.value.body["error"]["message"]}}


def test_a_full_queue_is_a_rate_limit_and_a_timeout_in_it_an_overload():
    script = [{"when": "Slow", "first_token_seconds": 6, "say": ["done"]}]
    flags = ("--max-running-requests", "1", "--max-queued-requests", "1", "--queue-timeout", "2")
    with scripted(*flags, script=script) as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running_one = pool.submit(client.messages.create, **ask("Slow"))
            eventually(lambda: server.health()["running"] == 1)
            waiting_one = pool.submit(client.messages.create, **ask("Slow"))
            eventually(lambda: server.health()["waiting"] == 1)
            with pytest.raises(anthropic.RateLimitError) as full:
                client.messages.create(**ask("hi"))
            assert full.value.body["error"]["type"] == "rate_limit_error" and full.value.response.headers["retry-after"]
            with pytest.raises(anthropic.APIStatusError) as late:
                waiting_one.result()
            assert late.value.status_code == 529 and late.value.body["error"]["type"] == "overloaded_error"
            assert running_one.result().content[0].text == "done"


def test_the_demo_model_answers_and_calls_tools():
    with running() as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        question = "A shop sold 17 potatoes on Tuesday, 120 on Thursday and 145 on Saturday. How many potatoes did it sell in total?"
        answer = client.messages.create(**ask(question, extra_body={"temperature": 0}))
        assert "282" in answer.content[0].text and answer.stop_reason == "end_turn"
        thought = client.messages.create(**ask(question, extra_body={"temperature": 0}, thinking=THINK))
        assert [block.type for block in thought.content] == ["thinking", "text"]


def mutated(value, random):
    """A body with one thing in it replaced by something else."""
    junk = [None, True, -1, 0, 1e308, "", "x", "\ud83d\ude42", [], {}, [[]], [{}], {"type": 5}, {"type": "text"}, [None], "</think><tool_call>"]
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        return {**value, key: mutated(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], mutated(value[at], random), *value[at + 1:]]
    return random.choice(junk)


BODIES = {
    "/v1/messages": {
        "model": NAME, "max_tokens": 5, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], "tools": TOOLS,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False}, "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
        "output_config": {"effort": "low"}, "metadata": {"user_id": "u"}, "stop_sequences": ["END"], "stream": False,
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                     {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "a"},
                                                       {"type": "tool_use", "id": "i", "name": "ping", "input": {"a": 1}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "r"}], "is_error": True}]}]},
    "/v1/responses": {
        "model": NAME, "max_output_tokens": 5, "instructions": "s", "tools": [{"type": "function", "name": "ping", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "ping"}, "reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"}, "stream": False,
        "text": {"format": {"type": "text"}}, "include": ["message.output_text.logprobs"], "top_logprobs": 1, "store": True,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                  {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
                  {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                  {"type": "function_call", "call_id": "i", "name": "ping", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "i", "output": [{"type": "input_text", "text": "r"}]}]},
}


@pytest.mark.parametrize("path", list(BODIES))
def test_no_malformed_body_is_a_server_error(server, path):
    seed = 20261130
    random_numbers = random.Random(seed)
    seen = set()
    with httpx.Client(base_url=server.url, timeout=60) as http:
        assert http.post(path, json=BODIES[path]).status_code == 200
        for number in range(300):
            body = mutated(BODIES[path], random_numbers)
            if isinstance(body, dict) and body.get("stream"):
                continue
            response = http.post(path, content=json.dumps(body))
            seen.add(response.status_code)
            assert response.status_code in (200, 400, 404), (seed, number, body, response.text)
            if response.status_code != 200:
                assert response.json()["error"]["message"], body
        assert http.post(path, json=BODIES[path]).status_code == 200
    assert {200, 400} <= seen
