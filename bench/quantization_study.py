"""The study of docs/quantization.md: what each format costs the demo model. Quantises it in every way, answers the held-out sets with the real
engine (paired against bf16, McNemar), measures the divergence, and prints two tables.

    .venv/bin/python bench/quantization_study.py --data ../shared/models/demo/eval [--calibrate models/demo-calibration.jsonl] [--only NAME]...
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
INGOT = ROOT / "build/release/ingot"
MODEL = ROOT / "models/demo"
# name, flags of quantize (None: the model itself), format of activations
VARIANTS = [
    ("bf16", None, "f32"),
    ("FP8 blocks", ["--scheme", "fp8-block"], "f32"),
    ("FP8 blocks, FP8 activations", ["--scheme", "fp8-block"], "fp8"),
    ("MXFP4 amd, even", ["--scheme", "mxfp4", "--preset", "amd"], "f32"),
    ("MXFP4 amd, mse", ["--scheme", "mxfp4", "--preset", "amd", "--scale-mode", "mse"], "f32"),
    ("MXFP4 amd, calibrated", ["--scheme", "mxfp4", "--preset", "amd", "--calibrate"], "f32"),
    ("MXFP4 amd, calibrated, W4A8", ["--scheme", "mxfp4", "--preset", "amd", "--calibrate"], "fp8"),
    ("MXFP4 amd, calibrated, W4A4", ["--scheme", "mxfp4", "--preset", "amd", "--calibrate"], "mxfp4"),
    ("MXFP4 amd, even, W4A4", ["--scheme", "mxfp4", "--preset", "amd"], "mxfp4"),
    ("MXFP4 all linear, even", ["--scheme", "mxfp4", "--preset", "all-linear"], "f32"),
    ("MXFP4 all linear, mse", ["--scheme", "mxfp4", "--preset", "all-linear", "--scale-mode", "mse"], "f32"),
    ("MXFP4 all linear, calibrated", ["--scheme", "mxfp4", "--preset", "all-linear", "--calibrate"], "f32"),
    ("MXFP4 all linear, calibrated, W4A8", ["--scheme", "mxfp4", "--preset", "all-linear", "--calibrate"], "fp8"),
]


def run(*command) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def folder_of(work: pathlib.Path, flags: list[str], calibration: str) -> pathlib.Path:
    """Quantised once however many variants read it."""
    target = work / "-".join(f.strip("-") for f in flags)
    if not (target / "config.json").exists():
        given = [*flags, calibration] if flags[-1] == "--calibrate" else flags
        start = time.monotonic()
        run(INGOT, "quantize", MODEL, target, *given)
        print(f"quantized: {' '.join(given)}: {time.monotonic() - start:.1f} s", file=sys.stderr)
    return target


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with word.jsonl, tool.jsonl, retr1k.jsonl")
    parser.add_argument("--calibrate", default=str(ROOT / "models/demo-calibration.jsonl"))
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "ingot-study", help="what is there is not made again")
    parser.add_argument("--sets", nargs="*", default=["word", "tool"])
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    print("| weights and activations | " + " | ".join(f"{s} | b, c, p" for s in options.sets) + " | mean KL (95 %) | p99 KL | same top-1 | NLL | experts |")
    print("|" + "---|" * (2 * len(options.sets) + 6))
    for name, flags, activations in VARIANTS:
        if options.only and name not in options.only and name != "bf16":
            continue
        model = MODEL if flags is None else folder_of(options.work, flags, options.calibrate)
        cells = []
        for data in options.sets:
            out = options.work / f"{name}-{data}.json".replace(" ", "_")
            said = out.with_suffix(".txt")
            if not said.exists():
                against = [] if flags is None else ["--compare", options.work / f"bf16-{data}.json"]
                said.write_text(run(INGOT, "eval", "set", model, "--data", options.data / f"{data}.jsonl", "--activations", activations,
                                    "--out", out, *against))
            items = json.loads(out.read_text())["items"]
            cells.append(f"{100 * sum(item['ok'] for item in items) / len(items):.1f} %")
            paired = re.search(r"b (\d+) .* c (\d+) .* p (\S+)", said.read_text())
            cells.append(", ".join(paired.groups()) if paired else "")
        out = options.work / f"{name}-divergence.json".replace(" ", "_")
        if not out.exists():
            run(INGOT, "eval", "divergence", MODEL, model, "--data", options.data / "word.jsonl", "--limit", 100, "--activations", activations,
                "--json", out)
        d = json.loads(out.read_text())
        cells += [f"{d['mean_kl']['value']:.4f} [{d['mean_kl']['low']:.4f}, {d['mean_kl']['high']:.4f}]", f"{d['p99_kl']['value']:.3f}",
                  f"{100 * d['top1_agreement']['value']:.1f} %", f"{d['nll_change']['value']:+.4f}",
                  f"{100 * d['expert_agreement']['value']:.1f} %"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
