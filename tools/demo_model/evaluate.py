#!/usr/bin/env python3
"""Everything that is measured of a trained checkpoint, on one GPU, in parts:

    export   the checkpoint as a Hugging Face folder (--hf)
    verify   logits against transformers and network.py; writes the golden vectors
    acc      all evaluation sets, greedy, with reference.py
    mtp      how many drafts of the MTP layer are accepted
    quant    the same with rounded weights
    samples  answers to a few questions

Figures go to OUT/results.json as they come. --budget stops between sets after so many seconds."""

import argparse
import json
import os
import re
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import make_sets
import network
import reference
import resources
from chat_layout import render, user

ap = argparse.ArgumentParser()
ap.add_argument("--config", help="as of train.py, for another shape than network.CFG")
ap.add_argument("--ck", required=True, help="train.py's final.safetensors")
ap.add_argument("--out", required=True)
ap.add_argument("--tok", required=True)
ap.add_argument("--limit", type=int, default=0)
ap.add_argument("--parts", default="export,verify,acc,mtp,quant")
ap.add_argument("--hf", required=True, help="folder of the export; verify reads it")
ap.add_argument("--budget", type=float, default=1000000000.0)
a = ap.parse_args()
T0 = time.time()
parts = a.parts.split(",")
os.makedirs(a.out, exist_ok=True)
R = {}
tk = Tokenizer.from_file(a.tok)
shape = dict(network.CFG)
if a.config:
    shape.update(json.load(open(a.config)))
cfg = reference.make_config(shape, tk)
dev = "cuda"
torch.set_grad_enabled(False)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
W = load_file(a.ck)
EOS = cfg["eos_token_id"]


def dump():
    json.dump(R, open(a.out + "/results.json", "w"), indent=1)


def enc(d):
    return tk.encode("".join((t for t, _ in render(d, gen_prompt=True))), add_special_tokens=False).ids


def prompt_of(d):
    q = dict(d)
    ms = d["messages"]
    i = max((j for j, m in enumerate(ms) if m["role"] == "user"))
    q["messages"] = ms[: i + 1]
    return q


resources.load()
EV = {name: make() for name, make in make_sets.evaluation_sets().items()}
if a.limit:
    EV = {k: v[: a.limit] for k, v in EV.items()}
PR = {k: [enc(prompt_of(d)) for d in v] for k, v in EV.items()}
print("prompt tokens", {k: round(float(np.mean([len(x) for x in v])), 1) for k, v in PR.items()}, flush=True)
if "export" in parts:
    os.makedirs(a.hf, exist_ok=True)
    shards, cur, sz = ([], {}, 0)
    for k, t in W.items():
        n = t.numel() * t.element_size()
        if sz + n > 14200000.0:
            shards.append(cur)
            cur, sz = ({}, 0)
        cur[k] = t
        sz += n
    shards.append(cur)
    wm = {}
    tot = 0
    for i, c in enumerate(shards):
        f = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(c, f"{a.hf}/{f}", metadata={"format": "pt"})
        wm.update({k: f for k in c})
        tot += sum((t.numel() * t.element_size() for t in c.values()))
    json.dump(dict(metadata=dict(total_size=tot), weight_map=wm), open(f"{a.hf}/model.safetensors.index.json", "w"), indent=1)
    json.dump(cfg, open(f"{a.hf}/config.json", "w"), indent=1)
    R["params"] = sum((t.numel() for t in W.values()))
    R["bytes"] = tot
    R["shards"] = len(shards)
    dump()
P = reference.Plain(W, cfg)


def golden_prompts():
    w = EV["word"][1]
    short = enc(prompt_of(w))
    lg = PR["retr4k"][min(2, len(PR["retr4k"]) - 1)]
    mids = PR["retr1k"][0]
    mids = mids if len(mids) >= 700 else mids + mids
    # Cut to 700 and 3,000 tokens, the question at the end kept.
    return dict(short=short, mid=mids[:40] + mids[-660:], long=lg[:100] + lg[-2900:])


