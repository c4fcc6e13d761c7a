"""Answers of a form that the request asks for, from a trained model at temperature 1 with speculation on, judged by Python's jsonschema.

    .venv/bin/python tests/e2e/test_structured_output.py 1000 [--url URL]     so many answers, and what came of them
"""

import argparse
import collections
import concurrent.futures
import json
import re

import conftest
import httpx
import jsonschema
import pytest

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "height": {"type": "number", "minimum": 0.3, "exclusiveMaximum": 2.8},
        "colour": {"enum": ["red", "green", "blue"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 3},
        "email": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
    },
    "required": ["name", "age", "colour", "email"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
    "required": ["value"],
    "additionalProperties": False,
}
SCHEMAS = {
    "person": PERSON,
    "tree": TREE,
    "numbers": {"type": "array", "items": {"type": "number", "minimum": -1, "maximum": 1}, "minItems": 2, "maxItems": 5},
    "date": {"type": "object", "properties": {"on": {"type": "string", "format": "date"}}, "required": ["on"], "additionalProperties": False},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 3},
    "either": {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "of": {"type": t}}, "required": ["kind", "of"], "additionalProperties": False}
                         for k, t in (("a", "string"), ("b", "boolean"))]},
}
TOOLS = [
    {"type": "function", "function": {"name": "save_person", "parameters": PERSON}},
    {"type": "function", "function": {"name": "list.all-of:them", "parameters": {"type": "object", "properties": {}}}},
]
CHECK = jsonschema.FormatChecker()


def ask(url: str, number: int, **fields) -> dict:
    body = {
        "model": conftest.NAME,
        "messages": [{"role": "user", "content": f"Tell me about number {number}."}],
        "temperature": 1,
        "seed": number,
        "max_tokens": 220,
        "chat_template_kwargs": {"enable_thinking": False},
        **fields,
    }
    response = httpx.post(url + "/v1/chat/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def schema_format(name: str) -> dict:
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": SCHEMAS[name]}}


def judge(url: str, number: int) -> tuple[str, str]:
    """(kind of answer, what came of it) of answer `number`: "valid", "length", or what is wrong."""
    kinds = [*SCHEMAS, "json_object", "tools", "reasoning"]
    kind = kinds[number % len(kinds)]
    try:
        if kind == "json_object":
            choice = ask(url, number, response_format={"type": "json_object"})
        elif kind == "tools":
            choice = ask(url, number, tools=TOOLS, tool_choice="required")
        elif kind == "reasoning":
            choice = ask(url, number, response_format=schema_format("date"), chat_template_kwargs={"enable_thinking": True}, thinking_budget=40)
        else:
            choice = ask(url, number, response_format=schema_format(kind))
        if choice["finish_reason"] == "length":
            return kind, "length"
        message = choice["message"]
        if kind == "tools":
            assert choice["finish_reason"] == "tool_calls" and message["tool_calls"] and not message["content"], choice
            for call in message["tool_calls"]:
                schema = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == call["function"]["name"])
                jsonschema.validate(json.loads(call["function"]["arguments"]), schema, format_checker=CHECK)
        else:
            value = json.loads(message["content"])
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(value, {"type": "object"} if kind == "json_object" else SCHEMAS["date" if kind == "reasoning" else kind], format_checker=CHECK)
        return kind, "valid"
    except Exception as error:  # noqa: BLE001  each answer is counted, whatever became of it
        return kind, f"{type(error).__name__}: {str(error)[:300]}"


def many(url: str, count: int, at_once: int = 8) -> dict[str, collections.Counter]:
    found = collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for kind, what in pool.map(lambda number: judge(url, number), range(count)):
            found[kind][what] += 1
    return found


@pytest.fixture(scope="module")
def server():
    with conftest.running("--request-log", "/dev/null") as running:
        yield running


def test_every_answer_of_a_form_is_valid_or_cut_by_its_length(server):
    found = many(server.url, 72)
    wrong = {kind: counts for kind, counts in found.items() if set(counts) - {"valid", "length"}}
    assert not wrong
    assert sum(counts["valid"] for counts in found.values()) >= 18, found


# vLLM 48095, SGLang 13514: forced calls were text, or never ended.
def test_a_required_call_is_a_call_in_the_models_own_format(server):
    tool = [TOOLS[1]]
    for choice in ("required", {"type": "function", "function": {"name": "list.all-of:them"}}):
        answer = ask(server.url, 1, temperature=0, tools=tool, tool_choice=choice, parallel_tool_calls=False)
        assert [c["function"]["name"] for c in answer["message"]["tool_calls"]] == ["list.all-of:them"]
        assert json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"]) == {}
        assert not answer["message"]["content"]


def test_speculation_does_not_change_what_is_answered(server):
    with conftest.running("--request-log", "/dev/null", "--speculative-algorithm", "none") as plain:
        for number in range(4):
            for fields in ({"response_format": schema_format("person")}, {"tools": TOOLS, "tool_choice": "required"}):
                with_drafts, without = (ask(s.url, number, temperature=0, **fields)["message"] for s in (server, plain))
                assert with_drafts["content"] == without["content"]
                calls = [[c["function"] for c in m.get("tool_calls") or []] for m in (with_drafts, without)]
                assert calls[0] == calls[1]


# vLLM 36138: the grammar was not applied to drafts behind </think> in the same step.
def test_reasoning_comes_first_and_the_document_is_whole(server):
    for number in range(3):
        answer = ask(server.url, number, temperature=0, response_format=schema_format("date"), chat_template_kwargs={"enable_thinking": True},
                     thinking_budget=30)
        assert answer["message"].get("reasoning_content")
        jsonschema.validate(json.loads(answer["message"]["content"]), SCHEMAS["date"], format_checker=CHECK)


def test_thirty_at_once_with_random_draws_all_end(server):
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda n: ask(server.url, n, response_format={"type": "json_object"}, max_tokens=40, temperature=1.5), range(30)))
    assert {a["finish_reason"] for a in answers} <= {"stop", "length"}


@pytest.mark.parametrize(
    "schema, place",
    [
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, r"schema\.properties\.a\.uniqueItems"),
        ({"$ref": "#/$defs/none"}, r"schema\.\$ref"),
        ({"type": "strin"}, r"schema\.type"),
        ({"type": "string", "pattern": "(?=a)"}, r"schema\.pattern"),
    ],
)
def test_a_schema_that_no_grammar_holds_is_refused_by_its_place(server, schema, place):
    body = {"model": conftest.NAME, "messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert re.search(place, error["param"] or "") and re.search(place, error["message"]), error


def test_a_tool_with_a_keyword_that_is_not_supported_is_served(server):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "propertyNames": {"pattern": "^a"}}}}
    answer = ask(server.url, 5, temperature=0, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert isinstance(json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"])["a"], bool)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("count", type=int)
    options.add_argument("--url", help="of a running server; else one is started")
    chosen = options.parse_args()
    if chosen.url:
        result = many(chosen.url, chosen.count)
    else:
        with conftest.running("--request-log", "/dev/null") as started:
            result = many(started.url, chosen.count)
    for answer_kind, results in sorted(result.items()):
        print(f"{answer_kind:12} {dict(results)}")
    total = sum(result.values(), collections.Counter())
    print(f"of {chosen.count}: {dict(total)}")
    raise SystemExit(bool(set(total) - {"valid", "length"}))
