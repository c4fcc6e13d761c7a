#!/usr/bin/env python3
"""Writes tests/golden/numbers/conversions.json: number conversions by ml_dtypes, an implementation that is not ours.

    pip install ml_dtypes && tools/make_number_goldens.py

Values travel as bit patterns (f32 as unsigned integers). Our float-to-e4m3 saturates where ml_dtypes gives NaN, so the golden
holds only inputs that round to a finite e4m3; saturation has tests of its own.
"""
import json
import pathlib

import ml_dtypes
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/numbers/conversions.json"


def bits(values):
    return np.asarray(values, dtype=np.float32).view(np.uint32)


def nearby(values, steps=1):
    """Each value with its f32 neighbours: just below, at and just above a rounding boundary."""
    out = []
    for value in np.asarray(values, dtype=np.float32):
        low = high = value
        out.append(value)
        for _ in range(steps):
            low = np.nextafter(low, np.float32(-np.inf))
            high = np.nextafter(high, np.float32(np.inf))
            out += [low, high]
    return np.array(out, dtype=np.float32)


def decode(dtype, count):
    return [int(b) for b in bits(np.arange(count, dtype=np.uint8).view(dtype).astype(np.float32))]


def encode(dtype, inputs):
    codes = np.asarray(inputs, dtype=np.float32).astype(dtype).view(np.uint16 if np.dtype(dtype).itemsize == 2 else np.uint8)
    return [[int(b), int(c)] for b, c in zip(bits(inputs), codes)]


def main():
    rng = np.random.default_rng(20261130)
    e4m3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = np.sort(np.unique(e4m3[np.isfinite(e4m3)]))
    midpoints = (finite[:-1] + finite[1:]) / 2
    e4m3_in = np.concatenate([nearby(finite), nearby(midpoints)])
    e4m3_in = e4m3_in[np.abs(e4m3_in) <= 448]

    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
    e2m1_in = nearby(np.concatenate([e2m1, (e2m1[:-1] + e2m1[1:]) / 2]))
    e2m1_in = np.concatenate([e2m1_in, -e2m1_in])
    e2m1_in = e2m1_in[np.abs(e2m1_in) <= 6]

    patterns = np.concatenate([
        rng.integers(0, 2**32, 256, dtype=np.uint32),
        np.array([0, 0x80000000, 1, 0x80000001, 0x7f7fffff, 0x7f7f7fff, 0x7f7f8000, 0x7f800000, 0xff800000, 0x007fffff, 0x00800000,
                  0x00008000, 0x00018000, 0x00007fff, 0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001], dtype=np.uint32)])
    values = patterns.view(np.float32)
    values = values[~np.isnan(values)]

    golden = {
        "made_by": "tools/make_number_goldens.py, ml_dtypes " + ml_dtypes.__version__,
        "e4m3_to_f32": decode(ml_dtypes.float8_e4m3fn, 256),
        "e8m0_to_f32": decode(ml_dtypes.float8_e8m0fnu, 256),
        "e2m1_to_f32": decode(ml_dtypes.float4_e2m1fn, 16),
        "f32_to_e4m3": encode(ml_dtypes.float8_e4m3fn, e4m3_in),
        "f32_to_e2m1": encode(ml_dtypes.float4_e2m1fn, e2m1_in),
        "f32_to_bf16": encode(ml_dtypes.bfloat16, values),
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with OUT.open("w") as out:
        out.write("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in golden.items()) + "\n}\n")


if __name__ == "__main__":
    main()
