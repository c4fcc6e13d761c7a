"""OpenAI's client against the Responses API: items, events in their order, tools, the store, errors."""

import concurrent.futures
import json
import sqlite3
import subprocess

import conftest
import httpx
import openai
import pytest
from conftest import NAME, eventually, running, scripted

CALLS = ("<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
         "<tool_call>ping</tool_call>")
TOOLS = [{"type": "function", "name": "weather", "description": "Tells it", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}},
         {"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}}}]
SCRIPT = [
    {"when": "<tool_response>sunny</tool_response>", "say": ["Good", ".</think>It is sunny."]},
    {"when": "Think and call", "say": ["I", " need", " two", " tools", ".", "</think>", "\n\n", "Let me", " look.", "\n", CALLS]},
    {"when": "Call at once", "say": ["Sure", "</think>", "\n\n", CALLS]},
    {"when": "Hello there.<|user|>Again", "say": ["Fine", "</think>", "I said", " hello."]},
    {"when": "Just talk", "say": ["Easy", ".", "</think>", "Hello", " there", "."]},
]


@pytest.fixture(scope="module")
def server():
    with scripted("--page-size", "16", script=SCRIPT) as s:
        yield s


@pytest.fixture
def client(server):
    return server.client()


def raw_events(server, body) -> list[dict]:
    events, name = [], None
    with httpx.stream("POST", server.url + "/v1/responses", json={**body, "model": NAME, "stream": True}, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                events.append(json.loads(line[6:]))
                assert events[-1]["type"] == name
            else:
                assert not line or line.startswith(":"), line
    return events


def test_events_come_in_order_with_their_numbers(server):
    events = raw_events(server, {"input": "Think and call", "tools": TOOLS})
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    kinds = []
    for event in events:  # runs of deltas are one
        kind = event["type"].removeprefix("response.")
        if not (kind.endswith(".delta") and kinds and kinds[-1] == kind):
            kinds.append(kind)
    part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds == ["created", "in_progress", "output_item.added", *(p.format("reasoning_text") for p in part), "output_item.done",
                     "output_item.added", *(p.format("output_text") for p in part), "output_item.done", *call,
                     # "{}" is all there is of the second call's arguments
                     *call, "completed"]
    final = events[-1]["response"]
    # Each event names the item that is open, and items add up to the final ones.
    for event in events:
        if "output_index" in event:
            item = final["output"][event["output_index"]]
            assert event.get("item_id", event.get("item", {}).get("id")) == item["id"]
    assert [e["item"] for e in events if e["type"] == "response.output_item.done"] == final["output"]
    assert all(item["status"] == "completed" for item in final["output"]) and final["status"] == "completed"
    deltas = "".join(e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta" and e["output_index"] == 2)
    assert json.loads(deltas) == {"city": "Bern", "days": 3}
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None


@pytest.mark.parametrize("text", ["Think and call", "Call at once", "Just talk"])
@pytest.mark.parametrize("limit", [None, 4])
def test_a_stream_says_the_same_as_a_whole_response(client, text, limit):
    request = dict(model=NAME, input=text, tools=TOOLS, max_output_tokens=limit, instructions="Be brief.", metadata={"a": "b"})
    whole = client.responses.create(**request)
    *_, last = client.responses.create(stream=True, **request)
    streamed = last.response
    unequal = {"id", "created_at", "completed_at", "output", "usage"}
    assert streamed.model_dump(exclude=unequal) == whole.model_dump(exclude=unequal)
    bare = lambda response: [item.model_dump(exclude={"id", "call_id"}) for item in response.output]
    assert bare(streamed) == bare(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    if limit:
        assert (whole.status, whole.incomplete_details.reason, last.type) == ("incomplete", "max_output_tokens", "response.incomplete")
        return
    assert whole.status == "completed" and whole.usage.output_tokens_details.reasoning_tokens > 0
    assert whole.instructions == "Be brief." and whole.metadata == {"a": "b"} and whole.error is None
    if text == "Call at once":
        assert [item.type for item in whole.output] == ["reasoning", "function_call", "function_call"], "white space alone is no item"
    if text == "Just talk":
        assert whole.output_text == "Hello there." and whole.output[0].content[0].text == "Easy."


def test_the_streaming_helper_builds_the_response(client):
    with client.responses.stream(model=NAME, input="Think and call", tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta"} <= kinds
    assert [(c.name, json.loads(c.arguments)) for c in final.output if c.type == "function_call"] == [("weather", {"city": "Bern", "days": 3}), ("ping", {})]


def test_the_conversation_goes_on_from_the_previous_response(client):
    first = client.responses.create(model=NAME, input="Just talk", instructions="Only for the first")
    second = client.responses.create(model=NAME, input="Again", previous_response_id=first.id)
    assert second.output_text == "I said hello." and second.previous_response_id == first.id and second.instructions is None
    by_hand = client.responses.create(model=NAME, input=[{"role": "user", "content": "Just talk"}, *[i.model_dump() for i in first.output],
                                                         {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Again"}]}])
    assert by_hand.output_text == second.output_text and by_hand.usage.input_tokens == second.usage.input_tokens


def test_tool_outputs_go_back_to_the_model(client):
    first = client.responses.create(model=NAME, input="Think and call", tools=TOOLS)
    call = next(item for item in first.output if item.type == "function_call")
    for output in ("sunny", [{"type": "input_text", "text": "sunny"}]):
        second = client.responses.create(model=NAME, tools=TOOLS, previous_response_id=first.id, input=[
            {"type": "function_call_output", "call_id": call.call_id, "output": output}])
        assert second.output_text == "It is sunny."


def test_responses_are_retrieved_listed_and_deleted(client):
    made = client.responses.create(model=NAME, input=[{"role": "developer", "content": "Be kind"}, {"role": "user", "content": "Just talk"}])
    assert client.responses.retrieve(made.id).model_dump() == made.model_dump()
    items = client.responses.input_items.list(made.id)
    assert [item.role for item in items.data] == ["user", "developer"] and items.data[0].content[0].text == "Just talk"
    page = client.responses.input_items.list(made.id, limit=1, order="asc")
    assert page.has_more and [item.role for item in page] == ["developer", "user"], "the client turns the pages by itself"
    client.responses.delete(made.id)
    for gone in (lambda: client.responses.retrieve(made.id), lambda: client.responses.delete(made.id),
                 lambda: client.responses.input_items.list(made.id),
                 lambda: client.responses.create(model=NAME, input="Again", previous_response_id=made.id)):
        with pytest.raises(openai.NotFoundError) as caught:
            gone()
        assert made.id in caught.value.message
    hidden = client.responses.create(model=NAME, input="Just talk", store=False)
    assert hidden.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(hidden.id)


def test_a_conversation_that_is_half_gone_is_refused_by_name(client):
    first = client.responses.create(model=NAME, input="Just talk")
    second = client.responses.create(model=NAME, input="Again", previous_response_id=first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=NAME, input="Again", previous_response_id=second.id)
    assert caught.value.param == "previous_response_id" and first.id in caught.value.message


def test_logprobs_are_those_of_the_text(client):
    got = client.responses.create(model=NAME, input="Think and call", tools=TOOLS, include=["message.output_text.logprobs"], top_logprobs=2)
    text = got.output[1].content[0]
    assert b"".join(bytes(entry.bytes) for entry in text.logprobs).decode().strip() == text.text.strip() == "Let me look."
    assert all(len(entry.top_logprobs) == 2 for entry in text.logprobs)
    streamed = raw_events_logprobs(client, dict(model=NAME, input="Think and call", tools=TOOLS, include=["message.output_text.logprobs"]))
    assert "".join(streamed).strip() == "Let me look."


def raw_events_logprobs(client, request) -> list[str]:
    return [entry.token for event in client.responses.create(stream=True, **request) if event.type == "response.output_text.delta"
            for entry in event.logprobs]


def test_a_store_in_a_file_survives_a_restart_and_forgets_the_oldest(tmp_path):
    path = str(tmp_path / "responses.db")
    flags = ("--response-store", path, "--response-store-max", "3")
    with scripted(*flags, script=SCRIPT) as server:
        made = [server.client().responses.create(model=NAME, input="Just talk") for _ in range(5)]
    assert sqlite3.connect(path).execute("SELECT count(*) FROM responses").fetchone() == (3,)
    with scripted(*flags, script=SCRIPT) as server:
        client = server.client()
        assert client.responses.retrieve(made[4].id).model_dump() == made[4].model_dump()
        assert client.responses.create(model=NAME, input="Again", previous_response_id=made[4].id).output_text == "I said hello."
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made[0].id)


def test_many_threads_write_and_read_at_once(tmp_path):
    with scripted("--response-store", str(tmp_path / "responses.db"), script=SCRIPT) as server:
        def talk(_):
            client = server.client()
            first = client.responses.create(model=NAME, input="Just talk")
            second = client.responses.create(model=NAME, input="Again", previous_response_id=first.id, stream=True)
            *_, last = second
            assert client.responses.retrieve(last.response.id).output_text == "I said hello."
            client.responses.delete(first.id)
            return last.response.id
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            ids = list(pool.map(talk, range(64)))
        assert len(set(ids)) == 64
        eventually(server.idle)


def test_without_a_store_what_needs_one_is_refused_by_name():
    with scripted("--response-store", "none", script=SCRIPT) as server:
        client = server.client()
        made = client.responses.create(model=NAME, input="Just talk")
        assert made.store is False
        for options, param in (({"store": True}, "store"), ({"previous_response_id": made.id}, "previous_response_id")):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(model=NAME, input="Again", **options)
            assert caught.value.param == param and "--response-store" in caught.value.message
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)


def test_a_store_of_another_program_is_left_alone(tmp_path):
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE secrets (x)")
    for path, words in ((str(other), "another program"), ("/nowhere/x.db", "/nowhere/x.db")):
        command = [str(conftest.SCRIPTED), str(conftest.MODEL), "--port", "0", "--response-store", path]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and "--response-store" in refused.stderr and words in refused.stderr, refused.stderr


@pytest.mark.parametrize("change, field", [
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "x"}]}]}, "input[0].content[1].type"),
    ({"input": [{"role": "user", "content": "a"}, {"type": "computer_call", "id": "x"}]}, "input[1].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
    ({"input": [{"type": "function_call", "call_id": "x", "name": "y"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "output": "y"}]}, "input[0].call_id"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b", "parameters": {}}]}, "tools[0].name"),
    ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_logprobs": 99}, "top_logprobs"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"wibble": 1}, "wibble"),
])
def test_what_is_not_obeyed_is_refused_by_its_name(client, change, field):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=NAME, **{"input": "hi"}, extra_body=change)
    assert caught.value.param == field and field in caught.value.message


def test_errors_name_what_is_wrong(client, server):
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-9", input="hi")
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model=NAME, input="word " * 5000)
    assert long.value.param == "input" and long.value.code == "context_length_exceeded"
    made = client.responses.create(model=NAME, input="Just talk")
    assert server.get(f"/v1/responses/{made.id}?stream=true").json()["error"]["param"] == "stream"
    assert server.get(f"/v1/responses/{made.id}/input_items?limit=0").json()["error"]["param"] == "limit"
    assert httpx.post(f"{server.url}/v1/responses/{made.id}/cancel").json()["error"]["param"] == "background"
    assert httpx.post(f"{server.url}/v1/responses/{made.id}").status_code == 405
    assert server.get(f"/v1/responses/{made.id}/wibble").status_code == 404


def test_the_demo_model_answers(tmp_path):
    with running() as server:
        client = server.client()
        question = "A shop sold 17 potatoes on Tuesday, 120 on Thursday and 145 on Saturday. How many potatoes did it sell in total?"
        thought = client.responses.create(model=NAME, input=question, temperature=0)
        assert [item.type for item in thought.output] == ["reasoning", "message"] and "282" in thought.output_text
        plain = client.responses.create(model=NAME, input=question, temperature=0, reasoning={"effort": "none"})
        assert [item.type for item in plain.output] == ["message"] and "282" in plain.output_text
