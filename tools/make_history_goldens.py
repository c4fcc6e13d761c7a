"""Writes tests/golden/chat_template/history_shapes.json: histories in the shapes that clients send, and what the demo model's template makes
of them in Jinja2. Run from the repository's root: .venv/bin/python tools/make_history_goldens.py (needs jinja2)."""

import json
import pathlib

from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parents[1]
USER = {"role": "user", "content": "Weather?"}


def call(arguments, name="get_weather"):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(**message):
    return [USER, {"role": "assistant", **message}]


def after_call(*results):
    return turn(content=None, tool_calls=[call('{"city": "Bern"}')]) + list(results)


SHAPES = {
    "content is a string": [USER],
    "content is a list": [{"role": "user", "content": [{"type": "text", "text": "Wea"}, {"type": "text", "text": "ther?"}]}],
    "content is an empty list": [{"role": "user", "content": []}],
    "content is null": turn(content=None, tool_calls=[call("{}", "ping")]),
    "arguments are a string": turn(content="", tool_calls=[call('{"city": "Bern", "days": 3, "opt": {"a": true}, "none": null}')]),
    "arguments are an object": turn(content="", tool_calls=[call({"city": "Bern", "days": 3})]),
    "arguments keep their order": turn(content="", tool_calls=[call('{"z": 1, "a": "x", "m": [1, 2.5]}')]),
    "arguments are empty text": turn(content="", tool_calls=[call("", "ping")]),
    "no tool calls": turn(content="Sunny.", tool_calls=[]),
    "several tool calls": turn(content="Let me look.", tool_calls=[call('{"city": "Bern"}'), call("{}", "ping")]),
    "tool result is a string": after_call({"role": "tool", "tool_call_id": "c1", "content": "15C"}),
    "tool result is a list": after_call({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "15C"}]}),
    "two tool results": after_call({"role": "tool", "content": "15C"}, {"role": "tool", "content": "pong"}),
    "reasoning is kept after the last user message": turn(content="", reasoning_content="Hm.", tool_calls=[call("{}", "ping")]),
    "reasoning in the content": turn(content="<think>Hm.</think>Sunny."),
    "an earlier turn's reasoning is dropped": turn(content="Sunny.", reasoning_content="Hm.") + [USER],
    "text beyond ASCII": turn(content="", tool_calls=[call('{"city": "Z\u00fcrich \U0001f642", "tags": ["\u6771\u4eac"]}')]),
    "developer": [{"role": "developer", "content": "Be brief."}, USER],
}


def reference(messages):
    """What the documentation asks of a client before it renders: developer is system, arguments are an object."""
    clean = json.loads(json.dumps(messages))
    for message in clean:
        if message["role"] == "developer":
            message["role"] = "system"
        for item in message.get("tool_calls") or []:
            arguments = item["function"]["arguments"]
            item["function"]["arguments"] = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    return clean


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    environment.filters["tojson"] = lambda value, ensure_ascii=True: json.dumps(value, ensure_ascii=ensure_ascii)
    template = environment.from_string((ROOT / "models/demo/chat_template.jinja").read_text())
    goldens = [{"name": name, "messages": messages, "rendered": template.render(messages=reference(messages), add_generation_prompt=True)}
               for name, messages in SHAPES.items()]
    text = json.dumps(goldens, ensure_ascii=False, indent=1)
    (ROOT / "tests/golden/chat_template/history_shapes.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
