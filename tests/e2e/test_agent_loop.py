"""Agents that call tools, turn after turn, through the real clients of three dialects: the next prompt holds the very tokens that were sampled,
so that all of the conversation is found in the prefix cache (bug D6: each turn is prefilled again, since the client's echo differs)."""

import json

import anthropic
import pytest
from conftest import NAME, scripted

PAGE = 16
TURNS = 6
FLAGS = ("--page-size", str(PAGE), "--context-length", "8192")
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "depth": {"type": "number"}, "options": {"type": "object"}}}


def answer(turn: int) -> list[str]:
    """What the model says in a turn: nothing here is spelled as the chat template would spell it. Each text is tokenized on its own, so that
    the tokens are not those of the whole text either."""
    if turn == TURNS:
        return ["I have seen", " all of it", ".</think>", "\n\nIt is", " done", ".\n"]
    return [f"Step {turn}", ": I lo", "ok at it.", "\n</think>", "\n\nNow the", " next", " one.\n",
            f"<tool_call>look\n<arg_key>path</arg_key>\n<arg_value>/srv/{turn}</arg_value>\n<arg_key>depth</arg_key><arg_value>1.0</arg_value>",
            '<arg_key>options</arg_key><arg_value>{"z":1,"a":[1,2]}</arg_value>\n</tool_call>\n', "\n<tool_call>ping</tool_call>\n"]


def result(turn: int) -> str:
    return f"result number {turn} of the look: " + "many words of a tool " * 4


# The last result in the prompt says which turn it is.
SCRIPT = [{"when": "<|user|>Thank you", "say": ["You are", " welcome", "."]}]
SCRIPT += [{"when": f"result number {turn} of", "say": answer(turn + 1)} for turn in reversed(range(1, TURNS))]
SCRIPT += [{"when": "Begin", "say": answer(1)}]
BEGIN = "Begin the work on all the folders of this server, please."


@pytest.fixture(scope="module")
def server():
    with scripted(*FLAGS, script=SCRIPT) as s:
        yield s


def begin(test: str) -> str:
    """The first question, of this test alone: no other test has its prompt in the cache."""
    return f"{test}. {BEGIN}"


def expected(prompt_tokens: int, completion_tokens: int) -> int:
    """Tokens that the next prompt finds: all of both but the stop token, in whole pages."""
    return (prompt_tokens + completion_tokens - 1) // PAGE * PAGE


def check(usages: list[tuple[int, int, int]]):
    """(prompt, completion, cached) of each turn."""
    found = [cached for _, _, cached in usages[1:]]
    assert found == [expected(prompt, completion) for prompt, completion, _ in usages[:-1]], usages


def chat_usage(usage) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens


CHAT_TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS if name == "look" else {"type": "object"}}}
              for name in ("look", "ping")]


@pytest.mark.parametrize("echo", ["all of it", "no reasoning", "sorted arguments", "trimmed"])
def test_chat_turns_are_found_whole(server, echo):
    client = server.client()
    messages = [{"role": "user", "content": begin(f"chat, {echo}")}]
    usages = []
    for turn in range(1, TURNS + 1):
        got = client.chat.completions.create(model=NAME, messages=messages, tools=CHAT_TOOLS, temperature=0)
        usages.append(chat_usage(got.usage))
        message = got.choices[0].message.model_dump(exclude_none=True)
        assert len(message.get("tool_calls", [])) == (2 if turn < TURNS else 0), message
        if echo == "no reasoning":
            del message["reasoning_content"]
        if echo == "trimmed":
            message = {**message, "content": message["content"].strip(), "reasoning_content": message["reasoning_content"].strip()}
        if echo == "sorted arguments":
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True)
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": result(turn)} for call in message.get("tool_calls", [])]
    check(usages)


def test_a_streamed_chat_with_kept_thinking_is_found_whole_by_the_next_question(server):
    client = server.client()
    messages = [{"role": "user", "content": begin("chat, streamed")}]
    options = dict(model=NAME, tools=CHAT_TOOLS, temperature=0, stream=True, stream_options={"include_usage": True},
                   extra_body={"chat_template_kwargs": {"clear_thinking": False}})
    usages = []
    for turn in range(1, TURNS + 2):
        message = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
        for chunk in client.chat.completions.create(messages=messages, **options):
            if chunk.usage:
                usages.append(chat_usage(chunk.usage))
            for choice in chunk.choices:
                message["content"] += choice.delta.content or ""
                message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or []:
                    if call.id:
                        message["tool_calls"].append({"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": ""}})
                    message["tool_calls"][-1]["function"]["arguments"] += call.function.arguments or ""
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": result(turn)} for call in message["tool_calls"]]
        if turn == TURNS:
            assert message["content"].strip() == "It is done."
            messages.append({"role": "user", "content": "Thank you"})
    check(usages)
    assert len(usages) == TURNS + 1


