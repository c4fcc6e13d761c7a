#!/usr/bin/env python3
"""Writes layers of GLM-5.2's true shapes in bf16, filled with normal random numbers: data to measure `ingot quantize` and loading with.

    make_synthetic_checkpoint.py TARGET [--dense-layers 0] [--moe-layers 1] [--experts 256] [--no-embedding] [--seed 1]

One MoE layer with 256 experts takes 19.7 GB, embedding and head 3.8 GB. Numbers come from a pool of 64 Mi normal values, from a random place in it for
each tensor; only speed and size are meant, the model says nothing. Needs numpy.
"""

import argparse
import json
import pathlib
import struct

import numpy as np

HIDDEN, Q_LORA, KV_LORA, HEADS, NOPE, ROPE, V = 6144, 2048, 512, 64, 192, 64, 256
DENSE, MOE, VOCAB = 12288, 2048, 154880
SHARD_BYTES = 5_000_000_000


def layer(i, moe, experts):
    """(name, shape) of a layer; float32 for the router's bias alone."""
    p, a = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
    yield p + "input_layernorm.weight", [HIDDEN]
    yield p + "post_attention_layernorm.weight", [HIDDEN]
    yield a + "q_a_proj.weight", [Q_LORA, HIDDEN]
    yield a + "q_a_layernorm.weight", [Q_LORA]
    yield a + "q_b_proj.weight", [HEADS * (NOPE + ROPE), Q_LORA]
    yield a + "kv_a_proj_with_mqa.weight", [KV_LORA + ROPE, HIDDEN]
    yield a + "kv_a_layernorm.weight", [KV_LORA]
    yield a + "kv_b_proj.weight", [HEADS * (NOPE + V), KV_LORA]
    yield a + "o_proj.weight", [HIDDEN, HEADS * V]
    yield a + "indexer.wq_b.weight", [32 * 128, Q_LORA]
    yield a + "indexer.wk.weight", [128, HIDDEN]
    yield a + "indexer.k_norm.weight", [128]
    yield a + "indexer.k_norm.bias", [128]
    yield a + "indexer.weights_proj.weight", [32, HIDDEN]
    mlps = [(f"mlp.experts.{e}.", MOE) for e in range(experts)] + [("mlp.shared_experts.", MOE)] if moe else [("mlp.", DENSE)]
    if moe:
        yield p + "mlp.gate.weight", [experts, HIDDEN]
        yield p + "mlp.gate.e_score_correction_bias", [experts]
    for name, inner in mlps:
        yield p + name + "gate_proj.weight", [inner, HIDDEN]
        yield p + name + "up_proj.weight", [inner, HIDDEN]
        yield p + name + "down_proj.weight", [HIDDEN, inner]


def dtype(name):
    return "F32" if name.endswith("e_score_correction_bias") else "BF16"


def size(name, shape):
    return int(np.prod(shape)) * (4 if dtype(name) == "F32" else 2)


def config(dense, moe, experts, vocab):
    return {
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16", "hidden_size": HIDDEN,
        "num_hidden_layers": dense + moe, "num_nextn_predict_layers": 0, "intermediate_size": DENSE, "moe_intermediate_size": MOE,
        "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": min(8, experts), "routed_scaling_factor": 2.5,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "q_lora_rank": Q_LORA, "kv_lora_rank": KV_LORA,
        "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": V, "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
        "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "indexer_types": ["full"] * (dense + moe),
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * moe, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-05,
        "vocab_size": vocab, "tie_word_embeddings": False, "hidden_act": "silu", "eos_token_id": [vocab - 1],
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--dense-layers", type=int, default=0)
    parser.add_argument("--moe-layers", type=int, default=1)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--no-embedding", action="store_true", help="a vocabulary of 64 tokens")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    values = (rng.standard_normal(64 << 20, dtype=np.float32) * 0.02).view(np.uint32)
    pool = ((values + 0x8000) >> 16).astype(np.uint16)

    vocab = 64 if args.no_embedding else VOCAB
    tensors = [("model.embed_tokens.weight", [vocab, HIDDEN]), ("model.norm.weight", [HIDDEN]), ("lm_head.weight", [vocab, HIDDEN])]
    for i in range(args.dense_layers + args.moe_layers):
        tensors += layer(i, i >= args.dense_layers, args.experts)
    shards, used = [[]], 0
    for tensor in tensors:
        if used and used + size(*tensor) > SHARD_BYTES:
            shards.append([])
            used = 0
        shards[-1].append(tensor)
        used += size(*tensor)

    args.target.mkdir(parents=True)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, shape in sorted(shard, key=lambda t: dtype(t[0]) != "F32"):
            header[name] = {"dtype": dtype(name), "shape": shape, "data_offsets": [at, at + size(name, shape)]}
            at += size(name, shape)
            weight_map[name] = file
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (args.target / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name, entry in list(header.items())[1:]:
                if entry["dtype"] == "F32":
                    out.write(np.full(entry["shape"], 34.0, "<f4").tobytes())
                    continue
                left = int(np.prod(entry["shape"]))
                begin = int(rng.integers(0, len(pool)))
                while left > 0:
                    piece = pool[begin : begin + left]
                    out.write(piece.data)
                    left -= len(piece)
                    begin = 0
        print(file, flush=True)
    index = {"metadata": {"total_size": sum(size(*t) for t in tensors)}, "weight_map": weight_map}
    (args.target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (args.target / "config.json").write_text(json.dumps(config(args.dense_layers, args.moe_layers, args.experts, vocab), indent=2))


if __name__ == "__main__":
    main()
