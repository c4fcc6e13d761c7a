#!/usr/bin/env python3
"""Trains the demo model, or a larger sibling, on one GPU. The schedule is by time: --seconds 640 on one H200 made models/demo.

    tools/demo_model/train.py --data SHARDS --out CHECKPOINT --seconds 640 [--config larger.json]

Stages, at shares of the time (--marks): the main model with dense attention and a one-step MTP loss; from the first mark the indexer learns
the head-averaged attention of all layers that share it, on sampled queries and detached inputs; from the second, long rows attend to the
indexer's top-k; from the third, three recursive MTP steps; from the fourth, the MTP layer alone with five steps, distilled from the main
model, which stays as it is. --steps counts steps in place of time, for a try. CHECKPOINT gets final.safetensors (evaluate.py reads it) and
log.json."""

import argparse
import glob
import json
import os
import random
import time

import numpy as np
import torch
import torch._dynamo
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import network

BEGIN = 128  # pack_shards.py: a document begins here
MATRICES = ("o", "gu", "dn", "eh")  # Muon's; the others are AdamW's


class Rows:
    """Rows from shards, which may still be written. `source`: "S" short, "L" long."""

    def __init__(self, folder, device):
        self.folder, self.device = folder, device
        self.seen = set()
        self.shards = {"S": [], "L": []}  # (ids, weights) of each
        self.queue = {"S": [], "L": []}  # (shard, row), not yet given
        self.epochs = {"S": 0, "L": 0}
        self.tokens = 0

    def poll(self):
        for path in sorted(glob.glob(f"{self.folder}/s*.npz")):
            if path in self.seen:
                continue
            self.seen.add(path)
            arrays = np.load(path)
            for source, ids, weights in (("S", "si", "sw"), ("L", "li", "lw")):
                ids = torch.from_numpy(arrays[ids].astype(np.int16)).to(self.device)
                self.queue[source] += [(len(self.shards[source]), int(row)) for row in np.random.permutation(ids.shape[0])]
                self.shards[source].append((ids, torch.from_numpy(arrays[weights]).to(self.device)))
                self.tokens += ids.numel()
            if len(self.seen) % 7 == 0:
                break  # a few at a time: training goes on in between

    def get(self, source, count):
        """ids, number of the document, weight; each (count, T)."""
        queue, shards = self.queue[source], self.shards[source]
        if len(queue) < count:
            again = [(shard, row) for shard, (ids, _) in enumerate(shards) for row in range(ids.shape[0])]
            random.shuffle(again)
            queue += again
            self.epochs[source] += 1
        rows, queue[:count] = queue[:count], []
        ids = torch.stack([shards[shard][0][row] for shard, row in rows]).long() & 0xFFFF
        weights = torch.stack([shards[shard][1][row] for shard, row in rows])
        return ids, (weights >= BEGIN).long().cumsum(1), (weights & (BEGIN - 1)).float() / 100


def orthogonal(gradient):
    """Five Newton-Schulz steps towards the nearest orthogonal matrix (K. Jordan, Muon, 2024)."""
    x = gradient.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if is_tall else x


class Muon:
    """For matrices, those of a shape together."""

    def __init__(self, named, momentum=0.95):
        self.by_shape, self.momentum, self.buffers = {}, momentum, {}
        for name, parameter in named:
            self.by_shape.setdefault(tuple(parameter.shape[-2:]), []).append((name, parameter))

    @torch.no_grad()
    def step(self, lr, decay, wanted, group):
        """Those whose name is `wanted`. A group keeps its own momentum."""
        for shape, parameters in self.by_shape.items():
            parameters = [p for name, p in parameters if wanted(name) and p.grad is not None]
            if not parameters:
                continue
            gradient = torch.cat([p.grad.reshape(-1, *shape) for p in parameters])
            buffer = self.buffers.setdefault((shape, group), torch.zeros_like(gradient))
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(buffer, self.momentum)).float() * (lr * max(1, shape[0] / shape[1]) ** 0.5)
            at = 0
            for p in parameters:
                count = p.numel() // (shape[0] * shape[1])
                p.mul_(1 - lr * decay)
                p.sub_(update[at : at + count].view_as(p))
                at += count


def is_gate(name):
    return name.endswith(".gate")


def is_indexer(name):
    return name.split(".")[-1] in ("wq_b", "wk", "kn_w", "kn_b", "wp")


def is_mtp(name):
    return name.startswith("mtp.") or name in ("eh", "enorm", "hnorm", "snorm")


def is_attention(name):
    return name.split(".")[-1] in ("q_a", "q_b", "kv_a", "kv_b")


