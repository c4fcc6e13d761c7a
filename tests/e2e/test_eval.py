"""`ingot eval` as a user runs it: published figures, the report files, the paired test, refusals by name."""

import json
import subprocess

import pytest
from conftest import BINARY, MODEL, cases


def ingot_eval(*args, timeout=300):
    return subprocess.run([str(BINARY), "eval", *map(str, args)], capture_output=True, text=True, timeout=timeout)


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def tasks(tmp_path):
    """The golden questions of both kinds, made tasks: the goldens carry no kind."""
    return write_lines(tmp_path / "tasks.jsonl", [{**case, "kind": kind} for kind in ("word", "tool") for case in cases(kind)])


def test_set_scores_the_golden_answers_right_and_writes_results(tasks, tmp_path):
    out = tmp_path / "results.json"
    done = ingot_eval("set", MODEL, "--data", tasks, "--out", out)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    # The goldens are questions that the model answers right.
    assert [item["id"] for item in results["items"] if not item["ok"]] == []
    assert [item["id"] for item in results["items"]] == [json.loads(line)["id"] for line in tasks.read_text().splitlines()]
    groups = {(g["kind"], g["group"]): g for g in results["groups"]}
    word = groups[("word", "")]
    assert word["tasks"] == word["right"] == len(cases("word")) and word["high"] == pytest.approx(1) and 0.8 < word["low"] < 1
    assert "the same to the letter" in done.stdout and "[info]" not in done.stdout, "the report alone goes to standard output"
    assert "cut off" not in done.stderr


def test_batches_change_no_answer_and_the_paired_test_says_so(tasks, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert ingot_eval("set", MODEL, "--data", tasks, "--limit", 6, "--batch", 1, "--out", first).returncode == 0
    done = ingot_eval("set", MODEL, "--data", tasks, "--limit", 6, "--batch", 6, "--out", second, "--compare", first)
    assert done.returncode == 0, done.stderr
    assert "6 paired, b 0" in done.stdout and "c 0" in done.stdout and "p 1" in done.stdout
    outputs = [[item["output"] for item in json.loads(path.read_text())["items"]] for path in (first, second)]
    assert outputs[0] == outputs[1] and all(outputs[0])


def test_answers_cut_off_by_length_are_warned_of(tasks, tmp_path):
    out = tmp_path / "results.json"
    done = ingot_eval("set", MODEL, "--data", tasks, "--limit", 3, "--max-tokens", 4, "--out", out)
    assert done.returncode == 0
    assert "3 of 3 answers were cut off" in done.stderr
    items = json.loads(out.read_text())["items"]
    assert [item["finish_reason"] for item in items] == ["length"] * 3 and not any(item["ok"] for item in items)


def test_divergence_of_a_model_from_itself_is_zero(tasks, tmp_path):
    out = tmp_path / "report.json"
    done = ingot_eval("divergence", MODEL, MODEL, "--data", tasks, "--limit", 5, "--json", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["documents"] == report["documents_without_divergence"] == 5 and report["positions"] > 100
    assert report["mean_kl"] == report["p99_kl"] == report["nll_change"] == {"value": 0, "low": 0, "high": 0}
    assert report["top1_agreement"]["value"] == report["expert_agreement"]["value"] == 1
    assert report["indexer_overlap"] is None, "no document is longer than index_topk"
    assert "mean KL" in done.stdout and "[info]" not in done.stdout


def test_plain_text_is_cut_into_documents_and_long_ones_compare_their_indexer(tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "report.json"
    text.write_text("The captain walked along the shore and looked at the sea. " * 60)
    done = ingot_eval("divergence", MODEL, MODEL, "--data", text, "--max-tokens", 300, "--json", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["documents"] > 1 and report["indexer_overlap"]["value"] == 1
    assert [layer["layer"] for layer in report["indexer_overlap_layers"]] == [0, 1, 2, 6]


@pytest.mark.parametrize("lines, words", [
    ([{"id": "q", "kind": "riddle", "messages": [{"role": "user", "content": "x"}], "expected": ""}], ("q", "riddle")),
    ([{"id": "q", "kind": "word", "messages": [{"role": "user", "content": "x"}]}], ("q", "expected")),
    ([{"id": "q", "kind": "word", "messages": [{"role": "nobody", "content": "x"}], "expected": "1"}], ("q", "role")),
    ([], ("no tasks",)),
])
def test_tasks_that_are_wrong_are_named(tmp_path, lines, words):
    done = ingot_eval("set", MODEL, "--data", write_lines(tmp_path / "tasks.jsonl", lines))
    assert done.returncode == 1 and all(word in done.stderr for word in words), done.stderr


def test_models_and_flags_that_do_not_fit_are_named(tasks, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((MODEL / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 7000}))
    done = ingot_eval("divergence", MODEL, other, "--data", tasks)
    assert done.returncode == 1 and "vocab_size" in done.stderr and "7000" in done.stderr, done.stderr

    # The same sizes, but one token stands for another text.
    (other / "config.json").write_text(json.dumps(config))
    (other / "tokenizer.json").write_text((MODEL / "tokenizer.json").read_text().replace("<|observation|>", "<|observed|>"))
    done = ingot_eval("divergence", MODEL, other, "--data", tasks)
    assert done.returncode == 1 and "tokenizers" in done.stderr and "observed" in done.stderr, done.stderr

    done = ingot_eval("divergence", MODEL, MODEL, "--data", tasks, "--activations", "int4")
    assert done.returncode == 1 and "--activations int4" in done.stderr
    done = ingot_eval("divergence", MODEL, MODEL, "--data", write_lines(tmp_path / "bad.jsonl", [{"prompt": 7}]))
    assert done.returncode == 1 and "document 1" in done.stderr and "prompt" in done.stderr


def test_bench_speculation_prints_json_alone_and_what_is_accepted(tasks):
    command = [str(BINARY), "bench", "speculation", str(MODEL), "--data", str(tasks), "--limit", "6", "--runs", "1", "--batches", "1,3"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["mean_acceptance_length"] > 4 and len(report["acceptance"]) == 5 and "device" not in report
    assert [(r["batch"], r["mode"]) for r in report["results"]] == [(b, m) for b in (1, 3) for m in ("off", "fixed", "adaptive")]
    assert all(r["tokens_per_second"][0] > 0 for r in report["results"])
    text = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert text.returncode == 0 and "mean acceptance length" in text.stdout, text.stderr


@pytest.mark.parametrize("flags, word", [(("--device", "tpu"), "--device tpu"), (("--device-matmul", "fp4"), "--device-matmul fp4")])
def test_an_unknown_device_is_refused_by_name(flags, word):
    done = subprocess.run([str(BINARY), "generate", str(MODEL), "--prompt", "x", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and word in done.stderr and "use " in done.stderr, done.stderr
