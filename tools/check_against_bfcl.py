#!/usr/bin/env python3
"""`ingot eval bfcl`'s marks beside those of the published checker, on the data's own answers and on mutations of them.

    git clone --depth 1 https://github.com/ShishirPatil/gorilla ../gorilla
    tools/check_against_bfcl.py build/release/ingot ../shared/data/eval/bfcl \\
        ../gorilla/berkeley-function-call-leaderboard/bfcl_eval/eval_checker/ast_eval/ast_checker.py --seed 1

Starts a server that answers each question with such calls, has ingot score them, and runs ast_checker.py on the same calls. Exit status 1
when a mark differs."""

import argparse
import copy
import enum
import http.server
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import types

SETS = "simple_python multiple parallel parallel_multiple live_simple live_multiple live_parallel live_parallel_multiple".split()


class Language(enum.Enum):
    PYTHON, JAVA, JAVASCRIPT = range(3)


def load_checker(path):
    """The checker without the package around it: dots in names become underscores, as for servers of OpenAI's API."""
    source = path.read_text()
    names = {"re": __import__("re"), "Language": Language, "JAVA_TYPE_CONVERSION": {}, "JS_TYPE_CONVERSION": {}}
    names["MODEL_CONFIG_MAPPING"] = {"any": types.SimpleNamespace(underscore_to_dot=True)}
    exec(compile(source[source.index("#### Constants ####") :], str(path), "exec"), names)  # its imports come before
    return names["ast_checker"]


def mutated(rng, value):
    draw = rng.random()
    if isinstance(value, bool):
        return (not value) if draw < 0.5 else int(value)
    if isinstance(value, int):
        return float(value) if draw < 0.4 else value + 1 if draw < 0.7 else str(value)
    if isinstance(value, float):
        return int(value) if draw < 0.5 else value + 0.5
    if isinstance(value, str):
        return value.upper() + "." if draw < 0.5 else value.replace(" ", "-") if draw < 0.7 else value + "x" if draw < 0.85 else 3
    if isinstance(value, list):
        return value[::-1] if draw < 0.3 else value[:-1] if draw < 0.5 else [mutated(rng, v) for v in value] if draw < 0.9 else "x"
    if isinstance(value, dict):
        value = dict(value)
        if value and draw < 0.8:
            key = rng.choice(list(value))
            if draw < 0.6:
                value[key] = mutated(rng, value[key])
            else:
                del value[key]
        else:
            value["surplus"] = 1
        return value
    return 1


def chosen(rng, value):
    """Of a dict of choices, one for each key."""
    if not isinstance(value, dict):
        return value
    picks = {k: [c for c in v if c != ""] for k, v in value.items() if isinstance(v, list) and ("" not in v or rng.random() < 0.5)}
    return {k: copy.deepcopy(rng.choice(v)) for k, v in picks.items() if v}


def calls_for(rng, truth):
    calls = []
    for call in truth:
        ((name, allowed),) = call.items()
        arguments = {}
        for key, values in allowed.items():
            if not values or ("" in values and rng.random() < 0.5):
                continue
            value = chosen(rng, copy.deepcopy(rng.choice([v for v in values if v != ""] or [""])))
            arguments[key] = [chosen(rng, v) for v in value] if isinstance(value, list) else value
        calls.append((name.replace(".", "_"), arguments))
    name, arguments = rng.choice(calls)
    if arguments and rng.random() < 0.6:
        key, draw = rng.choice(list(arguments)), rng.random()
        if draw < 0.8:
            arguments[key] = mutated(rng, arguments[key])
        elif draw < 0.9:
            del arguments[key]
        else:
            arguments["surplus"] = 1
    if rng.random() < 0.3:
        rng.shuffle(calls)
    if rng.random() < 0.03:
        calls.append(calls[0])
    if rng.random() < 0.02:
        calls[0] = ("nobody", calls[0][1])
    return calls


def key_of(messages, names):
    return json.dumps([messages, [name.replace(".", "_") for name in names]])


def serve(answers):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def send(self, body):
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.send({"data": [{"id": "answers"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls = answers.get(key_of(body["messages"], [tool["function"]["name"] for tool in body["tools"]]), [])
            made = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
            self.send({"choices": [{"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": made}}]})

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ingot")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("checker", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    check = load_checker(args.checker)
    rng = random.Random(args.seed)
    cases, answers = {}, {}
    for name in SETS:
        file = f"BFCL_v4_{name}.json"
        truth = {line["id"]: line["ground_truth"] for line in map(json.loads, (args.data / "possible_answer" / file).read_text().splitlines())}
        for line in map(json.loads, (args.data / file).read_text().splitlines()):
            calls = calls_for(rng, truth[line["id"]])
            key = key_of(line["question"][0], [function["name"] for function in line["function"]])
            # Questions that look the same to a server cannot be answered apart.
            cases[line["id"]] = None if key in answers else (name, line["function"], truth[line["id"]], calls)
            answers.setdefault(key, calls)
    with tempfile.TemporaryDirectory() as folder:
        command = [args.ingot, "eval", "bfcl", "--url", serve(answers), "--data", args.data, "--set", ",".join(SETS), "--out", f"{folder}/run"]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        lines = pathlib.Path(f"{folder}/run.jsonl").read_text().splitlines()[1:]
    ours = {line["id"]: line for line in map(json.loads, lines)}
    compared = right = 0
    different = []
    for id_, case in cases.items():
        if case is None:
            continue
        name, functions, truth, calls = case
        theirs = check(functions, [{called: arguments} for called, arguments in calls], truth, Language.PYTHON, name, "any")
        compared += 1
        right += theirs["valid"]
        if theirs["valid"] != ours[id_]["ok"]:
            different.append(f"{id_}: theirs {theirs}, ours {ours[id_].get('why', 'right')}, calls {calls}")
    print("\n".join(different))
    print(f"{compared} answers compared, {right} of them right, {len(different)} marks differ")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