@pytest.mark.parametrize("change", ["name", "arguments", "content", "reasoning"])
def test_what_the_client_changed_is_what_the_model_reads(server, change):
    """Nothing is put back that the client no longer says: its next prompt is that of the template."""
    client = server.client()
    messages = [{"role": "user", "content": begin(f"changed {change}")}]
    first = client.chat.completions.create(model=NAME, messages=messages, tools=CHAT_TOOLS, temperature=0)
    message = first.choices[0].message.model_dump(exclude_none=True)
    function = message["tool_calls"][0]["function"]
    if change == "name":
        function["name"] = "ping"
    if change == "arguments":
        function["arguments"] = json.dumps({"path": "/etc/passwd"})
    if change == "content":
        message["content"] = "Something else"
    if change == "reasoning":
        message["reasoning_content"] = "No reason"
    messages += [message] + [{"role": "tool", "tool_call_id": call["id"], "content": result(1)} for call in message["tool_calls"]]
    second = client.chat.completions.create(model=NAME, messages=messages, tools=CHAT_TOOLS, temperature=0)
    prompt, completion, _ = chat_usage(first.usage)
    assert chat_usage(second.usage)[2] < expected(prompt, completion)


RESPONSES_TOOLS = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]


@pytest.mark.parametrize("way", ["items", "stored", "streamed", "items without reasoning"])
def test_responses_turns_are_found_whole(server, way):
    client = server.client()
    items = [{"role": "user", "content": begin(f"responses, {way}")}]
    previous, usages = None, []
    for turn in range(1, TURNS + 1):
        request = dict(model=NAME, input=items, tools=RESPONSES_TOOLS, temperature=0, previous_response_id=previous)
        if way == "streamed":
            with client.responses.stream(**request) as stream:
                stream.until_done()
                got = stream.get_final_response()
        else:
            got = client.responses.create(**request)
        usages.append((got.usage.input_tokens, got.usage.output_tokens, got.usage.input_tokens_details.cached_tokens))
        calls = [item for item in got.output if item.type == "function_call"]
        assert [item.type for item in got.output] == ["reasoning", "message"] + ["function_call"] * len(calls)
        assert len(calls) == (2 if turn < TURNS else 0)
        outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": result(turn)} for call in calls]
        if way == "stored":
            items, previous = outputs, got.id
        else:
            items += [item.model_dump(exclude_none=True) for item in got.output if "without" not in way or item.type != "reasoning"] + outputs
    check(usages)


MESSAGES_TOOLS = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in RESPONSES_TOOLS]


@pytest.mark.parametrize("way", ["whole", "streamed", "no thinking sent back"])
def test_messages_turns_are_found_whole(server, way):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": begin(f"messages, {way}")}]
    usages = []
    for turn in range(1, TURNS + 1):
        request = dict(model=NAME, max_tokens=4000, messages=messages, tools=MESSAGES_TOOLS, thinking={"type": "adaptive"})
        if way == "streamed":
            with client.messages.stream(**request) as stream:
                got = stream.get_final_message()
        else:
            got = client.messages.create(**request)
        usages.append((got.usage.input_tokens + got.usage.cache_read_input_tokens, got.usage.output_tokens, got.usage.cache_read_input_tokens))
        calls = [block for block in got.content if block.type == "tool_use"]
        assert [block.type for block in got.content] == ["thinking", "text"] + ["tool_use"] * len(calls)
        assert len(calls) == (2 if turn < TURNS else 0)
        sent = [block for block in got.content if way != "no thinking sent back" or block.type != "thinking"]
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True, exclude={"parsed_output", "caller"}) for block in sent]})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result(turn)} for call in calls]})
    check(usages)


def test_messages_keep_all_thinking_when_asked_as_claude_code_does(server):
    """context_management with clear_thinking_20251015 and keep "all": the turns before a new question are found with their thinking."""
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": begin("messages, kept")}]
    usages = []
    for turn in range(1, TURNS + 2):
        got = client.beta.messages.create(
            model=NAME, max_tokens=4000, messages=messages, tools=MESSAGES_TOOLS, thinking={"type": "adaptive"},
            betas=["context-management-2025-06-27"], context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
        usages.append((got.usage.input_tokens + got.usage.cache_read_input_tokens, got.usage.output_tokens, got.usage.cache_read_input_tokens))
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True, exclude={"caller"}) for block in got.content]})
        calls = [block for block in got.content if block.type == "tool_use"]
        if calls:
            messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result(turn)} for call in calls]})
        else:
            messages.append({"role": "user", "content": "Thank you"})
    check(usages)
    assert len(usages) == TURNS + 1
