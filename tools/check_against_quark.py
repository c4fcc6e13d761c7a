#!/usr/bin/env python3
"""Compares every MXFP4 module that `ingot quantize --scale-mode even` wrote with what AMD Quark's own functions make of the same weights, byte by byte.

    python3 -m venv VENV && VENV/bin/pip install amd-quark torch transformers accelerate numpy      (some 3 GB)
    build/release/ingot quantize models/demo TARGET --scheme mxfp4 --preset all-linear
    VENV/bin/python tools/check_against_quark.py models/demo TARGET
"""

import json
import pathlib
import struct
import sys

import numpy as np
import torch
from quark.torch.kernel.hw_emulation.hw_emulation_interface import fake_quantize_to_low_precision_fp
from quark.torch.quantization.utils import even_round
from quark.torch.utils.pack import Pack_fp4


def tensors(folder: str) -> dict:
    """name -> (dtype, shape, bytes) of all shards; read by hand, not by a library that could share our mistakes."""
    found = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = (entry["dtype"], entry["shape"], data[8 + length + begin : 8 + length + end])
    return found


def main() -> None:
    source, written = tensors(sys.argv[1]), tensors(sys.argv[2])
    modules = wrong = 0
    for name, (dtype, shape, data) in written.items():
        if dtype != "U8" or not name.endswith(".weight"):
            continue
        source_dtype, source_shape, bits = source[name]
        assert source_dtype == "BF16", f"{name}: the source must be bf16"
        wide = (np.frombuffer(bits, np.uint16).astype(np.uint32) << 16).view(np.float32).copy()
        blocks = torch.from_numpy(wide).reshape(source_shape[0], -1, 32)
        scale = even_round(blocks.abs().amax(-1, keepdim=True), "fp4")
        scale_bytes = (torch.log2(scale) + 127).to(torch.uint8).reshape(source_shape[0], -1).numpy()
        values = fake_quantize_to_low_precision_fp((blocks / scale).contiguous(), 2, 1, 6.0, 0).reshape(source_shape)
        codes = Pack_fp4(None, "fp4").pack(values.contiguous(), False).numpy()
        ours = np.frombuffer(data, np.uint8).reshape(shape)
        our_scales = np.frombuffer(written[name + "_scale"][2], np.uint8).reshape(scale_bytes.shape)
        modules += 1
        if (codes != ours).any() or (scale_bytes != our_scales).any():
            wrong += 1
            print(f"{name}: {(codes != ours).sum()} of {ours.size} code bytes and {(scale_bytes != our_scales).sum()} scales differ")
    print(f"{modules} modules, {wrong} differ")
    sys.exit(wrong > 0 or modules == 0)


if __name__ == "__main__":
    main()