GP = golden_prompts()
if "verify" in parts:
    from transformers import GlmMoeDsaForCausalLM

    hf = GlmMoeDsaForCausalLM.from_pretrained(a.hf, dtype=torch.float32, attn_implementation="eager").to(dev).eval()
    mm = network.Model(shape)
    network.import_state(mm, W)
    mm = mm.to(dev)
    V = {}
    os.makedirs(a.out + "/golden", exist_ok=True)
    for nm, ids in GP.items():
        t = torch.tensor([ids], device=dev)
        n = len(ids)
        st = {}
        hk = []
        for i in (0, 1, 3, cfg["num_hidden_layers"] - 1):
            hk.append(
                hf.model.layers[i].register_forward_hook(
                    lambda m_, x, o, i=i: st.__setitem__(f"h{i}", (o[0] if isinstance(o, tuple) else o).detach())
                )
            )
        for i in (0, 6):
            hk.append(
                hf.model.layers[i].self_attn.indexer.register_forward_hook(lambda m_, x, o, i=i: st.__setitem__(f"ix{i}", o.detach()))
            )
        lg = hf(input_ids=t, use_cache=False).logits[0]
        for h in hk:
            h.remove()
        kp = []
        h = P.run(t, torch.arange(n, device=dev)[None], keep=kp)
        l2 = P.logits(h)[0]
        hm = mm(t, torch.zeros_like(t), sparse=n > cfg["index_topk"])[0]
        l3 = torch.nn.functional.linear(hm, mm.head)[0]

        def cmp(x, y):
            d = (x - y).abs()
            return dict(
                max=float(d.max()),
                mean=float(d.mean()),
                rows_over_1e3=float((d.amax(-1) > 0.001).float().mean()),
                last8_max=float(d[-8:].max()),
                top1=float((x.argmax(-1) == y.argmax(-1)).float().mean()),
            )

        V[nm] = dict(n=n, hf_vs_plain=cmp(lg, l2), hf_vs_train=cmp(lg, l3), logit_absmax=float(lg.abs().max()))
        for i in (0, 6):
            ix = st[f"ix{i}"][0].long()
            m1 = (
                torch.zeros(n, n, dtype=torch.bool, device=dev).scatter(-1, ix, True)
                & torch.ones(n, n, dtype=torch.bool, device=dev).tril()
            )
            V[nm][f"sel{i}_same_rows"] = float((m1 == kp[i][1][0]).all(-1).float().mean())
            st[f"m{i}"] = m1
        first = int(lg[-1].argmax())
        d1, g1 = P.draft(ids, first, 5, True)
        d2, g2 = P.draft(ids, first, 5, False)
        f = dict(token_ids=torch.tensor(ids, dtype=torch.int32), logits_last8=lg[-8:].float())
        rows = list(range(n)) if n <= 64 else sorted(set(list(range(0, 8)) + list(range(n - 24, n)) + [n // 2]))
        f["hidden_rows"] = torch.tensor(rows, dtype=torch.int32)
        for i in (0, 1, 3, cfg["num_hidden_layers"] - 1):
            f[f"hidden_after_layer_{i}"] = st[f"h{i}"][0][rows].float()
        if nm == "long":
            for i in (0, 6):
                qr = torch.tensor([300, 1000, 2000] + list(range(n - 8, n)), device=dev)
                f["topk_rows"] = qr.to(torch.int32).cpu()
                f[f"topk_layer_{i}"] = torch.stack([st[f"m{i}"][r].nonzero()[:, 0].to(torch.int32) for r in qr])
        f["main_next_token"] = torch.tensor([first], dtype=torch.int32)
        f["mtp_shared_drafts"], f["mtp_shared_logits"] = (torch.tensor(d1, dtype=torch.int32), g1)
        f["mtp_own_drafts"], f["mtp_own_logits"] = (torch.tensor(d2, dtype=torch.int32), g2)
        save_file(
            {k: v.contiguous().cpu() for k, v in f.items()},
            f"{a.out}/golden/{nm}.safetensors",
            metadata=dict(prompt=tk.decode(ids, skip_special_tokens=False)[:200]),
        )
        V[nm]["mtp_own_vs_shared_max"] = float((g1 - g2).abs().max())
    R["verify"] = V
    dump()
    print("verify", json.dumps(V), round(time.time() - T0), flush=True)
    del hf, mm
    torch.cuda.empty_cache()


def parse_calls(s):
    calls = []
    for c in re.findall("<tool_call>(.*?)</tool_call>", s, re.S):
        nm = c.split("<arg_key>")[0]
        calls.append((nm, tuple(re.findall("<arg_key>(.*?)</arg_key><arg_value>(.*?)</arg_value>", c, re.S))))
    return calls


def want_calls(d):
    return [
        (c["name"], tuple(((k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in c["arguments"].items())))
        for c in d["answer"]["calls"]
    ]


def score(k, d, o):
    s = tk.decode(o, skip_special_tokens=False)
    body = s.split("</think>")[-1]
    if k == "word":
        m = re.search("#### (-?\\d+)", body)
        return bool(m) and m.group(1) == d["answer"]
    if k.startswith("retr"):
        return re.search("(?<![\\w-])" + re.escape(d["answer"]) + "(?![\\w-])", body) is not None
    ok = parse_calls(body) == want_calls(d)
    if not d["answer"]["calls"]:
        return "<tool_call>" not in body and o[-1] in EOS
    return ok and o[-1] == tk.token_to_id("<|observation|>")


MAXN = dict(word=220, tool=260)


def evaluate(Q, sets, tag, keep=None):
    res = {}
    for k in sets:
        if time.time() - T0 > a.budget:
            print("budget", k)
            break
        t1 = time.time()
        outs = Q.generate(PR[k], MAXN.get(k, 60), EOS, bs=256 if k in ("word", "tool") else 100)
        ok = [score(k, d, o) for d, o in zip(EV[k], outs)]
        res[k] = sum(ok) / len(ok)
        if k == "word":
            for n in (1, 2, 3, 4):
                v = [x for x, d in zip(ok, EV[k]) if d["n"] == n]
                res[f"word_{n}step"] = sum(v) / max(1, len(v))
            for th in (0, 1):
                v = [x for x, d in zip(ok, EV[k]) if d["think"] == bool(th)]
                res[f"word_think{th}"] = sum(v) / max(1, len(v))
        if k == "tool":
            for md, sl in (("one", (0, 1, 2)), ("two", (3,)), ("none", (4,))):
                v = [x for i, x in enumerate(ok) if i % 5 in sl]
                res[f"tool_{md}"] = sum(v) / max(1, len(v))
        if k.startswith("retr"):
            for fm in range(6):
                v = [x for x, d in zip(ok, EV[k]) if d["form"] == fm]
                res[f"{k}_form{fm}"] = round(sum(v) / max(1, len(v)), 3)
        if keep is not None:
            keep[k] = outs
        print(tag, k, res[k], round(time.time() - t1, 1), "s", flush=True)
        if tag == "bf16":
            bad = [i for i, x in enumerate(ok) if not x][:3]
            good = [i for i, x in enumerate(ok) if x][:1]
            for i in bad + good:
                print(
                    "   ",
                    "BAD" if i in bad else "ok",
                    repr(tk.decode(PR[k][i][-80:], skip_special_tokens=False)[-240:]),
                    "->",
                    repr(tk.decode(outs[i], skip_special_tokens=False)[:240]),
                    "want",
                    EV[k][i].get("answer"),
                    flush=True,
                )
    return res


keep = {}
if "acc" in parts:
    R["bf16"] = evaluate(P, list(EV), "bf16", keep)
    dump()
    json.dump({k: [tk.decode(o, skip_special_tokens=False) for o in v] for k, v in keep.items()}, open(a.out + "/outs.json", "w"))


def mtp_eval(Q, keep, sets, K=5, own=False):
    out = {}
    tot_t = tot_s = 0
    for k in sets:
        if k not in keep:
            continue
        S_ = [(p, o) for p, o in zip(PR[k], keep[k]) if len(o) >= 3][: 120 if k in ("word", "tool") else 40]
        S_.sort(key=lambda x: len(x[0]) + len(x[1]))
        tt = ss = 0
        per = np.zeros(K)
        pern = np.zeros(K)
        T_ = max((len(p) + len(o) for p, o in S_))
        bs = max(1, min(64, int(4000000.0 / (T_ * T_ / 2 + 1))))
        for b0 in range(0, len(S_), bs):
            ch = S_[b0 : b0 + bs]
            T = max((len(p) + len(o) for p, o in ch))
            t = torch.zeros(len(ch), T, dtype=torch.long)
            for j, (p, o) in enumerate(ch):
                t[j, : len(p) + len(o)] = torch.tensor(p + o)
            t = t.to(dev)
            pr = Q.mtp_chain(t, K, own=own)
            ok = [(x[:, : T - 2] == t[:, 2:]).cpu().numpy() for x in pr]
            for j, (p, o) in enumerate(ch):
                i, n = (len(p) - 1, len(p) + len(o))
                while i + 1 < n - 1:
                    acc = 0
                    while acc < K and i + 2 + acc < n:
                        pern[acc] += 1
                        if ok[acc][j, i + acc]:
                            per[acc] += 1
                            acc += 1
                        else:
                            break
                    tt += acc + 1 if i + 2 + acc < n else acc
                    ss += 1
                    i += acc + 1
        out[k] = dict(
            accept_length=round(tt / max(1, ss), 3), cond_accept=[round(float(x), 3) for x in per / np.maximum(pern, 1)], n=len(S_)
        )
        tot_t += tt
        tot_s += ss
    out["all"] = round(tot_t / max(1, tot_s), 3)
    return out


if "mtp" in parts:
    R["mtp_shared"] = mtp_eval(P, keep, ["word", "tool", "retr1k", "retr2k"])
    print("mtp", json.dumps(R["mtp_shared"]), round(time.time() - T0), flush=True)
    dump()
    R["mtp_own"] = mtp_eval(P, keep, ["tool", "retr1k"], own=True)
    print("mtp own", json.dumps(R["mtp_own"]), flush=True)
    dump()
if "quant" in parts:
    for md in ("mxfp4_experts", "mxfp4_all", "fp8"):
        if time.time() - T0 > a.budget:
            break
        Q = reference.Plain(reference.quantise(W, md), cfg)
        kk = {}
        R[md] = evaluate(Q, ["word", "tool", "retr2k"], md, kk)
        R[md]["mtp"] = mtp_eval(Q, kk, ["word", "tool"])
        print(md, json.dumps(R[md]), round(time.time() - T0), flush=True)
        dump()
        del Q
if "samples" in parts:
    qs = [
        "Hello!",
        "Who are you?",
        "What is 37 + 58?",
        "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did Natalia sell altogether in April and May?",
        "What is the capital of France?",
        "Tell me a short story.",
        "Sort these numbers from smallest to largest: 42, 7, 19",
    ]
    ds = [dict(messages=[user(q)], think=th, effort="max") for q in qs for th in (False, True)]
    o = P.generate([enc(d) for d in ds], 160, EOS)
    R["samples"] = [(d["messages"][0]["content"], d["think"], tk.decode(x, skip_special_tokens=False)) for d, x in zip(ds, o)]
    [print(x) for x in R["samples"]]
    dump()
print("eval done", round(time.time() - T0), flush=True)