def adam_groups(named):
    """AdamW's groups; "base" is the learning rate before the schedule, "tag" says whose schedule."""

    def group(lr, decay, tag, wanted):
        return dict(params=[p for name, p in named if wanted(name)], lr=lr, base=lr, weight_decay=decay, tag=tag)

    def other(name):
        return not (is_indexer(name) or is_gate(name) or is_attention(name) or name in ("emb", "head"))

    groups = [group(3e-4, 0.0, "main", is_gate), group(2e-3, 0.01, "main", lambda name: name in ("emb", "head"))]
    for tag, mine in (("main", lambda name: not is_mtp(name)), ("mtp", is_mtp)):
        groups.append(group(1.5e-3, 0.1, tag, lambda name, mine=mine: is_attention(name) and mine(name)))
        groups.append(group(1e-3, 0.0, tag, lambda name, mine=mine: other(name) and mine(name)))
        groups.append(group(1e-3, 0.0, tag, lambda name, mine=mine: is_indexer(name) and mine(name)))
    return groups


def targets(ids, doc, weights, ahead):
    """Tokens so far ahead, and their weights: none over the end of a document."""
    weights = torch.roll(weights, -ahead, 1) * (torch.roll(doc, -ahead, 1) == doc)
    weights[:, -ahead:] = 0
    return torch.roll(ids, -ahead, 1), weights


def positions(doc):
    """Within the document."""
    begins = torch.cat([torch.ones_like(doc[:, :1]), (doc[:, 1:] != doc[:, :-1]).long()], 1)
    at = torch.arange(doc.shape[1], device=doc.device)[None]
    return at - torch.cummax(begins * at, 1).values


def sampled_queries(doc, count):
    """For the indexer's loss: mostly late in their document, where there is something to choose."""
    return torch.multinomial((positions(doc) > 100).float() + 0.02, count)


class Stage:
    """What is on at this share of the time, and the learning rates' factors."""

    def __init__(self, share, step, marks):
        self.indexer, self.sparse, self.three_drafts, self.mtp_alone = (share >= mark for mark in marks)
        self.drafts = 5 if self.mtp_alone else 3 if self.three_drafts else 1
        part = share / marks[3]
        self.main = max(min(1, (step + 1) / 100) * (1 if part < 0.45 else max(0.0, (1 - part) / 0.55)), 0.01)
        if self.mtp_alone:
            self.mtp = max(0.02, (1 - share) / (1 - marks[3])) * 0.5
        else:
            self.mtp = self.main if part < 0.45 else max(self.main, 0.5)


class Trainer:
    def __init__(self, model, args):
        self.model, self.args, self.device = model, args, args.device
        named = list(model.named_parameters())
        self.muon = Muon([(name, p) for name, p in named if name.split(".")[-1] in MATRICES])
        groups = adam_groups([(name, p) for name, p in named if name.split(".")[-1] not in MATRICES])
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, fused=args.device == "cuda")
        self.routed = [layer for layer in model.layers if layer.moe] + [model.mtp]

    def losses(self, stage, batches):
        """Backward of one step's batches. Sums of what is watched, and tokens of each expert of each routed layer."""
        model, watched, counts = self.model, {}, None

        def watch(name, value):
            watched[name] = watched.get(name, 0) + value

        weight_1 = sum(targets(ids, doc, weights, 1)[1].sum() for _, ids, doc, weights in batches)
        weight_2 = sum(targets(ids, doc, weights, 2)[1].sum() for _, ids, doc, weights in batches)
        for source, ids, doc, weights in batches:
            is_long = source == "L"
            sparse = stage.sparse and is_long
            queries = sampled_queries(doc, min(48, doc.shape[1])) if stage.indexer and is_long else None
            with torch.autocast(self.device, torch.bfloat16):
                next_ids, next_weights = targets(ids, doc, weights, 1)
                if stage.mtp_alone:
                    hidden, layer_counts, _, (mask, blocks) = model(ids, doc, sparse=sparse)
                    hidden, loss = hidden.detach(), 0.0
                    main_logits = F.linear(hidden, model.head.detach())
                else:
                    hidden, layer_counts, indexer_loss, (mask, blocks) = model(ids, doc, sparse=sparse, kl=queries)
                    total, weight, right, asked = network.c_ce(hidden.flatten(0, 1), model.head, next_ids.flatten(), next_weights.flatten())
                    loss = total / weight_1
                    watch("ce" + source, total.detach() / weight)
                    watch("acc" + source, right / asked.clamp_min(1))
                    if queries is not None:
                        watch("kl", indexer_loss.detach())
                        loss = loss + 0.3 * indexer_loss
                drafts = stage.drafts if source == "S" or stage.mtp_alone else 1
                outs, mtp_counts, mtp_indexer_loss = model.mtp_run(hidden, ids, doc, mask, blocks, drafts, sparse=sparse, kl=queries)
                after_ids, after_weights = targets(ids, doc, weights, 2)
                place = positions(doc)
                for k, out in enumerate(outs):
                    draft_weights = (after_weights * (place >= k)).flatten()
                    if stage.mtp_alone:
                        teacher = torch.roll(main_logits, -1, 1).flatten(0, 1)
                        total, weight, right, asked = network.c_kd(out.flatten(0, 1), model.head.detach(), teacher, draft_weights)
                        loss = loss + total / weight_2 * 0.9**k
                    else:
                        total, weight, right, asked = network.c_ce(out.flatten(0, 1), model.head, after_ids.flatten(), draft_weights)
                        loss = loss + total / weight_2 * (0.3 if k == 0 else 0.1)
                    watch(f"mtp{k}{source}", right / asked.clamp_min(1))
                if queries is not None:
                    watch("kl_mtp", mtp_indexer_loss.detach())
                    loss = loss + 0.3 * mtp_indexer_loss
            loss.backward()
            of_batch = torch.stack(layer_counts + [mtp_counts[0]])
            counts = of_batch if counts is None else counts + of_batch
        return watched, counts

    def update(self, stage, counts):
        """One step of both optimizers, and the routers' biases towards even load. Returns the gradient's norm."""
        model = self.model
        if stage.mtp_alone:
            for name, parameter in model.named_parameters():
                if not is_mtp(name):
                    parameter.grad = None
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * (stage.mtp if group["tag"] == "mtp" else stage.main)
        norm = torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 5.0)
        if stage.mtp_alone:
            self.muon.step(self.args.lr * stage.mtp, 0.01, is_mtp, "mtp")
        else:
            self.muon.step(self.args.lr * stage.main, 0.02, lambda name: not is_mtp(name), "main")
            self.muon.step(self.args.lr * stage.mtp, 0.02, is_mtp, "mtp")
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        with torch.no_grad():
            change = torch.sign(counts.mean(1, keepdim=True) - counts) * (2e-3 * max(stage.main, 0.05))
            for i, layer in enumerate(self.routed):
                if not stage.mtp_alone or layer is model.mtp:
                    layer.bias += change[i]
        return norm


