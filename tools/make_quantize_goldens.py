#!/usr/bin/env python3
"""Writes tests/golden/quantize/hashes.json: what ml_dtypes and numpy make of inputs that both sides can generate.

    pip install ml_dtypes xxhash && tools/make_quantize_goldens.py

Inputs are a function of (seed, counter), the formula of src/base/rng.h, and are never stored; the golden holds XXH3-64 of the bytes that
quantising them must give. Scales follow spec/glm-5.2.md sections 5 and 6.3 in words (frexp, not bit tricks); elements are rounded by
ml_dtypes. Where ml_dtypes has no answer, ours is a definition: e2m1 saturates (NaN: code 7), e4m3 saturates at 448, an infinite amax
counts as 2^128, an FP8 block whose amax / 448 is zero has scale 1.
"""
import json
import pathlib

import ml_dtypes
import numpy as np
import xxhash

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/quantize/hashes.json"
SEED = 20261130
U64 = np.uint64
CHUNK = 32768  # blocks at a time
# Mantissas round the bounds of every mode: 1, 1.5, just above, 1.749.., 1.75, just above, 1.76, the greatest.
EDGES = np.array([0, 0x400000, 0x400001, 0x5fffff, 0x600000, 0x600001, 0x6147ae, 0x7fffff], dtype=U64)


def mix64(x):
    x = x + U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def random_bits(seed, counter):
    return mix64(mix64(np.array([seed], dtype=U64)) ^ mix64(np.asarray(counter, dtype=U64) * U64(0x2545F4914F6CDD1D)))


def near(index, base):
    """f32 bits of elements at and below exponent field `base`: many ties, some zeros (of both signs), some far smaller."""
    r = random_bits(SEED, index)
    drop = (r >> U64(32)) % U64(8) + np.where((r >> U64(35)) % U64(16) == 0, U64(20), U64(0))
    exponent = np.where(base > drop, base - drop, U64(0))
    mantissa = np.where((r >> U64(40)) % U64(2) == 0, r & U64(0x7FFFFF), r & U64(0x600000))
    bits = np.where((r >> U64(43)) % U64(32) == 0, U64(0), exponent << U64(23) | mantissa)
    return bits | (r >> U64(42)) % U64(2) << U64(31)


def make_blocks(kind, first, count):
    """(count, 32) f32 bits of blocks first.. of an input set."""
    block = np.arange(first, first + count, dtype=U64)[:, None]
    index = block * U64(32) + np.arange(32, dtype=U64)[None, :]
    rb = random_bits(SEED + 1, block)
    if kind == "any":  # any pattern: NaN and infinity too
        bits = random_bits(SEED, index) & U64(0xFFFFFFFF)
    elif kind == "blocks":  # any block exponent; some blocks of zeros only
        bits = near(index, U64(1) + rb % U64(254))
        bits = np.where((rb >> U64(32)) % U64(64) == 0, bits & U64(0x80000000), bits)
    elif kind == "edges":  # amax at every exponent and every bound
        field = block // U64(8) % U64(255)
        amax = field << U64(23) | EDGES[(block % U64(8)).astype(np.int64)]
        bits = near(index, np.where(field > 0, field - U64(1), U64(0)))
        bits = np.where(index % U64(32) == rb % U64(32), amax | bits & U64(0x80000000), bits)
    else:  # "weights": exponents as weights have them
        bits = near(index, U64(112) + rb % U64(12))
    return bits.astype(np.uint32)


def importance(first, count):
    index = np.arange(first * 32, (first + count) * 32, dtype=U64).reshape(count, 32)
    r = random_bits(SEED + 2, index)
    return np.where(r % U64(8) == 0, U64(0), r >> U64(44)).astype(np.float32)


def exponents(amax, mode):
    with np.errstate(invalid="ignore"):
        wide = np.where(np.isinf(amax), np.ldexp(1.0, 128), amax.astype(np.float64))
    fraction, exponent = np.frexp(np.where(np.isnan(wide), 1.0, wide))  # amax = 2 * fraction * 2^(exponent - 1)
    log2 = exponent - 1
    if mode == "even":
        log2 = log2 + (2 * fraction >= 1.75)
    result = log2 - 2
    if mode == "ceil":
        result = result + (wide > 6 * np.ldexp(1.0, result))
    result = np.where(wide == 0, -127, np.clip(result, -127, 127))
    return np.where(np.isnan(wide), 128, result)


def e2m1(x, exponent):
    """Codes, and the values they stand for in units of the scale, of |x| / 2^exponent; that quotient too."""
    with np.errstate(invalid="ignore", over="ignore"):
        y = np.ldexp(np.abs(x), -exponent[:, None]).astype(np.float32)
        small = np.where(np.isnan(y), np.float32(6), np.minimum(y, np.float32(6))).astype(ml_dtypes.float4_e2m1fn)
    return small.view(np.uint8) & 15, small.astype(np.float32), y


def squared_error(x, exponent, weights):
    with np.errstate(invalid="ignore", over="ignore"):
        _, q, y = e2m1(x, exponent)
        d = (y - q).astype(np.float64)
        terms = d * d if weights is None else weights.astype(np.float64) * (d * d)
        lanes = np.zeros((x.shape[0], 4))
        for k in range(8):
            lanes = lanes + terms[:, 4 * k : 4 * k + 4]
        return (lanes[:, 0] + lanes[:, 2]) + (lanes[:, 1] + lanes[:, 3])


