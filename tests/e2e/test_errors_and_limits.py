"""Bad input gets a clear error that names the field; the server goes on. Cancels, limits, keys, signals."""

import json
import re
import signal
import socket
import threading
import time

import httpx
import openai
import pytest
from conftest import NAME, BINARY, eventually, question, running, scrape, total

CHAT = {"model": NAME, "messages": question("Hello!"), "max_tokens": 4}


def alive(http):
    assert http.get("/health").status_code == 200
    assert http.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize("change, param", [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"seed": "x"}, "seed"),
    ({"stop": [1]}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"logit_bias": {"191222": -100}}, "logit_bias"),
    ({"logit_bias": {"7": 101}}, "logit_bias"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": "1"}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"speculative": {"num_steps": 9}}, "speculative"),
    ({"speculative": {"depth": 2}}, "speculative"),
    ({"logprobs": "yes"}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": "hi"}, "messages"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"a_field_nobody_knows": 1}, "a_field_nobody_knows"),
])
def test_a_bad_field_is_a_400_with_its_name(http, change, param):
    response = http.post("/v1/chat/completions", json={**CHAT, **change})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error" and error["message"]


def test_the_openai_client_gets_its_own_error_types(server):
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(model=NAME, messages=question("x"), temperature=-2)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        server.client().chat.completions.create(model="no-such-model", messages=question("x"))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nul", b'{"model": "x"} trailing', b"[" * 100_000, b'{"messages": "\xff"}', b'"text"'])
def test_a_body_that_is_not_a_request_is_refused(http, body):
    response = http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["message"]
    alive(http)


def test_unknown_paths_and_methods(http):
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/v1/chat/completions").status_code == 405
    assert http.get("/v1/nothing").json()["error"]["message"]


def test_a_prompt_over_the_context_length_is_told_both_numbers(http):
    response = http.post("/v1/completions", json={"model": NAME, "prompt": "word " * 20_000, "max_tokens": 1})
    assert response.status_code == 400
    assert "8192" in response.json()["error"]["message"], response.text
    alive(http)


def test_a_huge_body_is_refused_and_the_server_lives(http):
    response = http.post("/v1/chat/completions", json={**CHAT, "messages": question("x" * (80 << 20))})
    assert response.status_code == 413
    alive(http)


@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-4, 1])
def test_tiny_temperatures_give_text_and_not_nan(http, temperature):
    response = http.post("/v1/chat/completions", json={**CHAT, "temperature": temperature, "seed": 1, "ignore_eos": True,
                                                           "chat_template_kwargs": {"enable_thinking": False}})
    assert response.status_code == 200 and response.json()["choices"][0]["message"]["content"]


def test_all_end_of_sequence_ids_stop_and_are_not_shown(http):
    answer = http.post("/v1/chat/completions", json={"model": NAME, "messages": question("What is 37 + 58?"), "temperature": 0, "max_tokens": 200}).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop" and "<|" not in json.dumps(choice)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_the_engine(server, http, stream):
    """The request would run for seconds; after the client has gone a new one must find the engine idle."""
    def aborted():
        return total(scrape(server), "vllm:request_success_total", finished_reason="abort")

    def drawn():
        return total(scrape(server), "vllm:generation_tokens_total")

    eventually(server.idle)
    before = aborted()
    body = json.dumps({"model": NAME, "prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        eventually(lambda: http.get("/health").json()["running"] == 1, what=lambda: "the request never ran")
        drawn_before = drawn()
    eventually(lambda: aborted() == before + 1, what=lambda: "the abandoned request still runs")
    eventually(server.idle)
    assert drawn() - drawn_before < 1000, "the server was late to see that the client had gone"


def test_two_hundred_short_requests_at_once_all_end(server):
    codes = []
    lock = threading.Lock()

    def run(i):
        with httpx.Client(base_url=server.url, timeout=120) as c:
            code = c.post("/v1/completions", json={"model": NAME, "prompt": f"{i} is", "max_tokens": 3}).status_code
        with lock:
            codes.append(code)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(200)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert codes.count(200) + codes.count(429) == 200 and codes.count(200) > 0


def test_api_key_is_asked_for_and_checked():
    with running("--api-key", "secret") as server:
        assert httpx.get(server.url + "/health").status_code == 200
        assert httpx.get(server.url + "/v1/models").status_code == 401
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        assert server.client(api_key="secret").models.list().data[0].id == NAME


def test_sigterm_ends_running_streams_with_a_finish_or_an_error():
    with running() as server:
        lines = []

        def read():
            with httpx.Client(timeout=60) as c, c.stream("POST", server.url + "/v1/completions", json={
                    "model": NAME, "prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}) as response:
                lines.extend(line for line in response.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        eventually(lambda: lines, 30)
        started = time.monotonic()
        assert server.stop(signal.SIGTERM, seconds=60) == 0
        reader.join(10)
        assert not reader.is_alive()
        assert lines and lines[-1] == "data: [DONE]", lines[-3:]
        assert time.monotonic() - started < 45


@pytest.mark.parametrize("flags, word", [(["--tp", "8"], "--tp"), (["--dp", "0"], "--dp"), (["--schedule-policy", "random"], "--schedule-policy"), (["--kv-cache-dtype", "int4"], "kv-cache-dtype"),
                                         (["--context-length", "99999999"], "context-length"), (["--no-such-flag"], "no-such-flag")])
def test_a_flag_that_cannot_be_honoured_is_refused_by_name(flags, word):
    import subprocess
    from conftest import MODEL
    done = subprocess.run([str(BINARY), "serve", str(MODEL), "--port", "0", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and word in done.stderr + done.stdout, done.stderr


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_ds_mla", "f32"])
def test_other_cache_types_answer_too(dtype):
    with running("--kv-cache-dtype", dtype, "--chunked-prefill-size", "7", "--page-size", "16") as server:
        answer = server.client().chat.completions.create(model=NAME, messages=question("What is 37 + 58?"), temperature=0, max_tokens=200)
        assert "95" in answer.choices[0].message.content


def test_the_memory_plan_is_told_at_start_and_adds_up():
    with running("--max-total-tokens", "4096") as server:
        log = server.log()

    def gib(pattern):
        return float(re.search(pattern + r"(?:\d+ x )?([\d.]+) GiB", log)[1])

    free = gib(r"memory of .*, ")
    taken = [gib(name + r" +") for name in ("workspace", "graphs and driver", "KV cache", "reserve") if f"  {name} " in log]
    weights = gib(r"  weights +")
    if "mapped from the file" not in log:
        taken.append(weights)
    assert weights > 0 and abs(sum(taken) - free) < 0.01 * len(taken), log
    assert re.search(r"KV cache .*: 64 pages of 64 tokens, \d+ bytes a token", log), log


def test_a_cache_that_does_not_fit_is_refused_with_the_numbers_and_the_flag():
    import subprocess
    from conftest import MODEL
    done = subprocess.run([str(BINARY), "serve", str(MODEL), "--port", "0", "--max-total-tokens", "2000000000"], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert all(word in done.stderr for word in ("no memory for a KV cache of 2000000000 tokens", "GiB", "lower --max-total-tokens")), done.stderr
