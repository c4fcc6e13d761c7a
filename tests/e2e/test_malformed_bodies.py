"""Sixty bodies that are wrong, or look it: each gets a 400 that names what is at fault, or the result that is written here; and the request
right behind it, on the same connection, is answered. docs/reliability.md lists them."""

import http.client
import json

import pytest
from conftest import NAME

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]
BASE = {CHAT: {"model": NAME, "messages": HI, "max_tokens": 2}, TEXT: {"model": NAME, "prompt": "Hi", "max_tokens": 2}}


def deep(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + closing * depth


def text(**change) -> tuple[str, str]:
    return TEXT, json.dumps({**BASE[TEXT], **change})


def chat(**change) -> tuple[str, str]:
    return CHAT, json.dumps({**BASE[CHAT], **change})


def raw(path: str, **change) -> tuple[str, str]:
    """Fields whose values are JSON text as it is: what json.dumps would not write."""
    fields = {name: json.dumps(value) for name, value in BASE[path].items()} | change
    return path, "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


# (what it is, path and body, status, param: None where the body as a whole is at fault)
BODIES = [
    # not JSON, or not an object
    ("an empty body", (CHAT, ""), 400, None),
    ("white space alone", (CHAT, "  \n"), 400, None),
    ("cut in the middle", (CHAT, json.dumps(BASE[CHAT])[:-5]), 400, None),
    ("something behind the object", (CHAT, json.dumps(BASE[CHAT]) + "x"), 400, None),
    ("two objects", (TEXT, json.dumps(BASE[TEXT]) * 2), 400, None),
    ("a list", (CHAT, "[]"), 400, None),
    ("a string", (CHAT, '"hi"'), 400, None),
    ("null", (TEXT, "null"), 400, None),
    ("single quotes", (TEXT, "{'prompt': 'Hi'}"), 400, None),
    ("a trailing comma", (TEXT, '{"prompt": "Hi",}'), 400, None),
    ("a comment", (TEXT, '{"prompt": "Hi" /* x */}'), 400, None),
    ("invalid UTF-8", (TEXT, b'{"prompt": "\xff\xfe"}'), 400, None),
    ("UTF-8 cut in a character", (TEXT, b'{"prompt": "\xf0\x9f\x99"}'), 400, None),
    ("a zero byte", (TEXT, b'{"prompt": "a\x00b"}'), 400, None),
    ("a lone surrogate", (TEXT, '{"prompt": "\\ud800"}'), 400, None),
    ("a control character in a string", (TEXT, '{"prompt": "a\x01b"}'), 400, None),
    ("ten thousand brackets", (CHAT, deep(10_000)), 400, None),
    ("ten thousand objects", (CHAT, deep(10_000, '{"a":', "}")), 400, None),
    ("a deep field", raw(CHAT, metadata='{"a": ' + deep(5_000) + "}"), 400, None),
    ("form encoding", (TEXT, "prompt=Hi&max_tokens=2"), 400, None),
    # numbers
    ("NaN", raw(TEXT, temperature="NaN"), 400, None),
    ("Infinity", raw(TEXT, temperature="Infinity"), 400, None),
    ("a number over doubles", raw(TEXT, temperature="1e999"), 400, None),
    ("temperature -1", text(temperature=-1), 400, "temperature"),
    ("temperature as text", text(temperature="1"), 400, "temperature"),
    ("temperature 101", text(temperature=101), 400, "temperature"),
    ("temperature 1e-8 is greedy", text(temperature=1e-8), 200, None),
    ("top_p 0", text(top_p=0), 400, "top_p"),
    ("top_p 1e-30 is the likeliest token", text(top_p=1e-30), 200, None),
    ("top_k -2", text(top_k=-2), 400, "top_k"),
    ("top_k 10**30", text(top_k=10**30), 400, "top_k"),
    ("min_p 1.1", text(min_p=1.1), 400, "min_p"),
    ("n 0", text(n=0), 400, "n"),
    ("n 10**9", text(n=10**9), 400, "n"),
    ("n 1.0", raw(TEXT, n="1.0"), 400, "n"),
    ("max_tokens 0", chat(max_tokens=0), 400, "max_tokens"),
    ("max_tokens -1", text(max_tokens=-1), 400, "max_tokens"),
    ("max_tokens 2**40", text(max_tokens=2**40), 400, "max_tokens"),
    ("max_tokens over the context", text(max_tokens=100_000, stop="a", temperature=0), 200, None),
    ("seed 2**64", text(seed=2**64), 400, "seed"),
    ("seed -1 is a seed", text(seed=-1), 200, None),
    ("seed null is none", text(seed=None), 200, None),
    ("logprobs 1000", text(logprobs=1000), 400, "logprobs"),
    ("repetition_penalty 0", text(repetition_penalty=0), 400, "repetition_penalty"),
    # token ids
    ("a prompt token beyond the vocabulary", text(prompt=[10**6]), 400, "prompt"),
    ("a negative prompt token", text(prompt=[1, -1]), 400, "prompt"),
    ("a prompt token of 2**70", text(prompt=[2**70]), 400, "prompt"),
    ("a prompt token 1.5", text(prompt=[1.5]), 400, "prompt"),
    ("an id that has no token", text(prompt=[6143]), 200, None),
    ("a bias beyond the vocabulary", text(logit_bias={"191222": -100}), 400, "logit_bias"),
    ("a bias of a word", text(logit_bias={"the": 1}), 400, "logit_bias"),
    ("a stop token beyond the vocabulary", text(stop_token_ids=[6144]), 400, "stop_token_ids"),
    # shapes
    ("no prompt", (TEXT, "{}"), 400, "prompt"),
    ("an empty prompt", text(prompt=""), 400, "prompt"),
    ("prompts of two kinds", text(prompt=["a", [1]]), 400, "prompt"),
    ("an empty list of messages", chat(messages=[]), 400, "messages"),
    ("a message that is a string", chat(messages=["Hi"]), 400, "messages[0]"),
    ("content that is a number", chat(messages=[{"role": "user", "content": 5}]), 400, "messages[0].content"),
    ("a tool without a function", chat(tools=[{"type": "function"}]), 400, "tools[0].function"),
    ("a tool schema that is a list", chat(tools=[{"type": "function", "function": {"name": "a", "parameters": []}}]), 400, "tools[0].function.parameters"),
    ("the last of two equal keys counts", raw(TEXT, **{"temperature": '-5, "temperature": 0'}), 200, None),
    ("a stop that is empty", text(stop=""), 400, "stop"),
    ("a prompt of 10 MB", text(prompt="word " * 2_000_000), 400, "prompt"),
    ("a message of 10 MB", chat(messages=[{"role": "user", "content": "word " * 2_000_000}]), 400, "messages"),
    ("a key of 1 MB", (TEXT, json.dumps({**BASE[TEXT], "k" * 1_000_000: 1})), 400, None),
    # Each key was once compared with all before it: these would take ten minutes, not the connection's one.
    ("metadata of 300,000 keys", chat(metadata=dict.fromkeys(map(str, range(300_000)), "x")), 200, None),
    ("300,000 fields that nobody knows", text(**dict.fromkeys(map("f{}".format, range(300_000)), 1)), 400, "f0"),
    ("a field that nobody knows", text(frobnicate=True), 400, "frobnicate"),
    ("stream_options without a stream", text(stream_options={"include_usage": True}), 400, "stream_options"),
]


def test_there_are_sixty():
    assert len(BODIES) >= 60 and len({name for name, *_ in BODIES}) == len(BODIES)


@pytest.mark.parametrize("name, request_, status, param", BODIES, ids=[name for name, *_ in BODIES])
def test_a_malformed_body_is_refused_and_the_next_one_answered(server, name, request_, status, param):
    path, body = request_
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass"), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status == status, answer
    if status == 400:
        error = answer["error"]
        assert error["type"] == "invalid_request_error" and error["message"] and len(error["message"]) < 2_000
        if param is not None:
            assert error["param"] == param, error
    else:
        assert len(answer["choices"]) == 1
    connection.request("POST", CHAT, json.dumps(BASE[CHAT]), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()
