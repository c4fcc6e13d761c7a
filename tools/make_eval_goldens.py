#!/usr/bin/env python3
"""Oracle for src/eval: prompts, shufflings and marks as Python makes them, from the published facts alone.

    tools/make_eval_goldens.py ../shared/data/eval/gsm8k tests/golden/eval/rules.json

Prompts are kept as hashes, since the questions are data of others. The shots are drawn here with Python's own `random`, not read from the
index file. Marks are those of the regular expressions that lm-evaluation-harness, sglang and vLLM publish, on texts made up here.
"""

import argparse
import ast
import hashlib
import json
import pathlib
import random
import re

REQUEST = "\nEnd your response with the answer on the last line, formatted as: #### [number]"
INSTRUCTION = (
    "Answer the following multiple choice question. The last line of your response should be of the following format: 'Answer: $LETTER' "
    "(without quotes) where LETTER is one of ABCD. Think step by step before answering."
)


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def digest(prompts):
    return {
        "n": len(prompts),
        "first": hashlib.sha256(prompts[0].encode()).hexdigest(),
        "all": hashlib.sha256("\x00".join(prompts).encode()).hexdigest(),
    }


def few_shot(shots, question, request=""):
    parts = [f"Question: {shot['question']}{request}\nAnswer: {shot['answer']}" for shot in shots]
    return "\n\n".join([*parts, f"Question: {question}{request}\nAnswer:"])


def gsm8k_prompts(folder):
    train, test = read(folder / "train.jsonl"), read(folder / "test.jsonl")
    rng = random.Random(1234)
    drawn = [rng.sample(train, 5) for _ in test]
    return {
        "lm-eval": digest([few_shot(shots, item["question"]) for shots, item in zip(drawn, test)]),
        "inferencex": digest([few_shot(shots, item["question"], REQUEST) for shots, item in zip(drawn, test)]),
        "sglang": digest([few_shot(test[:5], item["question"]) for item in test[:200]]),
        "vllm": digest([few_shot(train[:5], item["question"]) for item in test]),
        "chat": digest([item["question"] + REQUEST for item in test]),
    }


def strict(text, last):
    found = re.findall(r"#### (\-?[0-9\.\,]+)", text)
    return found[-1 if last else 0] if found else ""


def flexible(text):
    found = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", text)
    return next(group for group in found[-1] if group).strip() if found else ""


def last_digits(text):
    found = re.findall(r"[0-9]+", text.replace(",", ""))
    if not found:
        return ""
    try:
        return str(ast.literal_eval(found[-1]))
    except SyntaxError:
        return ""


def normalized(text):
    for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
        text = re.sub(pattern, "", text)
    return text.lower()


def letter(text):
    found = re.search(r"(?i)Answer[ \t]*:[ \t]*\$?([A-D])\$?", text)
    return found.group(1).upper() if found else ""


def texts():
    known = [
        "", "no number here", "#### 18", "#### -3", "#### 1,234", "#### 18.", "#### 18.00", "x #### 5 y #### 6", "####18", "##### 7", "#### #### 8",
        "#### ,", "#### -", "#### - 5", "The answer is 18...", "$1,234.50", "-$5", "$-5", "- 5", "--5", "5-3", "a1b2", "12,", ",12", "...", "..", ".", "-",
        "72 clips.\n#### 72\n\nQuestion: next 99", "0", "00", "05", "1 05", "#### 0", "#### 1,000,000.", "#### $12", "ABC 3.5 DEF", "3 . 4", "\n#### 9\n",
    ]
    rng = random.Random(20260601)
    parts = ["####", "#### ", " ", "-", "$", ",", ".", "7", "18", "0", "05", "1,234", "x", "\n", "Answer: ", "..."]
    return known + ["".join(rng.choice(parts) for _ in range(rng.randint(1, 9))) for _ in range(400)]


def letter_texts():
    known = ["Answer: A", "answer : $b$", "ANSWER:\tD", "Answer: E\nAnswer: C", "Answer is A", "Answer:\nA", "Answer:Apple", "AnAnswer:$A$", "Answer", ""]
    rng = random.Random(7)
    parts = ["Answer", "answer", ":", " ", "\t", "$", "A", "b", "E", "\n", "x"]
    return known + ["".join(rng.choice(parts) for _ in range(rng.randint(2, 9))) for _ in range(200)]


def gpqa():
    """Made-up rows under simple-evals' shuffling, 3 repeats."""
    rows = [[f"What, in short, is {i}?", f"right {i}", f"wrong {i}a", f"wrong {i}b", f"wrong {i}c"] for i in range(7)]
    rng = random.Random(0)
    prompts, keys = [], []
    for _ in range(3):
        for question, *choices in rows:
            order = rng.sample(range(4), 4)
            shown = "\n".join(f"{letter_}) {choices[place]}" for letter_, place in zip("ABCD", order))
            prompts.append(f"{INSTRUCTION}\n\n{question}\n\n{shown}")
            keys.append("ABCD"[order.index(0)])
    return {**digest(prompts), "keys": "".join(keys)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gsm8k", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    rng = random.Random(2**40 + 5)
    golden = {
        "made_by": "tools/make_eval_goldens.py",
        "prompts": gsm8k_prompts(args.gsm8k),
        "gpqa": gpqa(),
        "samples": {"seed": 2**40 + 5, "of_7473": [rng.sample(range(7473), 5) for _ in range(4)], "of_21": rng.sample(range(21), 9)},
        "marks": [[t, strict(t, False), strict(t, True), flexible(t), last_digits(t), normalized(t)] for t in texts()],
        "letters": [[t, letter(t)] for t in letter_texts()],
    }
    args.out.write_text(json.dumps(golden, indent=0, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
