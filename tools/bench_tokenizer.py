"""Ingot's tokenizer against Hugging Face `tokenizers`, single-threaded, same text, same session; ids must be equal.

Hugging Face gets the text in documents of about 16 kB, cut where no word crosses: its encode() slows down with the length of one
text, and a whole file in one call would flatter us. Ingot gets the whole file in one call.

  python3 -m venv build/venv-tok && build/venv-tok/bin/pip install tokenizers
  build/venv-tok/bin/python tools/bench_tokenizer.py --ingot 'build/release/ingot bench tokenizer' TOKENIZER.json ...

The command after --ingot is called as CMD --tokenizer T --text F --runs N --ids-out O. With --positional: CMD T F N O.
"""
import argparse
import os
import pathlib
import random
import re
import shlex
import statistics
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402  (after the switches above)

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def source_texts():
    """English and JSON from the repository and, when there, the shared data; code from src."""
    code = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "src").rglob("*.h"))][:40]
    prose = [p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("**/README.md")) if "build" not in p.parts]
    data = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "tests/golden/eval").glob("*.jsonl"))]
    for name in ("data/eval/gsm8k/train.jsonl", "data/eval/mt_bench_question.jsonl"):
        if (SHARED / name).exists():
            prose.append((SHARED / name).read_text(encoding="utf-8")[:1_500_000])
    return [t for t in (*code, *prose, *data) if t]


def mixed_text(num_bytes, seed=7):
    rng = random.Random(seed)
    texts = source_texts()
    emoji = [chr(c) for c in (*range(0x1F300, 0x1F5FF), *range(0x1F600, 0x1F64F))] + ["👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️"]
    parts, size = [], 0
    while size < num_bytes:
        kind = rng.random()
        if kind < 0.75:
            text = rng.choice(texts)
            at = rng.randrange(max(1, len(text) - 2000))
            part = text[at:at + 2000]
        elif kind < 0.9:
            part = "".join("，。！？"[rng.randrange(4)] if rng.random() < 0.08 else chr(0x4E00 + int(rng.paretovariate(0.6) * 37) % 0x51A5)
                           for _ in range(400)) + "これはテストです。한국어 문장입니다.\n"
        elif kind < 0.95:
            part = " ".join(str(rng.randrange(10 ** rng.randrange(1, 12))) for _ in range(80)) + "\n"
        else:
            part = "".join(rng.choice(emoji) + rng.choice(["", " ", " ok "]) for _ in range(100)) + "\n"
        parts.append(part)
        size += len(part.encode())
    return "".join(parts)


def hostile_text(num_chars, seed=11):
    """Random characters of every plane with a taste for what patterns look at."""
    rng = random.Random(seed)
    taste = list("'sStTrReEvVmMlLdD  \t\n\r\n  09a.<|[]>\u0301\u0323ſK\u00a0\u0085\u180e\u2028\u3000é한") + ["<|user|>", "[gMASK]", "<|endoftext|>"]
    out = []
    for _ in range(num_chars):
        if rng.random() < 0.75:
            out.append(rng.choice(taste))
            continue
        c = rng.randrange(rng.choice([0x80, 0x800, 0x10000, 0x30000]))
        out.append("x" if 0xD800 <= c <= 0xDFFF else chr(c))
    return "".join(out)


def documents(text, size=16_000):
    """Cuts after a line's end that is followed by something else than white space: words of these patterns never cross it."""
    parts, at = [], 0
    while at < len(text):
        cut = re.compile(r"\n(?=\S)").search(text, min(len(text), at + size))
        end = cut.end() if cut else len(text)
        parts.append(text[at:end])
        at = end
    return parts


def run_ingot(args, tokenizer, text_file, runs, ids_file):
    command = shlex.split(args.ingot)
    command += [tokenizer, text_file, str(runs), ids_file] if args.positional else [
        "--tokenizer", tokenizer, "--text", text_file, "--runs", str(runs), "--ids-out", ids_file]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    raw = pathlib.Path(ids_file).read_bytes()
    return line, [int.from_bytes(raw[i:i + 4], "little", signed=True) for i in range(0, len(raw), 4)]


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", required=True)
    parser.add_argument("--positional", action="store_true")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("tokenizers", nargs="+")
    args = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        texts = {"mixed": mixed_text(int(args.megabytes * 1e6)), "hostile": hostile_text(200_000)}
        for name, text in texts.items():
            pathlib.Path(folder, name).write_bytes(text.encode())
        for path in args.tokenizers:
            start = time.perf_counter()
            theirs = Tokenizer.from_file(path)
            load = time.perf_counter() - start
            for name, text in texts.items():
                runs = args.runs if name == "mixed" else 1
                line, ours = run_ingot(args, path, str(pathlib.Path(folder, name)), runs, str(pathlib.Path(folder, "ids")))
                size, rates, ids = len(text.encode()), [], []
                parts = documents(text) if name == "mixed" else [text]
                for _ in range(runs):
                    start = time.perf_counter()
                    ids = [i for part in parts for i in theirs.encode(part, add_special_tokens=False).ids]
                    rates.append(size / 1e6 / (time.perf_counter() - start))
                equal = ids == ours
                status |= not equal
                print(f"{path} [{name}]\n  ingot: {line}")
                print(f"  hf: load {load:.3f} s; {runs} runs: median {statistics.median(rates):.2f} MB/s (min {min(rates):.2f}, max {max(rates):.2f})")
                ratio = float(line.split("median ")[1].split()[0]) / statistics.median(rates)
                print(f"  ratio {ratio:.2f}; ids {'equal' if equal else 'DIFFER'} ({len(ids)})", flush=True)
                if not equal:
                    i = first_difference(ids, ours)
                    print(f"  first difference at {i}: hf {ids[i:i + 8]} {theirs.decode(ids[max(0, i - 3):i + 4])!r}, ingot {ours[i:i + 8]} {theirs.decode(ours[max(0, i - 3):i + 4])!r}")
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
