#!/usr/bin/env python3
"""Training rows from the generators: one process of several, each with a seed of its own.

    tools/demo_model/pack_shards.py OUT --tokenizer OUT/tokenizer.json --process N --shards M

A shard s<number>_<process>.npz holds short rows (si, sw: 128 x 2,048) and long ones (li, lw: 64 x 4,096; the first shard a quarter of that).
Ids are uint16. A weight is a byte: hundredths of the loss's weight, with 128 added where a document begins. train.py takes shards as they
come. Needs numpy and `tokenizers`."""

import argparse
import os
import pathlib
import random

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism

import numpy as np  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import documents  # noqa: E402
import resources  # noqa: E402
from chat_layout import segments  # noqa: E402

SHORT_TOKENS, LONG_TOKENS = 2048, 4096
SHORT_ROWS, LONG_ROWS = 128, 64
SHORT_DOCUMENT_TOKENS = 256  # a longer one goes into long rows
FIRST_SEED = 1000
BEGIN = 128


def encode(tokenizer, made):
    """(ids, weights) of each document."""
    parts = [segments(document) for document in made]
    encoded = iter(tokenizer.encode_batch([text for segment in parts for text, _ in segment], add_special_tokens=False))
    result = []
    for segment in parts:
        ids, weights = [], []
        for _, weight in segment:
            piece = next(encoded).ids
            ids += piece
            weights += [round(weight * 100)] * len(piece)
        result.append((np.array(ids, np.uint16), np.array(weights, np.uint8)))
    return result


def pack(waiting, tokens, rows, filler):
    """Rows of documents taken off the end of `waiting`: whoever of the next forty fits."""
    ids, weights = np.full((rows, tokens), filler, np.uint16), np.zeros((rows, tokens), np.uint8)
    for row in range(rows):
        used, passed, candidate = 0, 0, len(waiting) - 1
        while candidate >= 0 and passed < 40 and used < tokens - 24:
            document, document_weights = waiting[candidate]
            if len(document) <= tokens - used:
                end = used + len(document)
                ids[row, used:end], weights[row, used:end] = document, document_weights
                weights[row, used] |= BEGIN
                used = end
                waiting.pop(candidate)
            else:
                passed += 1
            candidate -= 1
        if used < tokens:
            weights[row, used] |= BEGIN
    return ids, weights


def total(waiting):
    return sum(len(ids) for ids, _ in waiting)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--process", type=int, default=0, help="its number is part of the seed")
    parser.add_argument("--shards", type=int, default=1)
    args = parser.parse_args()
    resources.load()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(args.tokenizer)
    filler = tokenizer.token_to_id("<|endoftext|>")
    rng = random.Random(FIRST_SEED + args.process)
    short, long = [], []
    for number in range(args.shards):
        # A small first shard lets training begin early.
        short_rows, long_rows = (SHORT_ROWS // 4, LONG_ROWS // 4) if number == 0 else (SHORT_ROWS, LONG_ROWS)
        while total(short) < short_rows * SHORT_TOKENS * 1.04 + 6000:
            for document in encode(tokenizer, [documents.short_document(rng) for _ in range(1500)]):
                (short if len(document[0]) <= SHORT_DOCUMENT_TOKENS else long).append(document)
        while total(long) < long_rows * LONG_TOKENS * 1.12 + 30_000:
            made = encode(tokenizer, [documents.long_document(rng) for _ in range(100)])
            long += [document for document in made if len(document[0]) <= LONG_TOKENS]
        rng.shuffle(short)
        rng.shuffle(long)
        si, sw = pack(short, SHORT_TOKENS, short_rows, filler)
        li, lw = pack(long, LONG_TOKENS, long_rows, filler)
        unfinished = args.out / f".{args.process}.npz"
        np.savez(unfinished, si=si, sw=sw, li=li, lw=lw)
        unfinished.rename(args.out / f"s{number:04d}_{args.process:02d}.npz")
        print(
            f"shard {number} of process {args.process}: {(sw > 0).mean():.3f} and {(lw > 0).mean():.3f} of the rows are filled", flush=True
        )


if __name__ == "__main__":
    main()
