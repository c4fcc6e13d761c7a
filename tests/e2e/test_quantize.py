"""`ingot quantize` against an independent reader: safetensors parsed by hand, weights unpacked with numpy by the formats' definitions."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest
from conftest import BINARY, MODEL

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
EXPERT = re.compile(r"\.mlp\.(experts\.\d+|shared_experts)\.(gate|up|down)_proj$")
SMALL = "0.002"  # GB a shard: 2 MB, so that the demo model has a dozen


def ingot(*args, check=True, **options):
    done = subprocess.run([str(BINARY), *map(str, args)], capture_output=True, text=True, timeout=300, **options)
    assert not check or done.returncode == 0, done.stderr
    return done


def quantize(source, target, *flags, **options):
    return ingot("quantize", source, target, *flags, **options)


def refused(*words, source=MODEL, target, flags=(), **options):
    done = quantize(source, target, *flags, check=False, **options)
    assert done.returncode == 1, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)
    return done.stderr


def read_shard(path):
    """name -> (dtype, shape, bytes), with every rule of the container checked."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body, out, spans = data[8 + length :], {}, []
    size = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert end - begin == size[entry["dtype"]] * int(np.prod(entry["shape"])), name
        assert (8 + length + begin) % size[entry["dtype"]] == 0, f"{name} is not aligned"
        spans.append((begin, end))
        out[name] = (entry["dtype"], entry["shape"], body[begin:end])
    spans.sort()
    assert spans[0][0] == 0 and spans[-1][1] == len(body) and all(a[1] == b[0] for a, b in zip(spans, spans[1:])), path
    return out


def read_model(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors = {}
    for file in sorted(set(index["weight_map"].values())):
        shard = read_shard(folder / file)
        assert all(index["weight_map"][name] == file for name in shard)
        tensors |= shard
    assert set(tensors) == set(index["weight_map"])
    return tensors, index


def floats(entry):
    dtype, shape, data = entry
    if dtype == "F32":
        return np.frombuffer(data, "<f4").reshape(shape).astype(np.float64)
    assert dtype == "BF16"
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape).astype(np.float64)


def e4m3(data):
    bits = np.frombuffer(data, np.uint8).astype(np.int64)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    assert not ((bits & 0x7F) == 0x7F).any(), "NaN"
    return np.where(bits & 128, -value, value)


