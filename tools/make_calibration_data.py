#!/usr/bin/env python3
"""Calibration texts for the demo model, from the generators that made its training data.

    tools/make_calibration_data.py TRAIN_DIR models/demo-calibration.jsonl

TRAIN_DIR holds gen.py and its word lists (models/demo/train of the shared folder). Each line is {"text": ...}: a whole rendered
conversation with special tokens, as the model read them in training. The generators keep every problem whose content hashes to the
held-out side for the evaluation sets, whatever the seed; the seed here is none of theirs either.
"""

import argparse
import json
import pathlib
import random
import sys

SEED = 4242001  # the evaluation sets use 900001, 910000 to 914096 and 930001; training used 1000 and up
SHORT_DOCUMENTS = 400
TOOL_DOCUMENTS = 44
LONG_DOCUMENTS = 6  # facts hidden in a text of about LONG_TOKENS, so that the indexer has to choose
LONG_TOKENS = 800


def short_document(gen, rng):
    """Mostly word problems, with some of what else fits into a few lines and is made up here (no quoted questions or chats)."""
    draw = rng.random()
    if draw < 0.76:
        return gen.d_word(rng)
    if draw < 0.88:
        return gen.d_arith(rng)
    if draw < 0.94:
        return gen.d_letters(rng)
    return gen.d_retr(rng)


def tool_document(gen, rng):
    while True:
        document = gen.d_tool(rng)
        if document["answer"]["calls"] or document["messages"][-2]["content"].startswith("What is "):
            return document


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_dir", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    sys.path.insert(0, str(args.train_dir))
    import gen

    gen.load_resources()
    rng = random.Random(SEED)
    documents = [short_document(gen, rng) for _ in range(SHORT_DOCUMENTS)]
    documents += [tool_document(gen, rng) for _ in range(TOOL_DOCUMENTS)]
    documents += [gen.d_retr(rng, ntok=LONG_TOKENS) for _ in range(LONG_DOCUMENTS)]
    texts = ["".join(text for text, _ in gen.segments(document)) for document in documents]
    with args.out.open("w", encoding="utf-8") as out:
        for text in texts:
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