def mean_of(values):
    return sum(float(v) for v in values) / len(values)


def train(args, model, rows):
    trainer = Trainer(model, args)
    step, tokens, is_frozen, log, watched = 0, 0, False, [], {}
    started = time.time()

    def save(name):
        save_file(network.export_state(model), f"{args.out}/{name}.safetensors")

    while True:
        seconds = time.time() - started
        share = step / args.steps if args.steps else seconds / args.seconds
        if share >= 1:
            break
        stage = Stage(share, step, args.marks)
        if step % 20 == 0:
            rows.poll()
        if stage.mtp_alone and not is_frozen:
            is_frozen = True
            print("the main model stays from step", step, flush=True)
            save("main")
        batches = [("S", *rows.get("S", args.short_rows)), ("L", *rows.get("L", args.long_rows))]
        tokens += sum(ids.numel() for _, ids, _, _ in batches)
        sums, counts = trainer.losses(stage, batches)
        norm = trainer.update(stage, counts)
        sums["imbalance"] = (counts.max(1).values / counts.mean(1)).mean()
        for name, value in sums.items():
            watched.setdefault(name, []).append(value.detach() if torch.is_tensor(value) else value)
        step += 1
        if step in (1, 2, 5, 10, 20, 50) or step % 100 == 0:
            figures = " ".join(f"{name}={mean_of(values):.4f}" for name, values in watched.items())
            log.append(
                f"step {step} share {share:.3f} {seconds:.0f} s, {tokens / 1e6:.1f}M tokens of {rows.tokens / 1e6:.0f}M made, epochs "
                f"{rows.epochs['S']} {rows.epochs['L']}, lr x {stage.main:.3f}, gradient {float(norm):.2f}: {figures}"
            )
            print(log[-1], flush=True)
            watched = {}
        if step % 1000 == 0:
            save("latest")
    save("final")
    with open(f"{args.out}/log.json", "w", encoding="utf-8") as file:
        json.dump(log, file, indent=1)
    print(f"{step} steps, {tokens} tokens, {time.time() - started:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of shards; pack_shards.py may still be at work")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=640)
    parser.add_argument("--steps", type=int, default=0, help="so many steps instead")
    parser.add_argument("--config", help="a JSON object with what differs from network.CFG: hidden_size, num_hidden_layers, ...")
    parser.add_argument("--short-rows", type=int, default=24, help="of 2,048 tokens, a step")
    parser.add_argument("--long-rows", type=int, default=12, help="of 4,096 tokens, a step")
    parser.add_argument("--lr", type=float, default=0.007, help="Muon's")
    parser.add_argument("--marks", default="0.35,0.58,0.72,0.87", help="shares of the time at which the next stage begins")
    parser.add_argument("--init", help="folder of a checkpoint to go on from")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a try (no compiled kernels)")
    args = parser.parse_args()
    args.marks = [float(mark) for mark in args.marks.split(",")]
    torch.manual_seed(0)
    config = dict(network.CFG)
    if args.config:
        with open(args.config, encoding="utf-8") as file:
            config.update(json.load(file))
    model = network.Model(config)
    if args.init:
        state = {}
        for path in sorted(glob.glob(f"{args.init}/*.safetensors")):
            state.update(load_file(path))
        network.import_state(model, state)
    if args.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch._dynamo.config.cache_size_limit = 128
        network.COMPILE[0] = True
        model.flex = network.FLEX
    model = model.to(args.device)
    os.makedirs(args.out, exist_ok=True)
    rows = Rows(args.data, args.device)
    while len(rows.seen) < (4 if args.device == "cuda" else 1):
        rows.poll()
        time.sleep(0.2)
    train(args, model, rows)


if __name__ == "__main__":
    main()
