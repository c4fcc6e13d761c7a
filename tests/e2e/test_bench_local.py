"""`ingot bench step` and `ingot bench kernels`: what is in their reports, what they refuse, and how reports are compared. No test asks how
fast the machine is."""

import json
import subprocess

import pytest
from conftest import BINARY, MODEL

LAYERS, HIDDEN, VOCAB, DENSE = 10, 256, 6144, 2


def bench(command, *flags, code=0):
    done = subprocess.run([str(BINARY), "bench", command, *map(str, flags)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"exit code {done.returncode}: {done.stderr} {done.stdout[-2000:]}"
    return done


def report(command, *flags):
    return json.loads(bench(command, MODEL, "--device", "cpu", "--json", "-", *flags).stdout)


def expect_head(found, schema):
    assert found["schema"] == schema and found["version"] == 1
    machine = found["machine"]
    assert machine["device"] == "cpu" and machine["processor"] and machine["threads"] >= 1 and machine["load_average"] >= 0
    assert found["model"]["name"] == str(MODEL) and found["model"]["layers"] == LAYERS and found["model"]["kv_cache_dtype"] == "bf16"
    roofs = found["roofs"]
    assert roofs["cache_bytes_per_second"] > roofs["bytes_per_second"] > 1e8 and roofs["flop_per_second"] > 1e9
    assert str(machine["threads"]) in roofs["memory_how"] and roofs["flop_how"]


def expect_bound(line, roofs):
    """What binds, and how long that takes at the roof of the same run; how near it was is the machine's business."""
    amount, roof = {"bytes": ("bytes", "bytes_per_second"), "flop": ("flop", "flop_per_second"), "cache": ("bytes", "cache_bytes_per_second")}[line["bound"]]
    assert line["bound_ms"] == pytest.approx(1000 * line[amount] / roofs[roof]) and line["bound_ms"] > 0, line
    ms = line["ms"]
    assert 0 < ms["least"] <= ms["median"] <= ms["most"], line
    assert line["of_roof"] == pytest.approx(line["bound_ms"] / ms["median"])
    assert line["bytes_per_second"] == pytest.approx(1000 * line["bytes"] / ms["median"])
    assert line["flop_per_second"] == pytest.approx(1000 * line["flop"] / ms["median"])


STEP = ("--batch", "1,3", "--context", "64,300", "--prefill", "100", "--chunk", "64", "--runs", "3")
KERNELS = ("--rows", "1,6,80", "--context", "300", "--runs", "3")


def test_step_tells_decode_by_batch_and_context_and_prompts_by_length():
    found = report("step", *STEP)
    expect_head(found, "ingot.bench.step")
    assert found["load_seconds"] > 0 and found["resident_bytes"] > 0 and found["cache_bytes"] > 0
    prompt, *decodes = found["steps"]
    assert (prompt["kind"], prompt["context"], prompt["chunk"], prompt["runs"]) == ("prefill", 100, 64, 3)
    assert [(d["kind"], d["batch"], d["context"]) for d in decodes] == [("decode", b, c) for c in (64, 300) for b in (1, 3)]
    for step in found["steps"]:
        expect_bound(step, found["roofs"])
    assert prompt["tokens_per_second"] == pytest.approx(100_000 / prompt["ms"]["median"])
    for step in decodes:
        assert step["tokens_per_second"] == pytest.approx(1000 * step["batch"] / step["ms"]["median"])
    one, three = decodes[:2]
    assert one["hit_experts"] == 4 and 4 <= three["hit_experts"] <= 12
    # The head alone, and the weights of the layers behind it.
    assert one["flop"] > 2 * HIDDEN * VOCAB and three["flop"] == pytest.approx(3 * one["flop"], rel=0.01)
    assert one["bytes"] > 2 * HIDDEN * VOCAB and one["bytes"] < three["bytes"] < 3 * one["bytes"]


def test_kernels_tells_every_operation_of_the_step():
    found = report("kernels", *KERNELS)
    expect_head(found, "ingot.bench.kernels")
    assert [(s["rows"], s["sequences"]) for s in found["steps"]] == [(1, 1), (6, 6), (80, 1)]
    for step in found["steps"]:
        assert step["runs"] == 3 and step["context"] == 300
        assert sum(op["share"] for op in step["ops"]) == pytest.approx(1, abs=1e-3)
        for op in step["ops"]:
            expect_bound(op, found["roofs"])
            assert op["kernel"] in ("native", "lanes", "host")
        calls = {}
        for op in step["ops"]:
            calls[op["op"]] = calls.get(op["op"], 0) + op["calls"]
        per_layer = {"norm": 2 * LAYERS, "qkv_a": LAYERS, "qkv_prepare": LAYERS, "q_b": LAYERS, "rope": LAYERS, "absorb": LAYERS,
                     "sparse_mla": LAYERS, "v_up": LAYERS, "o": LAYERS, "dense.gate_up": DENSE, "dense.swiglu": DENSE,
                     "dense.down": DENSE, "router_shared.gate_up": LAYERS - DENSE, "experts.down": LAYERS - DENSE,
                     "combine": LAYERS - DENSE, "shared.swiglu": LAYERS - DENSE, "shared.down": LAYERS - DENSE, "index_scores": 4,
                     "rope_table": 1, "embed": 1, "lm_head": 1, "sample": 1}
        assert {name: calls.get(name) for name in per_layer} == per_layer
    head = next(op for op in found["steps"][1]["ops"] if op["op"] == "lm_head")
    assert head["shape"] == f"6 x {VOCAB} x {HIDDEN}" and head["flop"] == 2 * 6 * VOCAB * HIDDEN
    assert head["bytes"] == 2 * VOCAB * HIDDEN + 4 * 6 * (VOCAB + HIDDEN)
    # A prompt's chunk wants the logits of its last row.
    assert next(op for op in found["steps"][2]["ops"] if op["op"] == "lm_head")["shape"] == f"1 x {VOCAB} x {HIDDEN}"


def test_text_and_file_tell_the_same(tmp_path):
    file = tmp_path / "kernels.json"
    done = bench("kernels", MODEL, "--device", "cpu", "--rows", "6", "--context", "64", "--runs", "2", "--json", file)
    found = json.loads(file.read_text())
    for op in found["steps"][0]["ops"]:
        assert op["op"] in done.stdout and op["shape"] in done.stdout
    assert "roofs of this run" in done.stdout and "load average" in done.stdout
    done = bench("step", "--spec", "tiny", "--device", "cpu", "--batch", "2", "--context", "32", "--prefill", "40", "--runs", "2")
    assert "decode 2 at 32" in done.stdout and "prefill 40 in 512" in done.stdout
    done = bench("step", MODEL, "--device", "cpu", "--batch", "1", "--context", "8", "--prefill", "8", "--runs", "1", "--json", tmp_path, code=1)
    assert str(tmp_path) in done.stderr


@pytest.mark.parametrize("flags, word", [
    (("step", MODEL, "--batch", "0"), "--batch 0"),
    (("step", MODEL, "--context", "9000"), "--context 9000"),
    (("step", MODEL, "--prefill", "9000"), "--prefill 9000"),
    (("step", MODEL, "--chunk", "0"), "--chunk 0"),
    (("step", MODEL, "--runs", "0"), "--runs 0"),
    (("step", MODEL, "--device", "tpu"), "--device tpu"),
    (("step", MODEL, "--device-matmul", "int8"), "--device-matmul int8"),
    (("step", MODEL, "--kv-cache-dtype", "int8"), "--kv-cache-dtype int8"),
    (("step", "/nonexistent"), "/nonexistent"),
    (("kernels",), "--spec"),
    (("kernels", "--spec", "glm-4"), "glm-4"),
    (("kernels", "--spec", "tiny", "--layers", "9"), "--layers 9"),
    (("kernels", "--spec", "tiny", "--weights", "int4"), "int4"),
    (("kernels", MODEL, "--rows", "0"), "--rows 0"),
    (("kernels", MODEL, "--rows", "512", "--context", "100"), "--rows 512"),
    (("kernels", MODEL, "--context", "9000"), "--context 9000"),
])
def test_bad_flags_are_refused_by_name(flags, word):
    assert word in bench(*flags, code=1).stderr


@pytest.mark.parametrize("flags, word", [
    (("step", MODEL, "--spec", "tiny"), "--spec"),
    (("step", MODEL, "--layers", "3"), "--layers"),
    (("step", MODEL, "--batch", "many"), "--batch"),
])
def test_flags_that_do_not_fit_are_refused_before_anything_is_loaded(flags, word):
    done = subprocess.run([str(BINARY), "bench", *map(str, flags)], capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, 1) and word in done.stderr + done.stdout, done


def test_reports_of_one_command_are_compared_and_others_refused_by_name(tmp_path):
    files = {}
    for name, command, flags in (("a", "step", STEP), ("b", "step", (*STEP[:-4], "--runs", "2", "--kv-cache-dtype", "fp8_e4m3")), ("k", "kernels", KERNELS)):
        files[name] = tmp_path / f"{name}.json"
        bench(command, MODEL, "--device", "cpu", *flags, "--json", files[name])
    text = bench("compare", files["a"], files["b"]).stdout
    assert 'differs: cache type is bf16 in a and fp8_e4m3 in b' in text
    assert "decode 3 at 300: " in text and " ms -> " in text
    assert "prefill 100 in 64: in a alone" in text and "prefill 100 in 512: in b alone" in text
    text = bench("compare", files["k"], files["k"]).stdout
    assert "sparse_mla" in text and "x1.000" in text and "alone" not in text and "differs" not in text
    refusal = bench("compare", files["a"], files["k"], code=1).stderr
    assert "`ingot bench step`" in refusal and "`ingot bench kernels`" in refusal
    changed = json.loads(files["k"].read_text())
    for change, word in (({"version": 7}, "version 7"), ({"steps": [{}]}, "cut or was changed"), ({"schema": "other"}, "no report")):
        file = tmp_path / "changed.json"
        file.write_text(json.dumps({**changed, **change}))
        assert word in bench("compare", file, file, code=1).stderr
