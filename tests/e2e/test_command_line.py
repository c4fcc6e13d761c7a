"""The other subcommands, as a user runs them: output on standard output alone, errors by name, exit status."""

import json
import os
import pty
import select
import subprocess

import pytest
from conftest import BINARY, MODEL, eventually


def ingot(*args, stdin=None, timeout=120):
    return subprocess.run([str(BINARY), *args], capture_output=True, text=True, input=stdin, timeout=timeout)


def test_generate_prints_the_answer_alone_and_figures_last():
    done = ingot("generate", str(MODEL), "--prompt", "What is 37 + 58?", "--temperature", "0", "--max-tokens", "200")
    assert done.returncode == 0, done.stderr
    assert "95" in done.stdout and "tok/s" not in done.stdout and "<|" not in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "prompt" in last and "prefill" in last and "decode" in last and last.count("tok/s") == 2, last


def test_generate_raw_continues_plain_text_and_a_seed_repeats_it():
    args = ("generate", str(MODEL), "--raw", "--prompt", "Once upon a time", "--max-tokens", "20", "--seed", "7")
    first, second = ingot(*args), ingot(*args)
    assert first.returncode == 0 and first.stdout.strip() and first.stdout == second.stdout


def test_generate_stops_at_a_stop_string():
    done = ingot("generate", str(MODEL), "--prompt", "What is 37 + 58?", "--temperature", "0", "--stop", "=")
    assert done.returncode == 0 and "=" not in done.stdout


@pytest.mark.parametrize("args, word", [
    (("generate", "/nonexistent", "--prompt", "x"), "/nonexistent"),
    (("generate", str(MODEL), "--prompt", "x", "--temperature", "-1"), "temperature"),
    (("inspect", "/nonexistent"), "/nonexistent"),
    (("serve", "/nonexistent"), "/nonexistent"),
])
def test_bad_input_is_named_and_the_status_is_not_zero(args, word):
    done = ingot(*args)
    assert done.returncode != 0 and word in done.stderr, done.stderr


def test_inspect_knows_the_demo_model():
    done = ingot("inspect", str(MODEL), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "23920656" in json.dumps(report) and "GlmMoeDsaForCausalLM" in json.dumps(report)
    text = ingot("inspect", str(MODEL)).stdout
    assert "GlmMoeDsaForCausalLM" in text and "bf16" in text.lower()


def test_chat_holds_a_conversation_on_a_pipe():
    done = ingot("chat", str(MODEL), "--temperature", "0", stdin="What is 37 + 58?\n/exit\n")
    assert done.returncode == 0, done.stderr
    assert "95" in done.stdout


def test_chat_on_a_terminal_ends_with_control_d():
    leader, follower = pty.openpty()
    process = subprocess.Popen([str(BINARY), "chat", str(MODEL), "--temperature", "0"], stdin=follower, stdout=follower, stderr=subprocess.DEVNULL)
    os.close(follower)
    seen = b""

    def shows(text):
        nonlocal seen
        if select.select([leader], [], [], 0)[0]:
            seen += os.read(leader, 4096)
        return text in seen

    try:
        eventually(lambda: shows(b"> "), 60, lambda: seen)
        os.write(leader, b"What is 37 + 58?\n")
        eventually(lambda: shows(b"95"), 60, lambda: seen)
        os.write(leader, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(leader)
