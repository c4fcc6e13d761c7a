#!/usr/bin/env python3
"""Writes tests/golden/numbers/latents.json: rows of the 656-byte latent cache, by numpy and ml_dtypes.

    pip install numpy ml_dtypes && tools/make_latent_goldens.py

The layout is FlashMLA's: 512 e4m3 numbers, four f32 scales for 128 of them each, 64 bf16 numbers. The scale is by the formula, in float32;
what is stored travels as hexadecimal bytes, the numbers that it is made of as f32 bit patterns.
"""
import json
import pathlib

import ml_dtypes
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/numbers/latents.json"
LATENT, ROPE, GROUP = 512, 64, 128


def stored(row):
    groups = row[:LATENT].reshape(-1, GROUP)
    amax = np.abs(groups).max(axis=1)
    scales = np.exp2(np.ceil(np.log2(np.maximum(amax / np.float32(448), np.float32(1e-4))))).astype(np.float32)
    codes = (groups / scales[:, None]).astype(ml_dtypes.float8_e4m3fn)
    assert np.isfinite(codes.astype(np.float32)).all()
    return codes.tobytes() + scales.tobytes() + row[LATENT:].astype(ml_dtypes.bfloat16).tobytes()


def main():
    rng = np.random.default_rng(20261130)
    normal = rng.standard_normal((2, LATENT + ROPE))
    outliers = rng.standard_normal(LATENT + ROPE)
    outliers[::97] *= 300
    tiny = rng.standard_normal(LATENT + ROPE) * 1e-3
    edges = np.zeros(LATENT + ROPE)  # a group of zeros; greatest numbers at and beside those where the scale doubles
    edges[130], edges[256], edges[500] = 448, np.nextafter(np.float32(448), np.float32(1e9)), -np.nextafter(np.float32(7), np.float32(0))
    edges[385] = 3.0
    rows = np.stack([*normal, outliers, tiny, edges]).astype(np.float32)
    golden = {
        "made_by": "tools/make_latent_goldens.py, numpy " + np.__version__ + ", ml_dtypes " + ml_dtypes.__version__,
        "latent_dim": LATENT,
        "rope_dim": ROPE,
        "rows": [[int(b) for b in row.view(np.uint32)] for row in rows],
        "stored": [stored(row).hex() for row in rows],
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with OUT.open("w") as out:
        out.write("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in golden.items()) + "\n}\n")


if __name__ == "__main__":
    main()
