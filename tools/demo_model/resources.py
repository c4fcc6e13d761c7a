"""Words, names, texts and quoted questions that documents are made of. README.md says where each comes from."""

import json
import lzma
import pathlib
import types

HERE = pathlib.Path(__file__).resolve().parent
NAMES = (HERE / "names.txt").read_text(encoding="utf-8").split()

# Keys of resources.json.xz and what they are called here.
KEYS = {
    "paras": "paragraphs",
    "nouns": "nouns",
    "adjs": "adjectives",
    "cities": "cities",
    "chat": "chat",
    "facts": "facts",
    "gsm": "problems",
}

loaded = types.SimpleNamespace()


def load(path=HERE / "resources.json.xz"):
    """Fills `loaded`: paragraphs, nouns, adjectives, cities (lists of str), chat and facts (question, answer), problems (question, steps, number)."""
    data = json.loads(lzma.open(path).read().decode("utf-8"))
    for key, name in KEYS.items():
        setattr(loaded, name, data[key])
