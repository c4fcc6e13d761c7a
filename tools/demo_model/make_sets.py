#!/usr/bin/env python3
"""Evaluation and calibration sets from the demo model's generators. Standard library alone.

    tools/demo_model/make_sets.py evaluation OUT_FOLDER [--seed N] [--only word,tool]
    tools/demo_model/make_sets.py calibration OUT_FILE [--seed N]

evaluation: word.jsonl (500), tool.jsonl (200), retr1k.jsonl, retr2k.jsonl, retr4k.jsonl (200 each), as `ingot eval demo` and `ingot eval set`
read them. Seed 0 gives the published sets; any other gives fresh ones of the same make-up. Their content comes from the sixteenth that the
generators hold out of training, whatever the seed (word problems and tool calls; what is to be found in a text is drawn anew).
calibration: {"text": ...} lines for `ingot quantize --calibrate`: whole conversations, from the side that training sees.
"""

import argparse
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import documents  # noqa: E402
import resources  # noqa: E402
from chat_layout import render, segments  # noqa: E402
from tool_documents import tool_document  # noqa: E402

WORD_SEED, RETRIEVAL_SEED, TOOL_SEED = 900_001, 910_000, 930_001
WORD_STEPS = [1] * 100 + [2] * 250 + [3] * 100 + [4] * 50
RETRIEVAL_TOKENS = {"retr1k": 1000, "retr2k": 2000, "retr4k": 3900}
TOOL_MODES = ["one", "one", "one", "two", "none"]

CALIBRATION_SEED = 4242001  # none of the evaluation sets' nor of training's (1000 and up)
SHORT_DOCUMENTS, TOOL_DOCUMENTS, LONG_DOCUMENTS, LONG_TOKENS = 400, 44, 6, 800


def word_set(seed):
    rng = random.Random(WORD_SEED + seed)
    return [
        documents.word_document(rng, True, steps, think=i % 2 == 0, effort="max" if i % 4 == 0 else "high")
        for i, steps in enumerate(WORD_STEPS)
    ]


def retrieval_set(tokens, seed):
    rng = random.Random(RETRIEVAL_SEED + tokens + seed)
    return [documents.retrieval_document(rng, ntok=int(tokens * 0.9), nq=1, form=i % 6, think=False) for i in range(200)]


def tool_set(seed):
    rng = random.Random(TOOL_SEED + seed)
    return [tool_document(rng, True, mode=TOOL_MODES[i % 5], think=i % 2 == 1) for i in range(200)]


def evaluation_sets(seed=0):
    """Name -> maker of its documents."""
    sets = {"word": lambda: word_set(seed), "tool": lambda: tool_set(seed)}
    for name, tokens in RETRIEVAL_TOKENS.items():
        sets[name] = lambda tokens=tokens: retrieval_set(tokens, seed)
    return sets


def question_of(document):
    """The document up to its last user message."""
    messages = document["messages"]
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    return {**document, "messages": messages[: last + 1]}


def line_of(name, number, document):
    question = question_of(document)
    line = {
        "id": f"{name}-{number}",
        "kind": document["kind"],
        "messages": question["messages"],
        "tools": document.get("tools"),
        "enable_thinking": document["think"],
        "reasoning_effort": document["effort"] if document["think"] else None,
        "expected": document["answer"],
        "prompt": "".join(text for text, _ in render(question, gen_prompt=True)),
    }
    if document["kind"] == "word":
        line.update(steps=document["n"], family=document["fam"])
    if document["kind"] == "retr":
        line["form"] = document["form"]
    return line


def calibration_documents(seed):
    """Mostly word problems, with some of what else fits into a few lines and is made up here (no quoted questions or chats)."""
    rng = random.Random(seed)

    def short():
        draw = rng.random()
        if draw < 0.76:
            return documents.word_document(rng)
        if draw < 0.88:
            return documents.arithmetic_document(rng)
        return documents.letters_document(rng) if draw < 0.94 else documents.retrieval_document(rng)

    def tool():
        while True:
            document = tool_document(rng)
            if document["answer"]["calls"] or document["messages"][-2]["content"].startswith("What is "):
                return document

    made = [short() for _ in range(SHORT_DOCUMENTS)]
    made += [tool() for _ in range(TOOL_DOCUMENTS)]
    return made + [documents.retrieval_document(rng, ntok=LONG_TOKENS) for _ in range(LONG_DOCUMENTS)]


def write_lines(path, lines):
    with path.open("w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(f"{path}: {len(lines)} lines")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["evaluation", "calibration"])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, help=f"default: 0 for evaluation, {CALIBRATION_SEED} for calibration")
    parser.add_argument("--only", help="names of evaluation sets, with commas")
    args = parser.parse_args()
    resources.load()
    if args.what == "calibration":
        made = calibration_documents(CALIBRATION_SEED if args.seed is None else args.seed)
        return write_lines(args.out, [{"text": "".join(text for text, _ in segments(document))} for document in made])
    sets = evaluation_sets(args.seed or 0)
    names = args.only.split(",") if args.only else list(sets)
    if unknown := [name for name in names if name not in sets]:
        parser.error(f"--only {unknown[0]} is unknown: use {', '.join(sets)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        write_lines(args.out / f"{name}.jsonl", [line_of(name, i, document) for i, document in enumerate(sets[name]())])


if __name__ == "__main__":
    main()