def unpack(tensors, module):
    """The weight of a module as (rows, cols), and its format."""
    dtype, shape, data = tensors[module + ".weight"]
    if dtype == "U8":
        scale_dtype, scale_shape, scale = tensors[module + ".weight_scale"]
        rows, cols = shape[0], shape[1] * 2
        assert scale_dtype == "U8" and scale_shape == [rows, cols // 32], module
        packed = np.frombuffer(data, np.uint8).reshape(shape)
        values = E2M1[np.stack([packed & 15, packed >> 4], axis=-1)].reshape(rows, cols // 32, 32)
        exponent = np.frombuffer(scale, np.uint8).reshape(rows, cols // 32, 1).astype(np.float64) - 127
        return (values * 2.0**exponent).reshape(rows, cols), "mxfp4"
    if dtype == "F8_E4M3":
        scale_dtype, scale_shape, scale = tensors[module + ".weight_scale_inv"]
        rows, cols = shape
        assert scale_dtype == "F32" and scale_shape == [-(-rows // 128), -(-cols // 128)], module
        table = np.frombuffer(scale, "<f4").reshape(scale_shape).astype(np.float64)
        return e4m3(data).reshape(shape) * table.repeat(128, 0)[:rows].repeat(128, 1)[:, :cols], "fp8"
    return floats(tensors[module + ".weight"]), "plain"


def quark_scale(blocks):
    """Mode "even": amax to a power of two at mantissa 1.75, two less in the exponent. By frexp, not by bits."""
    amax = np.abs(blocks).max(axis=-1)
    mantissa, exponent = np.frexp(amax)  # mantissa in [0.5, 1)
    return np.where(amax == 0, -127, np.clip(exponent - 1 + (mantissa >= 0.875) - 2, -127, 127))


def check_mxfp4(original, packed, module, tensors):
    """Each value is the nearest that the block's scale can hold; the scale is Quark's."""
    rows, cols = original.shape
    blocks, found = original.reshape(rows, cols // 32, 32), packed.reshape(rows, cols // 32, 32)
    exponent = quark_scale(blocks)
    stored = np.frombuffer(tensors[module + ".weight_scale"][2], np.uint8).reshape(rows, cols // 32).astype(int)
    assert (stored == exponent + 127).all(), module
    scale = (2.0 ** exponent)[..., None]
    best = np.abs(blocks[..., None] - E2M1[:8].tolist() * np.ones(8) * scale[..., None] * np.sign(blocks)[..., None]).min(axis=-1)
    assert np.allclose(np.abs(blocks - found), best, rtol=0, atol=1e-12), module


def check_fp8(original, packed, module):
    """Within half a step of e4m3 for the block's scale: a relative 2^-4, or half the least subnormal."""
    rows, cols = original.shape
    for r in range(0, rows, 128):
        for c in range(0, cols, 128):
            x, q = original[r : r + 128, c : c + 128], packed[r : r + 128, c : c + 128]
            scale = max(np.abs(x).max() / 448, 1e-30)
            assert (np.abs(x - q) <= np.maximum(np.abs(x) / 16, scale * 2.0**-10) * (1 + 1e-5)).all(), module
            assert np.isclose(np.abs(q).max(), np.abs(x).max(), rtol=1e-5), module


def modules_of(tensors):
    return sorted(n.removesuffix(".weight") for n, (_, shape, _) in tensors.items() if n.endswith(".weight") and len(shape) == 2)


def same_folder(a, b):
    files = sorted(p.name for p in a.iterdir())
    assert files == sorted(p.name for p in b.iterdir())
    for file in files:
        assert (a / file).read_bytes() == (b / file).read_bytes(), file


@pytest.fixture(scope="module")
def source():
    return read_model(MODEL)[0]


@pytest.fixture(scope="module")
def amd(tmp_path_factory):
    target = tmp_path_factory.mktemp("amd") / "model"
    quantize(MODEL, target, "--scheme", "mxfp4", "--shard-size", SMALL)
    return target


@pytest.fixture(scope="module")
def fp8(tmp_path_factory):
    target = tmp_path_factory.mktemp("fp8") / "model"
    quantize(MODEL, target, "--scheme", "fp8-block", "--exclude", "*.eh_proj")
    return target


def test_amd_preset_packs_the_experts_of_main_layers_and_copies_the_rest(source, amd):
    tensors, index = read_model(amd)
    files = set(index["weight_map"].values())
    assert len(files) > 5 and all(re.fullmatch(rf"model-\d{{5}}-of-{len(files):05}\.safetensors", f) for f in files)
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors.values())
    packed = set()
    for module in modules_of(source):
        layer = int(m[1]) if (m := re.match(r"model\.layers\.(\d+)\.", module)) else -1
        weight, form = unpack(tensors, module)
        if layer < 10 and EXPERT.search(module):
            assert form == "mxfp4", module
            check_mxfp4(floats(source[module + ".weight"]), weight, module, tensors)
            packed.add(module)
    for name, entry in source.items():
        if name.removesuffix(".weight") not in packed:
            assert tensors[name] == entry, f"{name} is not as it was"
    assert len(packed) == 8 * 17 * 3
    assert set(tensors) == set(source) | {m + ".weight_scale" for m in packed}
    assert all(p.stat().st_size < 2_300_000 or len(read_shard(p)) <= 2 for p in amd.glob("*.safetensors"))


def test_config_is_quarks_and_keeps_the_other_fields(source, amd):
    config, original = json.loads((amd / "config.json").read_text()), json.loads((MODEL / "config.json").read_text())
    quant = config.pop("quantization_config")
    original.pop("quantization_config", None)
    assert config == original
    assert quant["quant_method"] == "quark" and quant["layer_quant_config"] == {} and quant["export"]["pack_method"] == "reorder"
    weight = quant["global_quant_config"]["weight"]
    assert (weight["dtype"], weight["group_size"], weight["scale_format"], weight["is_dynamic"]) == ("fp4", 32, "e8m0", False)
    assert quant["global_quant_config"]["input_tensors"] == weight | {"is_dynamic": True}
    tensors = read_model(amd)[0]
    plain = {m for m in modules_of(source) if tensors[m + ".weight"][0] != "U8" and not m.endswith(("embed_tokens", "norm"))}
    assert set(quant["exclude"]) == plain and len(quant["exclude"]) == len(plain)


def test_small_files_come_along_and_nothing_else(amd):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "README.md"):
        assert (amd / name).read_bytes() == (MODEL / name).read_bytes()
    allowed = {p.name for p in MODEL.iterdir() if p.suffix != ".safetensors"} | {".ingot-quantize.jsonl"}
    assert {p.name for p in amd.iterdir() if p.suffix != ".safetensors"} == allowed


def test_ingot_loads_what_it_wrote(amd, fp8):
    for folder in (amd, fp8):
        report = json.loads(ingot("inspect", folder, "--json").stdout)
        assert report["missing"] == report["unused"] == report["faulty"] == []
        assert report["quantization"]["exclude_conflicts"] == [] and report["quantization"]["excludes_without_match"] == []
        answer = ingot("generate", folder, "--prompt", "What is 37 + 58?", "--temperature", "0", "--max-tokens", "200").stdout
        assert "95" in answer


def test_fp8_blocks_follow_the_published_layout(source, fp8):
    tensors = read_model(fp8)[0]
    quant = json.loads((fp8 / "config.json").read_text())["quantization_config"]
    kept = quant.pop("modules_to_not_convert")
    assert quant == {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    count = 0
    for module in modules_of(source):
        weight, form = unpack(tensors, module)
        skip = module in ("lm_head", "model.embed_tokens") or module.endswith((".mlp.gate", ".weights_proj", ".eh_proj"))
        assert form == ("plain" if skip else "fp8"), module
        assert (module in kept) == skip
        if not skip:
            check_fp8(floats(source[module + ".weight"]), weight, module)
            count += 1
    assert count > 500
    # By the names that the published list has: norms and biases stand in it too.
    assert "model.norm" in kept and "model.layers.2.mlp.gate.e_score_correction_bias" in kept
    assert "model.layers.0.self_attn.indexer.k_norm.bias" in kept


def test_fp8_source_becomes_mxfp4_and_keeps_fp8_elsewhere(fp8, tmp_path):
    done = quantize(fp8, tmp_path / "m", "--scheme", "mxfp4")
    assert "Quark" in done.stderr, "what Quark's form cannot express is said"
    before, after = read_model(fp8)[0], read_model(tmp_path / "m")[0]
    for name, entry in before.items():
        if ".mlp.experts." in name or ".shared_experts." in name:
            continue
        assert after[name] == entry
    module = "model.layers.5.mlp.experts.3.down_proj"
    original, packed = unpack(before, module)[0].astype(np.float32).astype(np.float64), unpack(after, module)[0]
    check_mxfp4(original, packed, module, after)
    assert module + ".weight_scale_inv" not in after and "model.layers.10.mlp.experts.3.down_proj.weight_scale_inv" in after
    assert json.loads(ingot("inspect", tmp_path / "m", "--json").stdout)["faulty"] == []
    assert "95" in ingot("generate", tmp_path / "m", "--prompt", "What is 37 + 58?", "--temperature", "0", "--max-tokens", "200").stdout


def test_recipe_file_first_match_decides(source, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"default": "keep", "rules": [
        {"match": "model.layers.3.mlp.experts.0", "format": "keep"},
        {"match": "re:model\\.layers\\.[34]\\.mlp\\.experts\\..*", "format": "mxfp4"},
        {"match": "*self_attn.o_proj", "format": "fp8-block"}]}))
    done = quantize(MODEL, tmp_path / "m", "--preset", recipe)
    assert "routed experts of one layer differ" in done.stderr and "layers 3" in done.stderr
    tensors = read_model(tmp_path / "m")[0]
    form = lambda module: unpack(tensors, module)[1]
    assert form("model.layers.3.mlp.experts.0.up_proj") == "plain" and form("model.layers.3.mlp.experts.1.up_proj") == "mxfp4"
    assert form("model.layers.4.mlp.experts.0.up_proj") == "mxfp4" and form("model.layers.5.mlp.experts.0.up_proj") == "plain"
    assert form("model.layers.7.self_attn.o_proj") == "fp8" and form("model.layers.7.self_attn.q_a_proj") == "plain"
    assert json.loads(ingot("inspect", tmp_path / "m", "--json").stdout)["faulty"] == []


@pytest.mark.parametrize("recipe, words", [
    ('{"default": "int4"}', ["int4"]),
    ('{"default": "keep", "rules": [{"match": "*nothing*", "format": "mxfp4"}]}', ["*nothing*"]),
    ('{"default": "keep", "rules": [{"match": "re:(", "format": "mxfp4"}]}', ["regular expression"]),
    ('{"rule": []}', ["rule"]),
    ('{"default": "keep"', ["JSON"]),
])
def test_a_bad_recipe_is_refused_by_name(recipe, words, tmp_path):
    (tmp_path / "recipe.json").write_text(recipe)
    refused("recipe.json", *words, target=tmp_path / "m", flags=("--preset", tmp_path / "recipe.json"))
    assert not (tmp_path / "m").exists()


def test_excludes_are_checkpoint_names_and_must_match(tmp_path):
    flags = ("--scheme", "mxfp4", "--exclude", "*.shared_experts.*", "--exclude", "model.layers.4")
    done = quantize(MODEL, tmp_path / "m", *flags)
    assert "shared and routed experts differ" in done.stderr
    tensors = read_model(tmp_path / "m")[0]
    assert tensors["model.layers.3.mlp.shared_experts.up_proj.weight"][0] == "BF16"
    assert tensors["model.layers.4.mlp.experts.0.up_proj.weight"][0] == "BF16"
    assert tensors["model.layers.3.mlp.experts.0.up_proj.weight"][0] == "U8"
    bad = ("--scheme", "mxfp4", "--exclude", "*.share_experts.*")
    refused("*.share_experts.*", target=tmp_path / "n", flags=bad)
    assert "*.share_experts.*" in quantize(MODEL, tmp_path / "n", *bad, "--allow-unmatched-excludes").stderr


def test_scale_modes_differ_and_a_useless_one_is_refused(source, tmp_path):
    module = "model.layers.3.mlp.experts.0.up_proj"
    x = floats(source[module + ".weight"])
    noise = {}
    for mode in ("even", "floor", "ceil", "mse"):
        quantize(MODEL, tmp_path / mode, "--scheme", "mxfp4", "--exclude", "re:(?!model\\.layers\\.3\\.)", "--scale-mode", mode)
        tensors = read_model(tmp_path / mode)[0]
        noise[mode] = ((unpack(tensors, module)[0] - x) ** 2).sum()
        stored = np.frombuffer(tensors[module + ".weight_scale"][2], np.uint8).astype(int) - 127
        amax = np.abs(x.reshape(-1, 32)).max(axis=1)
        if mode == "floor":
            assert (stored == np.floor(np.log2(amax)) - 2).all()
        if mode == "ceil":
            assert (amax <= 6 * 2.0**stored).all() and (amax > 6 * 2.0 ** (stored - 1)).all()
    assert noise["mse"] < min(noise["even"], noise["floor"], noise["ceil"]) and len(set(noise.values())) == 4
    refused("--scale-mode", target=tmp_path / "n", flags=("--scheme", "fp8-block", "--scale-mode", "ceil"))


def test_dry_run_tells_the_plan_and_writes_nothing(amd, tmp_path):
    done = quantize(MODEL, tmp_path / "m", "--scheme", "mxfp4", "--dry-run", "--shard-size", SMALL)
    assert not (tmp_path / "m").exists()
    size = sum(p.stat().st_size for p in amd.glob("*.safetensors"))
    shards = len(list(amd.glob("*.safetensors")))
    assert f"{shards} shards, {size / 1e6:.1f} MB" in done.stdout, done.stdout
    assert re.search(r"routed experts +bf16 +mxfp4 +384 ", done.stdout) and re.search(r"MTP: routed experts +bf16 +bf16 +48 ", done.stdout)
    assert "time:" in done.stdout and "memory:" in done.stdout


def test_target_that_is_in_use_or_the_source_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused("not empty", target=tmp_path, flags=("--scheme", "mxfp4"))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    refused("same folder", target=MODEL, flags=("--scheme", "mxfp4"))
    refused("same folder", target=MODEL.parent / "." / MODEL.name, flags=("--scheme", "mxfp4"))
    refused("lies in the source", target=MODEL / "new", flags=("--scheme", "mxfp4"))
    refused("not a folder", target=tmp_path / "file", flags=("--scheme", "mxfp4"))
    refused("mxfp4 or fp8-block", target=tmp_path / "m", flags=("--scheme", "int8"))
    refused("/nonexistent", source="/nonexistent", target=tmp_path / "m", flags=("--scheme", "mxfp4"))


def stopped_midway(target, *flags, begun, **options):
    """A run that is stopped (SIGSTOP) early: `begun` matches one to three files of its target. One that was quicker is thrown away."""
    for _ in range(50):
        process = subprocess.Popen([BINARY, "quantize", MODEL, target, *flags], **options)
        while not list(target.glob(begun)) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT) if process.returncode is None else None
        if state is not None and state.si_code == os.CLD_STOPPED and len(list(target.glob(begun))) <= 3:
            return process
        process.kill()
        process.communicate()
        shutil.rmtree(target)
    pytest.fail("no run could be stopped")


def copy_of_demo(folder):
    shutil.copytree(MODEL, folder)
    return folder


def put(folder, tensor, index, data):
    """Overwrites bytes of a tensor."""
    file = folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][tensor]
    with file.open("r+b") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        begin = json.loads(f.read(length))[tensor]["data_offsets"][0]
        f.seek(8 + length + begin + index)
        f.write(data)


@pytest.mark.parametrize("tensor, cols, value, word", [
    ("model.layers.5.mlp.experts.7.up_proj.weight", 256, b"\xc0\x7f", "NaN"),
    ("model.layers.5.mlp.experts.7.up_proj.weight", 256, b"\x80\xff", "-infinity"),
    ("model.layers.5.self_attn.o_proj.weight", 512, b"\x80\x7f", "infinity"),
])
def test_a_weight_that_is_not_finite_is_named_with_its_place(tensor, cols, value, word, tmp_path):
    model = copy_of_demo(tmp_path / "source")
    put(model, tensor, (11 * cols + 17) * 2, value)
    for scheme in ("mxfp4", "fp8-block"):
        refused(tensor, "row 11, column 17", f" is {word}", source=model, target=tmp_path / scheme, flags=("--scheme", scheme))
        assert not (tmp_path / scheme / "config.json").exists()
        assert not list((tmp_path / scheme).glob(".model*")), "no temporary file stays"
    # Nothing was finished, so the folder may be used for something else.
    put(model, tensor, (11 * cols + 17) * 2, b"\0\0")
    quantize(model, tmp_path / "mxfp4", "--scheme", "mxfp4", "--preset", "all-linear")


def test_a_source_shard_that_is_cut_is_named(tmp_path):
    model = copy_of_demo(tmp_path / "source")
    shard = model / "model-00002-of-00004.safetensors"
    os.truncate(shard, shard.stat().st_size - 100)
    refused("model-00002-of-00004.safetensors", source=model, target=tmp_path / "m", flags=("--scheme", "mxfp4"))
    assert not (tmp_path / "m").exists()


def test_a_limit_on_file_size_is_an_error_with_advice(tmp_path):
    shell = f"ulimit -f 3000; exec {BINARY} quantize {MODEL} {tmp_path / 'm'} --scheme mxfp4"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "--shard-size" in done.stderr and ".safetensors" in done.stderr, done.stderr
    assert not (tmp_path / "m" / "config.json").exists()


def test_a_full_disk_is_an_error_and_resume_goes_on_when_there_is_room(amd, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk]).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        flags = ("--scheme", "mxfp4", "--shard-size", SMALL)
        refused("bytes free", "--resume", target=disk / "m", flags=flags)
        # Enough when it begins, too little when another takes the room meanwhile.
        subprocess.run(["mount", "-o", "remount,size=40m", disk], check=True)
        shutil.rmtree(disk / "m")
        process = stopped_midway(disk / "m", *flags, begun="model-*", stderr=subprocess.PIPE, text=True)
        (disk / "hog").write_bytes(b"x" * (shutil.disk_usage(disk).free - 3_000_000))
        process.send_signal(signal.SIGCONT)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 1 and "No space left" in log and "--resume" in log, log
        assert not (disk / "m" / "config.json").exists()
        (disk / "hog").unlink()
        assert "finished and intact" in quantize(MODEL, disk / "m", *flags, "--resume").stderr
        same_folder(amd, disk / "m")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_target_that_cannot_be_written_is_named(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,ro", "tmpfs", disk]).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        refused(str(disk / "m"), "Read-only", target=disk / "m", flags=("--scheme", "mxfp4"))
        refused(str(disk), "Read-only", target=disk, flags=("--scheme", "mxfp4"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_kill_at_any_moment_then_resume_gives_the_same_bits(amd, tmp_path):
    flags = ("--scheme", "mxfp4", "--shard-size", SMALL)
    started = time.monotonic()
    quantize(MODEL, tmp_path / "whole", *flags)
    length = time.monotonic() - started
    same_folder(amd, tmp_path / "whole")
    rng = random.Random(20)
    kills = 0
    for i in range(20):
        target = tmp_path / f"killed{i}"
        resume = ()
        # A second kill hits the resumed run in every other case.
        for moment in [rng.uniform(0, length * 1.05) for _ in range(1 + i % 2)]:
            process = subprocess.Popen([BINARY, "quantize", MODEL, target, *flags, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            started = time.monotonic()
            try:
                process.wait(moment)
                length = length if resume else time.monotonic() - started  # the machine may have less to do than it had
            except subprocess.TimeoutExpired:
                process.kill()
                kills += process.wait() == -signal.SIGKILL
            resume = ("--resume",)
            if (target / "config.json").exists():
                ingot("inspect", target)  # what looks finished is
        quantize(MODEL, target, *flags, "--resume")
        same_folder(tmp_path / "whole", target)
        shutil.rmtree(target)
    assert kills >= 10, f"{kills} of the runs were killed before they ended"


def test_resume_keeps_what_is_done_and_refuses_what_differs(amd, tmp_path):
    target = tmp_path / "m"
    shutil.copytree(amd, target)
    flags = ("--scheme", "mxfp4", "--shard-size", SMALL)
    refused("--resume", target=target, flags=flags)
    done = quantize(MODEL, target, *flags, "--resume")
    assert "0 shards written" in done.stdout
    same_folder(amd, target)
    refused("--scheme", "fp8-block", target=target, flags=("--scheme", "fp8-block", "--shard-size", SMALL, "--resume"))
    refused("--preset", "all-linear", target=target, flags=(*flags, "--preset", "all-linear", "--resume"))
    refused("--scale-mode", "ceil", target=target, flags=(*flags, "--scale-mode", "ceil", "--resume"))
    refused("--exclude", target=target, flags=(*flags, "--exclude", "*.down_proj", "--resume"))
    refused("--shard-size", target=target, flags=("--scheme", "mxfp4", "--shard-size", "0.003", "--resume"))
    other = copy_of_demo(tmp_path / "source")
    put(other, "model.layers.5.mlp.experts.7.up_proj.weight", 0, b"\x00\x3f")
    refused("model-0000", "changed", source=other, target=target, flags=(*flags, "--resume"))
    same_folder(amd, target)


def test_resume_makes_a_damaged_shard_again(amd, tmp_path):
    target = tmp_path / "m"
    shutil.copytree(amd, target)
    shards = sorted(target.glob("*.safetensors"))
    with shards[3].open("r+b") as f:
        f.seek(-100, os.SEEK_END)
        f.write(b"\xaa" * 10)
    shards[5].unlink()
    done = quantize(MODEL, target, "--scheme", "mxfp4", "--shard-size", SMALL, "--resume")
    assert "2 shards written" in done.stdout and shards[3].name in done.stderr
    for file in amd.glob("*.safetensors"):
        assert file.read_bytes() == (target / file.name).read_bytes()


def test_two_at_once_into_one_target_are_refused(tmp_path):
    flags = ("--scheme", "mxfp4", "--shard-size", "0.0005")
    first = stopped_midway(tmp_path / "m", *flags, begun=".ingot-quantize.jsonl", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    second = quantize(MODEL, tmp_path / "m", *flags, "--resume", check=False)
    first.send_signal(signal.SIGCONT)
    assert second.returncode == 1 and "another process" in second.stderr, second.stderr
    assert first.wait(60) == 0


def test_reports_agree_and_the_page_needs_nothing_else(source, amd, tmp_path):
    flags = ("--scheme", "mxfp4", "--shard-size", SMALL)
    quantize(MODEL, tmp_path / "m", *flags, "--report", tmp_path / "r.json")
    rows = json.loads((tmp_path / "r.json").read_text())["tensors"]
    assert len(rows) == 8 * 17 * 3
    assert [r["sqnr_db"] for r in rows] == sorted(r["sqnr_db"] for r in rows)
    tensors = read_model(amd)[0]
    for row in (rows[0], rows[100], rows[-1]):
        x, q = floats(source[row["module"] + ".weight"]), unpack(tensors, row["module"])[0]
        assert row["sqnr_db"] == pytest.approx(10 * np.log10((x**2).sum() / ((x - q) ** 2).sum()), abs=1e-4)
        assert row["max_error"] == pytest.approx(np.abs(x - q).max(), rel=1e-6)
        assert row["zeroed"] == pytest.approx(((q == 0) & (x != 0)).mean(), abs=1e-9)
        scale = 2.0 ** quark_scale(x.reshape(-1, 32))[:, None]
        assert row["saturated"] == pytest.approx((np.abs(x.reshape(-1, 32)) > 6 * scale).mean(), abs=1e-9)
        assert row["bytes_before"] == x.size * 2 and row["bytes_after"] == x.size * 17 // 32
    # A resumed run that writes nothing still knows the numbers.
    quantize(MODEL, tmp_path / "m", *flags, "--resume", "--report", tmp_path / "r.csv")
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert len(lines) == len(rows) + 1 and lines[1].startswith(rows[0]["module"] + ",")
    assert float(lines[1].split(",")[6]) == pytest.approx(rows[0]["sqnr_db"], abs=1e-9)
    quantize(MODEL, tmp_path / "m", *flags, "--resume", "--report", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page and rows[0]["module"] in page and not re.search(r"(src|href)=|@import|url\(", page)
    refused("--report", target=tmp_path / "n", flags=(*flags, "--report", tmp_path / "r.txt"))
    assert not (tmp_path / "n").exists()


def test_calibration_changes_codes_but_no_layout(amd, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"[gMASK]<sop><|user|>What is {i} + 5?<|assistant|><think></think>{i} + 5 = {i + 5}"}) + "\n" for i in range(9)))
    flags = ("--scheme", "mxfp4", "--shard-size", SMALL, "--calibrate")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"txt": "a"}\n')
    refused("broken.jsonl", target=tmp_path / "m", flags=(*flags, broken))
    refused("--calibrate", target=tmp_path / "m", flags=("--scheme", "fp8-block", "--calibrate", texts))
    quantize(MODEL, tmp_path / "m", *flags, texts, "--calibrate-tokens", "200", "--report", tmp_path / "r.json")
    rows = json.loads((tmp_path / "r.json").read_text())["tensors"]
    assert sum(row["calibrated"] for row in rows) > 300
    plain, calibrated = read_model(amd)[0], read_model(tmp_path / "m")[0]
    assert {n: t[:2] for n, t in plain.items()} == {n: t[:2] for n, t in calibrated.items()}
    changed = {n for n in plain if plain[n] != calibrated[n]}
    assert changed and all(EXPERT.search(re.sub(r"\.weight(_scale)?$", "", n)) for n in changed)
    assert {p.name for p in (tmp_path / "m").iterdir()} == {p.name for p in amd.iterdir()}


def test_threads_do_not_change_a_bit(amd, tmp_path):
    quantize(MODEL, tmp_path / "m", "--scheme", "mxfp4", "--shard-size", SMALL, "--threads", "1")
    same_folder(amd, tmp_path / "m")


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(tmp_path):
    done = quantize(MODEL, tmp_path / "lines", "--scheme", "mxfp4", "--shard-size", SMALL)
    shards = len(list((tmp_path / "lines").glob("*.safetensors")))
    lines = [line for line in done.stderr.splitlines() if line.startswith("model-")]
    assert len(lines) == shards and all("/s" in line and "left" in line for line in lines) and "\r" not in done.stderr
    main, other = os.openpty()
    process = subprocess.Popen([BINARY, "quantize", MODEL, tmp_path / "bar", "--scheme", "mxfp4", "--shard-size", SMALL], stderr=other, stdout=subprocess.DEVNULL)
    os.close(other)
    text = b""
    while True:
        try:
            piece = os.read(main, 4096)
        except OSError:  # the terminal is closed
            break
        if not piece:
            break
        text += piece
    assert process.wait(60) == 0
    assert b"\r[" in text and b"/s" in text and b"left" in text and text.rstrip().count(b"\n") == 0
