"""The demo model's generators (tools/demo_model): a seed gives the same sets everywhere, and held-out content stays held out."""

import hashlib
import json
import subprocess
import sys

from conftest import MODEL, ROOT, cases

DIGESTS = {"word": "f3fb61fb6d1558ef", "tool": "1ba9852c9a3bc5cc", "retr1k": "102b63b72ae92420"}
MAKE = ROOT / "tools" / "demo_model" / "make_sets.py"


def make(*args):
    done = subprocess.run([sys.executable, str(MAKE), *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_seed_0_gives_the_published_sets_and_another_gives_fresh_ones(tmp_path):
    make("evaluation", tmp_path / "a", "--only", "word,tool,retr1k")
    digests = {name: hashlib.sha256((tmp_path / "a" / f"{name}.jsonl").read_bytes()).hexdigest()[:16] for name in ("word", "tool", "retr1k")}
    assert digests == DIGESTS, "other sets than those of the published figures"
    # The golden questions are from the published sets.
    for name in ("word", "tool"):
        lines = {line["id"]: line for line in read(tmp_path / "a" / f"{name}.jsonl")}
        for case in cases(name):
            assert lines[case["id"]]["messages"] == case["messages"] and lines[case["id"]]["expected"] == case["expected"]
    make("evaluation", tmp_path / "b", "--only", "word", "--seed", 7)
    asked = [{json.dumps(line["messages"]) for line in read(tmp_path / x / "word.jsonl")} for x in "ab"]
    assert len(asked[0] & asked[1]) < 50, "fresh questions"
    assert [line["steps"] for line in read(tmp_path / "a" / "word.jsonl")] == [line["steps"] for line in read(tmp_path / "b" / "word.jsonl")]


def test_calibration_texts_are_those_of_the_repository_and_hold_no_question_of_the_sets(tmp_path):
    make("calibration", tmp_path / "texts.jsonl")
    assert (tmp_path / "texts.jsonl").read_bytes() == (MODEL.parent / "demo-calibration.jsonl").read_bytes()
    make("calibration", tmp_path / "more.jsonl", "--seed", 5)
    make("evaluation", tmp_path / "sets", "--only", "word")
    texts = "\n".join(line["text"] for line in read(tmp_path / "more.jsonl"))
    questions = [line["messages"][0]["content"] for line in read(tmp_path / "sets" / "word.jsonl")]
    assert not [question for question in questions if question in texts]


def test_an_unknown_set_is_refused_by_name(tmp_path):
    done = subprocess.run([sys.executable, str(MAKE), "evaluation", str(tmp_path), "--only", "riddles"], capture_output=True, text=True)
    assert done.returncode != 0 and "riddles" in done.stderr and "word" in done.stderr