def mxfp4(x, mode, weights):
    with np.errstate(invalid="ignore"):
        amax = np.max(np.abs(x), axis=1)  # NaN if any is
    even = exponents(amax, "even" if mode == "mse" else mode)
    best = even
    if mode == "mse":
        least = squared_error(x, even, weights)
        for step in (-2, -1, 1):
            tried = even + step
            error = np.ldexp(squared_error(x, tried, weights), 2 * step)
            better = (error < least) & (tried >= -127) & (tried <= 127) & ~np.isnan(amax)
            least = np.where(better, error, least)
            best = np.where(better, tried, best)
    codes, q, y = e2m1(x, best)
    codes = np.where(codes == 0, 0, codes | (x.view(np.uint32) >> 28 & 8)).astype(np.uint8)  # no minus zero, as Quark
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    powers = np.where(best == 128, np.nan, np.ldexp(1.0, np.minimum(best, 127))).astype(np.float32)
    scales = powers.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    return packed, scales, q.astype(np.float64) * np.ldexp(1.0, best)[:, None], y > 6


def hash_mxfp4(kind, blocks, mode, bf16, weighted=False):
    codes, scales = xxhash.xxh3_64(), xxhash.xxh3_64()
    for first in range(0, blocks, CHUNK):
        count = min(CHUNK, blocks - first)
        bits = make_blocks(kind, first, count)
        x = (bits & np.uint32(0xFFFF0000) if bf16 else bits).view(np.float32)
        c, s, _, _ = mxfp4(x, mode, importance(first, count) if weighted else None)
        codes.update(np.ascontiguousarray(c))
        scales.update(np.ascontiguousarray(s))
    return {"set": kind, "blocks": blocks, "mode": mode, "bf16": bf16, "weighted": weighted, "codes": codes.hexdigest(), "scales": scales.hexdigest()}


def error_figures(x, q, saturated):
    x, q = np.abs(x.astype(np.float64)), q.astype(np.float64)
    return {"signal": float(np.sum(x * x)), "noise": float(np.sum((x - q) ** 2)), "max_error": float(np.max(np.abs(x - q))),
            "elements": int(x.size), "saturated": int(np.sum(saturated)), "zeroed": int(np.sum((q == 0) & (x != 0)))}


def errors_mxfp4(blocks, mode):
    x = make_blocks("weights", 0, blocks).view(np.float32)
    _, _, q, saturated = mxfp4(x, mode, None)
    return {"set": "weights", "blocks": blocks, "mode": mode, **error_figures(x, q, saturated)}


def fp8(rows, cols, kind, bf16):
    row, col = np.arange(rows, dtype=U64)[:, None], np.arange(cols, dtype=U64)[None, :]
    block = row // U64(128) * U64(1000) + col // U64(128)
    rb = random_bits(SEED + 1, block)
    bits = near(row * U64(cols) + col, U64(1) + rb % U64(254) if kind == "blocks" else U64(112) + rb % U64(12))
    if kind == "blocks":
        bits = np.where((rb >> U64(32)) % U64(64) == 0, bits & U64(0x80000000), bits)
    bits = bits.astype(np.uint32)
    x = (bits & np.uint32(0xFFFF0000) if bf16 else bits).view(np.float32)
    codes = np.zeros((rows, cols), dtype=np.uint8)
    scales = np.zeros(((rows + 127) // 128, (cols + 127) // 128), dtype=np.float32)
    decoded = np.zeros((rows, cols), dtype=np.float32)
    for br in range(scales.shape[0]):
        for bc in range(scales.shape[1]):
            at = np.s_[br * 128 : br * 128 + 128, bc * 128 : bc * 128 + 128]
            scale = np.float32(np.max(np.abs(x[at]))) / np.float32(448)
            scale = scale if scale > 0 else np.float32(1)
            scales[br, bc] = scale
            q = np.clip(x[at] / scale, np.float32(-448), np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
            codes[at] = q.view(np.uint8)
            decoded[at] = np.abs(q.astype(np.float32) * scale)
    result = {"set": kind, "rows": rows, "cols": cols, "bf16": bf16, "codes": xxhash.xxh3_64(codes).hexdigest(),
              "scales": xxhash.xxh3_64(scales).hexdigest()}
    if kind == "weights":
        result["error"] = error_figures(x, decoded, np.zeros(1))
    return result


def main():
    modes = ("even", "floor", "ceil", "mse")
    sets = (("any", 65536), ("blocks", 312500), ("edges", 8160))
    golden = {
        "made_by": "tools/make_quantize_goldens.py, ml_dtypes " + ml_dtypes.__version__,
        "seed": SEED,
        "mxfp4": [hash_mxfp4(kind, blocks, mode, bf16) for kind, blocks in sets for mode in modes for bf16 in (False, True)]
        + [hash_mxfp4("blocks", 65536, "mse", False, weighted=True)],
        "mxfp4_errors": [errors_mxfp4(8192, mode) for mode in modes],
        "fp8": [fp8(rows, cols, "blocks", bf16) for rows, cols in ((1, 1), (64, 300), (130, 200), (576, 1024), (2560, 4096)) for bf16 in (False, True)]
        + [fp8(576, 700, "weights", bf16) for bf16 in (False, True)],
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with OUT.open("w") as out:
        rows = [f" {json.dumps(k)}: " + ("[\n" + ",\n".join("  " + json.dumps(e) for e in v) + "\n ]" if isinstance(v, list) else json.dumps(v))
                for k, v in golden.items()]
        out.write("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
