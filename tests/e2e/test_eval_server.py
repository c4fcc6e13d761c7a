"""`ingot eval gsm8k|gpqa|bfcl|demo` against servers: what is asked, how it is scored, that a broken run goes on, that a bad one says why."""

import contextlib
import hashlib
import http.server
import json
import re
import subprocess
import threading

import pytest
from conftest import BINARY, MODEL, ROOT, cases, eventually

TAU2 = ROOT.parent / "shared" / "data" / "eval" / "tau2"


def ingot_eval(*args, timeout=300):
    return subprocess.run([str(BINARY), "eval", *map(str, args)], capture_output=True, text=True, timeout=timeout)


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class Fake:
    """A server of OpenAI's API that answers with `reply(path, body)`: a string, a dict (a choice), or a (status, body) pair."""

    def __init__(self, reply, models=("fake",)):
        self.requests, self.lock, outer = [], threading.Lock(), self
        self.in_flight = self.most_in_flight = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def send(self, status, body):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.send(200, {"object": "list", "data": [{"id": name} for name in models]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.requests.append((self.path, body, self.headers.get("Authorization")))
                    outer.in_flight += 1
                    outer.most_in_flight = max(outer.most_in_flight, outer.in_flight)
                answer = reply(self.path, body)
                with outer.lock:
                    outer.in_flight -= 1
                if isinstance(answer, tuple):
                    return self.send(*answer)
                choice = answer if isinstance(answer, dict) else {}
                if isinstance(answer, str):
                    part = {"text": answer} if self.path.endswith("/completions") and "prompt" in body else {"message": {"content": answer}}
                    choice = {"finish_reason": "stop", **part}
                self.send(200, {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 3}})

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@contextlib.contextmanager
def fake(reply, **options):
    server = Fake(reply, **options)
    try:
        yield server
    finally:
        server.server.shutdown()
        server.server.server_close()


@pytest.fixture
def gsm8k(tmp_path):
    """Twelve problems whose answers are 100 to 111."""
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    lines = [{"question": f"What is 100 + {i}?", "answer": f"It is <<100+{i}={100 + i}>>{100 + i}.\n#### {100 + i}"} for i in range(12)]
    write_lines(folder / "test.jsonl", lines)
    write_lines(folder / "train.jsonl", [{"question": f"shot {i}", "answer": f"#### {i}"} for i in range(9)])
    (folder / "lm_eval_fewshot_indices.json").write_text(json.dumps({"indices": [[i % 9, 1, 2, 3, 4] for i in range(12)]}))
    return folder


def asked(body):
    """The i of the problem that a prompt ends with."""
    text = body.get("prompt") or body["messages"][-1]["content"]
    return int(re.findall(r"100 \+ (\d+)\?", text)[-1])


def test_gsm8k_asks_the_harness_prompt_and_scores_strict_and_flexible(gsm8k, tmp_path):
    def reply(path, body):
        i = asked(body)
        return f" I get {100 + i}." if i < 3 else f" #### {100 + i}" if i < 9 else " no idea"

    with fake(reply) as server:
        done = ingot_eval("gsm8k", "--url", server.url, "--data", gsm8k, "--api-key", "k", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    path, body, key = next(r for r in server.requests if asked(r[1]) == 5)
    assert path == "/v1/completions" and key == "Bearer k"
    shots = "".join(f"Question: shot {i}\nAnswer: #### {i}\n\n" for i in (5, 1, 2, 3, 4))
    assert body["prompt"] == shots + "Question: What is 100 + 5?\nAnswer:"
    assert body["model"] == "fake" and body["temperature"] == 0 and body["max_tokens"] == 256
    assert body["stop"] == ["Question:", "</s>", "<|im_end|>"]
    result = json.loads((tmp_path / "run.json").read_text())
    assert result["schema"] == "ingot-eval/1" and result["rule"] == "lm-eval-3.0" and result["first_request"]["prompt"].startswith("Question: shot 0")
    assert (result["result"]["name"], result["result"]["right"], result["result"]["n"]) == ("strict", 6, 12)
    assert [(m["name"], m["right"]) for m in result["marks"]] == [("flexible", 9)]
    assert result["result"]["standard_error"] == pytest.approx((0.25 / 12) ** 0.5)
    assert result["finish_reasons"] == {"stop": 12} and result["no_answer"] == 6 and result["warnings"] == []
    items = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()][1:]
    assert sorted(i["id"] for i in items) == sorted(f"gsm8k-{i}" for i in range(12)) and all(i["output"] for i in items)
    assert "6 of    12" in done.stdout and "[info]" not in done.stdout


def test_a_busy_server_is_asked_again_and_all_at_once(gsm8k):
    seen = set()

    def reply(path, body):
        i = asked(body)
        if i % 3 == 0 and i not in seen:
            seen.add(i)
            return (429 if i % 2 else 503), {"error": {"message": "busy"}}
        eventually(lambda: server.most_in_flight > 3, 60)  # nobody is answered before so many were asked at once
        return f"{100 + i}"

    with fake(reply) as server:
        done = ingot_eval("gsm8k", "--rule", "vllm", "--url", server.url, "--data", gsm8k, "--concurrency", 6)
    assert done.returncode == 0, done.stderr
    assert "12 of    12" in done.stdout and len(server.requests) == 16
    assert 3 < server.most_in_flight <= 6


def test_a_run_whose_server_dies_goes_on_where_it_ended(gsm8k, tmp_path):
    def until_seven(path, body):
        return f"{100 + asked(body)}" if asked(body) < 7 else (500, {"error": {"message": "on fire"}})

    command = ["gsm8k", "--rule", "vllm", "--data", gsm8k, "--out", tmp_path / "run", "--concurrency", 1, "--max-retries", 0]
    with fake(until_seven) as server:
        broken = ingot_eval(*command, "--url", server.url)
    assert broken.returncode == 1 and "on fire" in broken.stderr and "7 of 12" in broken.stderr and "again" in broken.stderr, broken.stderr
    with fake(lambda path, body: f"{100 + asked(body)}") as server:
        done = ingot_eval(*command, "--url", server.url)
        assert done.returncode == 0, done.stderr
        assert sorted(asked(body) for _, body, _ in server.requests) == [7, 8, 9, 10, 11], "what is answered is not asked again"
        other = ingot_eval(*command, "--url", server.url, "--max-tokens", 9)
    assert json.loads((tmp_path / "run.json").read_text())["resumed"] == 7
    assert other.returncode == 1 and "prompts_sha256" in other.stderr, "another setting is another run"


def test_a_question_that_is_refused_counts_as_wrong_and_is_told(gsm8k, tmp_path):
    def reply(path, body):
        return (400, {"error": {"message": "prompt too long"}}) if asked(body) == 4 else f"{100 + asked(body)}"

    with fake(reply) as server:
        done = ingot_eval("gsm8k", "--rule", "vllm", "--url", server.url, "--data", gsm8k, "--out", tmp_path / "run")
    assert done.returncode == 0 and "1 questions were refused" in done.stderr and "11 of    12" in done.stdout
    assert json.loads((tmp_path / "run.json").read_text())["errors"] == 1
    assert "prompt too long" in (tmp_path / "run.jsonl").read_text()


def test_answers_cut_by_max_tokens_are_warned_of(gsm8k):
    with fake(lambda path, body: {"finish_reason": "length", "text": " thinking"}) as server:
        done = ingot_eval("gsm8k", "--url", server.url, "--data", gsm8k)
    assert done.returncode == 0 and "12 of 12 answers were cut off by max_tokens" in done.stderr and "length 12" in done.stdout


def test_a_chat_reads_what_follows_the_thoughts(gsm8k):
    def reply(path, body):
        assert path == "/v1/chat/completions" and body["chat_template_kwargs"] == {"enable_thinking": True}
        assert body["messages"] == [{"role": "user", "content": f"What is 100 + {asked(body)}?\nEnd your response with the answer on the last "
                                     "line, formatted as: #### [number]"}]
        message = {"content": f"So\n#### {100 + asked(body)}", "reasoning_content": "maybe 7"}
        return {"finish_reason": "stop", "message": message if asked(body) % 2 else {"content": f"7</think>#### {100 + asked(body)}"}}

    with fake(reply) as server:
        done = ingot_eval("gsm8k", "--rule", "chat", "--enable-thinking", "true", "--url", server.url, "--data", gsm8k)
    assert done.returncode == 0 and "12 of    12" in done.stdout, done.stdout + done.stderr


def test_the_paired_difference_and_what_would_resolve_it(gsm8k, tmp_path):
    def answers(wrong):
        return lambda path, body: f"{100 + asked(body)}" if asked(body) not in wrong else "0"

    command = ["gsm8k", "--rule", "vllm", "--data", gsm8k]
    with fake(answers({1})) as server:
        assert ingot_eval(*command, "--url", server.url, "--out", tmp_path / "a").returncode == 0
    with fake(answers({2, 3, 4})) as server:
        done = ingot_eval(*command, "--url", server.url, "--out", tmp_path / "b", "--baseline", tmp_path / "a.json")
    assert done.returncode == 0, done.stderr
    baseline = json.loads((tmp_path / "b.json").read_text())["baseline"]
    assert sorted(baseline["lost"]) == ["gsm8k-2", "gsm8k-3", "gsm8k-4"] and baseline["won"] == ["gsm8k-1"]
    assert baseline["difference"] == pytest.approx(-2 / 12) and baseline["low"] < -2 / 12 < baseline["high"]
    assert baseline["p"] == pytest.approx(0.625) and baseline["questions_to_resolve"] > 12
    assert "-16.67 points" in done.stdout and "not resolved" in done.stdout and str(baseline["questions_to_resolve"]) in done.stdout
    done = ingot_eval("gsm8k", "--data", gsm8k, "--url", server.url, "--baseline", tmp_path / "a.json")
    assert done.returncode == 1 and "rule" in done.stderr, "a figure of another rule is no baseline"


def test_gpqa_neither_prints_nor_stores_a_question(tmp_path):
    rows = "".join(f'q{i},"Riddle, number {i}?",right{i},wrong{i}a,wrong{i}b,wrong{i}c\n' for i in range(4))
    data = tmp_path / "gpqa.csv"
    data.write_text("Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n" + rows)

    def reply(path, body):
        text = body["messages"][0]["content"]
        if "number 3?" in text and body["seed"] == 1:
            return 400, {"error": {"message": "cannot read " + text}}
        return f"The question was: {text}\nSo\nAnswer: " + re.search(r"([A-D])\) right", text)[1]

    with fake(reply) as server:
        done = ingot_eval("gpqa", "--url", server.url, "--data", data, "--repeats", 2, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    # Each answer quotes the instruction, whose 'Answer: $LETTER' is no letter of A to D: the first match is the answer's own.
    assert "7 of     8" in done.stdout and "over 4 questions" in done.stdout
    written = done.stdout + done.stderr + (tmp_path / "run.json").read_text() + (tmp_path / "run.jsonl").read_text()
    assert "Riddle" not in written and "right" + "0" not in written
    orders = {}
    for _, body, _ in server.requests:
        text = body["messages"][0]["content"]
        orders.setdefault(re.search(r"number (\d)", text)[1], set()).add(text)
    assert any(len(texts) == 2 for texts in orders.values()), "repeats come in another order"


def test_bfcl_scores_calls(tmp_path):
    function = {"name": "geo.area", "description": "Area", "parameters": {"type": "dict", "required": ["base"], "properties": {
        "base": {"type": "integer"}, "height": {"type": "float"}}}}
    questions = [{"id": f"simple_python_{i}", "question": [[{"role": "user", "content": f"Area {i}?"}]], "function": [function]} for i in range(3)]
    write_lines(tmp_path / "BFCL_v4_simple_python.json", questions)
    write_lines(tmp_path / "BFCL_v4_irrelevance.json", [{**questions[0], "id": "irrelevance_0"}])
    (tmp_path / "possible_answer").mkdir()
    truth = [{"id": q["id"], "ground_truth": [{"geo.area": {"base": [i], "height": [2.0, ""]}}]} for i, q in enumerate(questions)]
    write_lines(tmp_path / "possible_answer" / "BFCL_v4_simple_python.json", truth)

    def reply(path, body):
        assert body["tools"][0]["function"] == {"name": "geo_area", "description": "Area", "parameters": {
            "type": "object", "required": ["base"], "properties": {"base": {"type": "integer"}, "height": {"type": "number"}}}}
        i = int(body["messages"][0]["content"][5])
        arguments = json.dumps({"base": i, "height": 2} if i < 2 else {"base": "two"})
        return {"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [{"function": {"name": "geo_area", "arguments": arguments}}]}}

    with fake(reply) as server:
        done = ingot_eval("bfcl", "--url", server.url, "--data", tmp_path, "--set", "simple_python,irrelevance", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    assert {g["name"]: (g["right"], g["n"]) for g in result["groups"]} == {"simple_python": (2, 3), "irrelevance": (0, 1)}
    assert "multi-turn" in result["not_scored"]
    why = {json.loads(line).get("id"): json.loads(line).get("why") for line in (tmp_path / "run.jsonl").read_text().splitlines()}
    assert "base" in why["simple_python_2"] and "integer" in why["simple_python_2"]


def test_the_demo_sets_over_http_score_as_the_model_does(tmp_path):
    tasks = write_lines(tmp_path / "tasks.jsonl", [{**case, "kind": kind} for kind in ("word", "tool") for case in cases(kind)])
    done = ingot_eval("demo", "--model", MODEL, "--data", tasks, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    # The goldens are questions that the model answers right.
    assert [item["id"] for item in result["items"] if not item["ok"]] == []
    assert result["model"] == "demo" and result["usage"]["completion_tokens"] > 100
    assert result["prompts_sha256"] == json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0])["prompts_sha256"]
    assert len(hashlib.sha256().hexdigest()) == len(result["prompts_sha256"])


@pytest.mark.parametrize("args, words", [
    (["gsm8k", "--data", "."], ("--url", "--model")),
    (["gsm8k", "--url", "ftp://x", "--data", "DATA"], ("ftp://x", "http")),
    (["gsm8k", "--url", "http://127.0.0.1:1", "--data", "DATA", "--max-retries", "0"], ("/v1/models", "connect")),
    (["gsm8k", "--url", "http://127.0.0.1:1", "--data", "nowhere"], ("nowhere", "test.jsonl")),
    (["gsm8k", "--url", "http://127.0.0.1:1", "--data", "DATA", "--rule", "cot"], ("--rule cot", "lm-eval")),
    (["bfcl", "--url", "http://127.0.0.1:1", "--data", "DATA", "--set", "java"], ("--set java", "simple_python")),
    (["demo", "--url", "http://127.0.0.1:1", "--data", "DATA", "--server-flag=--dp=2"], ("--server-flag", "--model")),
])
def test_what_cannot_run_says_what_is_wrong(gsm8k, args, words):
    done = ingot_eval(*[str(gsm8k) if a == "DATA" else a for a in args], timeout=60)
    assert done.returncode == 1 and all(word in done.stderr for word in words), done.stderr


needs_tau2 = pytest.mark.skipif(not TAU2.exists(), reason="../shared/data is not there")


def tau2_agent(domain, does_its_part=lambda number: True):
    """An agent that makes the gold calls of a task one by one where does_its_part(its number) says so, and then says what is to be told. It
    knows the task by the user's first words."""
    tasks = json.loads((TAU2 / "domains" / domain / "tasks.json").read_text())

    def words_of(task):
        given = task["user_scenario"]["instructions"]
        return f"{given['reason_for_call']} {given.get('known_info') or ''}".strip()

    def reply(path, body):
        words = next(m["content"] for m in body["messages"] if m["role"] == "user").strip()
        task = next(task for task in tasks if words == words_of(task))
        criteria = task["evaluation_criteria"]
        made = sum(m["role"] == "tool" for m in body["messages"])
        actions = criteria["actions"]
        if does_its_part(int(task["id"])) and made < len(actions):
            call = {"name": actions[made]["name"], "arguments": json.dumps(actions[made]["arguments"])}
            return {"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [{"id": "x", "function": call}]}}
        return " ".join(["Done.", *(criteria["communicate_info"] or [])])

    return reply


@needs_tau2
def test_tau2_rewards_the_agent_that_does_what_the_task_asks(tmp_path):
    command = ["tau2", "--data", TAU2, "--limit", 4, "--user", "scripted", "--out", tmp_path / "run"]
    with fake(tau2_agent("retail", does_its_part=lambda number: number % 2 == 0)) as server:
        done = ingot_eval(*command, "--url", server.url)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    assert {item["id"]: item["ok"] for item in result["items"]} == {"retail-0": True, "retail-1": False, "retail-2": True, "retail-3": False}
    assert "NL_ASSERTION" in result["not_scored"] and "scripted" in result["about"] and result["finish_reasons"] == {"user_stop": 4}
    assert "pass^1 50.00 %" in done.stdout
    first = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()][1]
    assert first["conversation"][0]["content"] == "Hi! How can I help you today?" and first["conversation"][-1]["content"] == "###STOP###"
    with fake(lambda path, body: (500, {})) as server:
        again = ingot_eval(*command, "--url", server.url)
    assert again.returncode == 0 and not server.requests, "nothing is asked twice"


@needs_tau2
def test_tau2_airline_rewards_bookings_and_words(tmp_path):
    # Of the first twelve tasks three change the database; what is to be told (tasks 3, 7 and 11) both tell.
    command = ["tau2", "--domain", "airline", "--data", TAU2, "--limit", 12, "--user", "scripted"]
    for does, name in ((True, "worker"), (False, "idler")):
        with fake(tau2_agent("airline", does_its_part=lambda number, does=does: does)) as server:
            done = ingot_eval(*command, "--url", server.url, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
    result = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("worker", "idler")}
    assert [item["id"] for item in result["worker"]["items"] if not item["ok"]] == []
    assert [item["id"] for item in result["idler"]["items"] if not item["ok"]] == ["airline-7", "airline-8", "airline-11"]
    assert result["worker"]["rule"] == "airline-db-communicate-1" and "not_scored" not in result["worker"]
    assert {m["name"]: m["right"] for m in result["idler"]["marks"]} == {"db": 9, "communicate": 12}


@needs_tau2
def test_tau2_telecom_is_mended_by_agent_and_user_together(tmp_path):
    command = ["tau2", "--domain", "telecom", "--data", TAU2, "--limit", 1, "--out", tmp_path / "run"]
    task = next(t for t in json.loads((TAU2 / "domains/telecom/tasks_base_regenerated.json").read_text()))
    users = [a for a in task["evaluation_criteria"]["actions"] if a["requestor"] == "user"]
    agents = [a for a in task["evaluation_criteria"]["actions"] if a["requestor"] == "assistant"]
    assert users and agents

    def speak(body, actions, words):
        made = sum(m["role"] == "tool" for m in body["messages"])
        if made == len(actions):
            return words
        call = {"name": actions[made]["name"], "arguments": json.dumps(actions[made]["arguments"])}
        return {"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [{"id": "x", "function": call}]}}

    def user_reply(path, body):
        assert "toggle_airplane_mode" in {tool["function"]["name"] for tool in body["tools"]}
        assert "<scenario>\nPersona:" in body["messages"][0]["content"]
        assert not any(m.get("tool_calls") and m["tool_calls"][0]["function"]["name"] == agents[0]["name"] for m in body["messages"])
        said = sum(m["role"] == "user" for m in body["messages"])
        return "It does not work." if said == 1 else speak(body, users, "It works now. ###STOP###")

    def agent_reply(path, body):
        assert "toggle_airplane_mode" not in {tool["function"]["name"] for tool in body["tools"]}
        return speak(body, agents, "Please do your part.")

    with fake(agent_reply) as agent, fake(user_reply, models=("customer",)) as user:
        done = ingot_eval(*command, "--url", agent.url, "--user-url", user.url)
        assert {body["model"] for _, body, _ in user.requests} == {"customer"}
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    assert result["items"][0]["ok"] and result["finish_reasons"] == {"user_stop": 1}, (tmp_path / "run.jsonl").read_text()
    assert {m["name"]: m["right"] for m in result["marks"]} == {"env_assertion": 1} and result["rule"] == "telecom-assertion-action-1"
    conversation = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[1])["conversation"]
    assert [m["requestor"] for m in conversation if m["role"] == "tool" and "requestor" in m] == ["user"] * len(users)


@needs_tau2
def test_tau2_names_the_domains_it_has(tmp_path):
    done = ingot_eval("tau2", "--domain", "banking", "--data", TAU2, "--url", "http://127.0.0.1:1")
    assert done.returncode == 1 and "--domain banking: expected retail, airline, telecom" in done.stderr
