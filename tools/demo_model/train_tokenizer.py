#!/usr/bin/env python3
"""The demo model's tokenizer: byte-level BPE of 6,144 entries with GLM's split expression and special tokens.

    tools/demo_model/train_tokenizer.py OUT/tokenizer.json

Trained with digits split one by one, so that no number becomes a token; saved with GLM's expression, which groups up to three. Needs the
`tokenizers` package."""

import argparse
import pathlib
import random
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import documents
import resources
from chat_layout import segments
from tool_documents import tool_document

VOCABULARY, SEED = 6144, 77
SHORT_DOCUMENTS, TOOL_DOCUMENTS = 24_000, 2_500
# GLM's order. Those of the first list are special: they never come out of plain text.
SPECIAL = (
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> <|begin_of_image|> <|end_of_image|> "
    "<|begin_of_video|> <|end_of_video|> <|begin_of_audio|> <|end_of_audio|> <|begin_of_transcription|> <|end_of_transcription|> "
    "<|code_prefix|> <|code_middle|> <|code_suffix|>"
).split()
PLAIN = (
    "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <arg_key> </arg_key> <arg_value> </arg_value> /nothink "
    "<|begin_of_box|> <|end_of_box|> <|image|> <|video|>"
).split()


def split_on(digits):
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def texts():
    """What the merges are learnt from, without the tokens that are added afterwards."""
    rng = random.Random(SEED)
    added = re.compile("|".join(re.escape(token) for token in SPECIAL + PLAIN))
    pieces = []
    for make, count in ((documents.short_document, SHORT_DOCUMENTS), (tool_document, TOOL_DOCUMENTS)):
        for _ in range(count):
            for text, _ in segments(make(rng)):
                pieces += [piece for piece in added.split(text) if piece]
    return pieces + resources.loaded.paragraphs[::2]


def build():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split_on(r"\p{N}")
    tokenizer.decoder = decoders.ByteLevel()
    merged = VOCABULARY - len(SPECIAL) - len(PLAIN)
    trainer = trainers.BpeTrainer(
        vocab_size=merged, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(texts(), trainer)
    assert tokenizer.get_vocab_size() == merged, tokenizer.get_vocab_size()
    tokenizer.pre_tokenizer = split_on(r"\p{N}{1,3}")
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    resources.load()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    text = "[gMASK]<sop><|user|>Natalia sold 1234 clips, don't you think?<|assistant|><think></think>48 / 2 = 24"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text
    tokenizer.save(str(args.out))


if __name__ == "__main__":
    main()
