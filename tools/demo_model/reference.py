"""Plain float32 inference from the exported tensors, written apart from network.py: what goldens and published figures were made with. KV cache,
top-k of the indexer, IndexShare, drafts chained through the MTP layer. Shapes: B sequences, S new positions, T cached ones, H heads, d head size.
"""

import torch
import torch.nn.functional as F

from network import indexer_types


def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rot(x, pos, theta):
    d = x.shape[-1]
    inv = 1.0 / theta ** (torch.arange(0, d, 2, device=x.device).float() / d)
    a = pos[..., None].float() * inv
    while a.dim() < x.dim():
        a = a.unsqueeze(-2)
    c, s = (a.cos(), a.sin())
    e, o = (x[..., 0::2], x[..., 1::2])
    return torch.cat([e * c - o * s, o * c + e * s], -1)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6.0])


def mxfp4(w):
    """Rounded to MXFP4: blocks of 32 along a row, exponent of the block's maximum, ties to the even mantissa."""
    o, k = w.shape
    b = w.reshape(o, k // 32, 32)
    am = b.abs().amax(-1, keepdim=True)
    e = torch.floor(torch.log2(am.clamp_min(2.0 ** (-126)))) - 2
    sc = torch.exp2(e.clamp(-127, 127))
    y = b / sc
    a = y.abs().clamp(max=6.0)
    lv = FP4.to(w.device)
    mid = (lv[1:] + lv[:-1]) / 2
    i = torch.bucketize(a, mid)
    tie = (a[..., None] == mid).any(-1)
    hi = torch.searchsorted(mid, a.contiguous(), right=True)
    i = torch.where(tie & (i % 2 == 1), hi, i)
    return (lv[i] * torch.sign(y) * sc).reshape(o, k)


def fp8b(w, bs=128):
    """Rounded to FP8 E4M3 with a float32 scale for each block of 128 x 128."""
    o, k = w.shape
    out = torch.empty_like(w)
    for r in range(0, o, bs):
        for c in range(0, k, bs):
            b = w[r : r + bs, c : c + bs]
            s = (b.abs().max() / 448.0).clamp_min(1e-12)
            out[r : r + bs, c : c + bs] = (b / s).to(torch.float8_e4m3fn).float() * s
    return out


def quantise(W, mode):
    """Weights as a quantised checkpoint would have them, in float32."""
    o = {}
    for n, t in W.items():
        t = t.float()
        L = (
            t.dim() == 2
            and any((x in n for x in ("_proj.weight", "kv_a_proj_with_mqa", "wq_b", "wk.weight")))
            and ("weights_proj" not in n)
        )
        if mode == "mxfp4_experts" and ".mlp.experts." in n:
            t = mxfp4(t)
        elif mode == "mxfp4_all" and L:
            t = mxfp4(t)
        elif mode == "fp8" and L:
            t = fp8b(t)
        o[n] = t
    return o


class Plain:

    def __init__(self, W, cfg, dev="cuda"):
        self.c = cfg
        self.dev = dev
        self.W = {k: v.float().to(dev) for k, v in W.items()}
        E = cfg["n_routed_experts"]
        self.L = cfg["num_hidden_layers"]
        self.theta = cfg["rope_parameters"]["rope_theta"]
        self.types = cfg["indexer_types"] + ["full"]
        self.GU, self.DN = ({}, {})
        for i in range(self.L + 1):
            p = f"model.layers.{i}.mlp."
            if p + "gate.weight" in self.W:
                self.GU[i] = torch.stack(
                    [torch.cat([self.W[p + f"experts.{e}.gate_proj.weight"], self.W[p + f"experts.{e}.up_proj.weight"]]) for e in range(E)]
                )
                self.DN[i] = torch.stack([self.W[p + f"experts.{e}.down_proj.weight"] for e in range(E)])

    def mlp(self, i, x):
        p = f"model.layers.{i}.mlp."
        W = self.W
        g = lambda q: F.linear(
            F.silu(F.linear(x, W[q + "gate_proj.weight"])) * F.linear(x, W[q + "up_proj.weight"]), W[q + "down_proj.weight"]
        )
        if i not in self.GU:
            return g(p)
        sc = torch.sigmoid(F.linear(x, W[p + "gate.weight"]))
        ix = torch.topk(sc + W[p + "gate.e_score_correction_bias"], self.c["num_experts_per_tok"], -1).indices
        w = torch.gather(sc, -1, ix)
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * self.c["routed_scaling_factor"]
        fw = torch.zeros_like(sc).scatter(-1, ix, w)
        sh = x.shape
        x2 = x.reshape(-1, sh[-1])
        outs = []
        for c0 in range(0, x2.shape[0], 8192):
            xc = x2[c0 : c0 + 8192]
            a = torch.einsum("nd,eid->nei", xc, self.GU[i])
            I = a.shape[-1] // 2
            a = F.silu(a[..., :I]) * a[..., I:] * fw.reshape(-1, fw.shape[-1])[c0 : c0 + 8192, :, None]
            outs.append(torch.einsum("nei,edi->nd", a, self.DN[i]))
        return torch.cat(outs).reshape(sh) + g(p + "shared_experts.")

    def qkv(self, i, x, pos):
        c, W = (self.c, self.W)
        a = f"model.layers.{i}.self_attn."
        H, n, r, v = (c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"])
        B, S, _ = x.shape
        qr = rms(F.linear(x, W[a + "q_a_proj.weight"]), W[a + "q_a_layernorm.weight"], 1e-06)
        q = F.linear(qr, W[a + "q_b_proj.weight"]).view(B, S, H, n + r)
        ck = F.linear(x, W[a + "kv_a_proj_with_mqa.weight"])
        kl = c["kv_lora_rank"]
        kv = F.linear(rms(ck[..., :kl], W[a + "kv_a_layernorm.weight"], 1e-06), W[a + "kv_b_proj.weight"]).view(B, S, H, n + v)
        kr = rot(ck[..., kl:], pos, self.theta)[:, :, None].expand(B, S, H, r)
        q = torch.cat([q[..., :n], rot(q[..., n:], pos, self.theta)], -1)
        k = torch.cat([kv[..., :n], kr], -1)
        return (q, k, kv[..., n:], qr)

    def idx(self, i, x, qr, pos):
        c, W = (self.c, self.W)
        a = f"model.layers.{i}.self_attn.indexer."
        h, d, r = (c["index_n_heads"], c["index_head_dim"], c["qk_rope_head_dim"])
        B, S, _ = x.shape
        q = F.linear(qr, W[a + "wq_b.weight"]).view(B, S, h, d)
        k = F.layer_norm(F.linear(x, W[a + "wk.weight"]), (d,), W[a + "k_norm.weight"], W[a + "k_norm.bias"], 1e-06)
        q = torch.cat([rot(q[..., :r], pos, self.theta), q[..., r:]], -1)
        k = torch.cat([rot(k[..., :r], pos, self.theta), k[..., r:]], -1)
        return (q, k, F.linear(x, W[a + "weights_proj.weight"]) * h ** (-0.5))

    def select(self, iq, ik, iw, ok):
        sc = torch.zeros(ok.shape, device=ok.device)
        for h in range(iq.shape[2]):
            sc += F.relu(iq[:, :, h] @ ik.transpose(1, 2) * iq.shape[-1] ** (-0.5)) * iw[:, :, h : h + 1]
        sc = sc.masked_fill(~ok, float("-inf"))
        K = min(self.c["index_topk"], sc.shape[-1])
        m = torch.zeros_like(ok).scatter(-1, torch.topk(sc, K, -1).indices, True)
        return m & ok

    def attn(self, q, k, v, m):
        sc = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** (-0.5)
        sc = sc.masked_fill(~m[:, None], float("-inf"))
        o = torch.einsum("bhst,bthd->bshd", torch.softmax(sc, -1), v)
        return o.flatten(2)

    def layer(self, i, x, pos, cache, sel, ok):
        W = self.W
        p = f"model.layers.{i}."
        xn = rms(x, W[p + "input_layernorm.weight"], self.c["rms_norm_eps"])
        q, k, v, qr = self.qkv(i, xn, pos)
        full = self.types[i] == "full"
        if full:
            iq, ik, iw = self.idx(i, xn, qr, pos)
        if cache is not None:
            bi = torch.arange(x.shape[0], device=x.device)[:, None]
            C = cache.setdefault(i, {})
            T = ok.shape[-1]
            if not C:
                C["k"] = torch.zeros(k.shape[0], T, *k.shape[2:], device=x.device)
                C["v"] = torch.zeros(v.shape[0], T, *v.shape[2:], device=x.device)
                C["ik"] = torch.zeros(k.shape[0], T, self.c["index_head_dim"], device=x.device) if full else None
            C["k"][bi, pos] = k
            C["v"][bi, pos] = v
            k, v = (C["k"], C["v"])
            if full:
                C["ik"][bi, pos] = ik
                ik = C["ik"]
        if full:
            sel = self.select(iq, ik, iw, ok) if ok.shape[-1] > self.c["index_topk"] else ok
        x = x + F.linear(self.attn(q, k, v, sel), W[p + "self_attn.o_proj.weight"])
        x = x + self.mlp(i, rms(x, W[p + "post_attention_layernorm.weight"], self.c["rms_norm_eps"]))
        return (x, sel)

    def run(self, ids, pos, cache=None, T=None, keep=None):
        x = self.W["model.embed_tokens.weight"][ids]
        T = T or ids.shape[1]
        ok = torch.arange(T, device=ids.device)[None, None] <= pos[..., None]
        sel = None
        for i in range(self.L):
            x, sel = self.layer(i, x, pos, cache, sel, ok)
            if keep is not None:
                keep.append((x, sel))
        return rms(x, self.W["model.norm.weight"], self.c["rms_norm_eps"])

    def logits(self, h):
        return F.linear(h, self.W["lm_head.weight"])

    @torch.inference_mode()
    def generate(self, prompts, max_new, eos, bs=64):
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        outs = [None] * len(prompts)
        eos = torch.tensor(eos, device=self.dev)
        for b0 in range(0, len(order), bs):
            ix = order[b0 : b0 + bs]
            B = len(ix)
            ln = torch.tensor([len(prompts[i]) for i in ix], device=self.dev)
            Tp = int(ln.max())
            T = Tp + max_new
            ids = torch.zeros(B, Tp, dtype=torch.long)
            for j, i in enumerate(ix):
                ids[j, : len(prompts[i])] = torch.tensor(prompts[i])
            ids = ids.to(self.dev)
            hl = []
            # Prefill in slices, so that the score tensors stay small.
            mb = max(1, int(8 * (1024 / max(Tp, 1024)) ** 2 * 8))
            caches = {}
            for c0 in range(0, B, mb):
                cc = {}
                n = min(mb, B - c0)
                pos = torch.arange(Tp, device=self.dev)[None].expand(n, -1)
                h = self.run(ids[c0 : c0 + n], pos, cc, T)
                hl.append(h[torch.arange(n, device=self.dev), ln[c0 : c0 + n] - 1])
                for l, C in cc.items():
                    D = caches.setdefault(l, {})
                    for k, v in C.items():
                        D.setdefault(k, []).append(v)
            cache = {l: {k: torch.cat(v) if v[0] is not None else None for k, v in D.items()} for l, D in caches.items()}
            del caches
            tok = self.logits(torch.cat(hl)).argmax(-1)
            gen = [tok]
            done = torch.isin(tok, eos)
            p = ln.clone()
            for t in range(max_new - 1):
                if t % 8 == 0 and bool(done.all()):
                    break
                h = self.run(tok[:, None], p[:, None], cache, T)
                tok = self.logits(h[:, 0]).argmax(-1)
                gen.append(tok)
                done |= torch.isin(tok, eos)
                p += 1
            g = torch.stack(gen, 1).tolist()
            es = set(eos.tolist())
            for j, i in enumerate(ix):
                o = []
                for t in g[j]:
                    o.append(t)
                    if t in es:
                        break
                outs[i] = o
            del cache
        return outs

    @torch.inference_mode()
    def mtp_chain(self, ids, steps, own=False):
        """ids [B,T] real tokens; position j of step k: hidden of step k-1 at j-1 (step 0: main hidden at j), emb(ids[j+1]); predicts ids[j+2].
        returns match-able argmax predictions per step [steps][B,T-1]"""
        B, T = ids.shape
        W = self.W
        i = self.L
        p = f"model.layers.{i}."
        dev = ids.device
        pos = torch.arange(T, device=dev)[None].expand(B, -1)
        n = T - 1
        h = self.run(ids, pos)[:, :n]
        pos = pos[:, :n]
        e = rms(W["model.embed_tokens.weight"][ids[:, 1:]], W[p + "enorm.weight"], self.c["rms_norm_eps"])
        ar = torch.arange(n, device=dev)
        ok = (ar[None, :] <= ar[:, None])[None].expand(B, -1, -1)
        K, V, IK, preds = ([], [], [], [])
        sel = None
        for st in range(steps):
            x = F.linear(torch.cat([e, rms(h, W[p + "hnorm.weight"], self.c["rms_norm_eps"])], -1), W[p + "eh_proj.weight"])
            xn = rms(x, W[p + "input_layernorm.weight"], self.c["rms_norm_eps"])
            q, k, v, qr = self.qkv(i, xn, pos)
            iq, ik, iw = self.idx(i, xn, qr, pos)
            K.append(k)
            V.append(v)
            IK.append(ik)
            if st == 0:
                m = self.select(iq, ik, iw, ok) if n > self.c["index_topk"] else ok
                sel = m
                kk, vv = (k, v)
            else:
                base = torch.zeros_like(sel)
                base[:, st:] = (ok if own else sel)[:, :-st]
                ext = [(ar[:, None] - (st - mm) == ar[None])[None].expand(B, -1, -1) for mm in range(1, st + 1)]
                m = torch.cat([base] + ext, -1)
                kk, vv = (torch.cat(K, 1), torch.cat(V, 1))
                if own and n > self.c["index_topk"]:
                    m = self.select(iq, torch.cat(IK, 1), iw, m)
            a = self.attn_rows(q, kk, vv, m)
            x = x + F.linear(a, W[p + "self_attn.o_proj.weight"])
            x = x + self.mlp(i, rms(x, W[p + "post_attention_layernorm.weight"], self.c["rms_norm_eps"]))
            g = rms(x, W[p + "shared_head.norm.weight"], self.c["rms_norm_eps"])
            preds.append(self.logits(g).argmax(-1))
            h = torch.cat([g[:, :1], g[:, :-1]], 1)
        return preds

    def attn_rows(self, q, k, v, m):
        sc = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** (-0.5)
        sc = sc.masked_fill(~m[:, None], -1e30)
        return torch.einsum("bhst,bthd->bshd", torch.softmax(sc, -1), v).flatten(2)

    @torch.inference_mode()
    def draft(self, ids, first, steps, share=True):
        """engine-like chained drafting: ids [n] prompt, first = the token the main model picked after it. returns drafts, logits [steps,V]"""
        dev = self.dev
        seq = list(ids) + [first]
        t = torch.tensor([seq], device=dev)
        n = len(ids)
        W = self.W
        i = self.L
        p = f"model.layers.{i}."
        eps = self.c["rms_norm_eps"]
        pos = torch.arange(n, device=dev)[None]
        h = self.run(t[:, :n], pos)
        toks = t[:, 1:]
        K = V = IK = sel = None
        drafts, lgs = ([], [])
        for st in range(steps):
            x = F.linear(
                torch.cat([rms(W["model.embed_tokens.weight"][toks], W[p + "enorm.weight"], eps), rms(h, W[p + "hnorm.weight"], eps)], -1),
                W[p + "eh_proj.weight"],
            )
            xn = rms(x, W[p + "input_layernorm.weight"], eps)
            q, k, v, qr = self.qkv(i, xn, pos)
            iq, ik, iw = self.idx(i, xn, qr, pos)
            K, V, IK = (k, v, ik) if K is None else (torch.cat([K, k], 1), torch.cat([V, v], 1), torch.cat([IK, ik], 1))
            ok = torch.arange(K.shape[1], device=dev)[None, None] <= pos[..., None]
            if st == 0:
                m = self.select(iq, IK, iw, ok)
                sel = m[:, -1:]
            elif share:
                sel = torch.cat([sel, torch.ones_like(sel[..., :1])], -1)
                m = sel
            else:
                m = self.select(iq, IK, iw, ok)
            x = x + F.linear(self.attn_rows(q, K, V, m), W[p + "self_attn.o_proj.weight"])
            x = x + self.mlp(i, rms(x, W[p + "post_attention_layernorm.weight"], eps))
            g = rms(x[:, -1:], W[p + "shared_head.norm.weight"], eps)
            lg = self.logits(g)[0, 0]
            d = int(lg.argmax())
            drafts.append(d)
            lgs.append(lg)
            h = g
            toks = torch.tensor([[d]], device=dev)
            pos = pos[:, -1:] + 1
        return (drafts, torch.stack(lgs))


def make_config(c, tk):
    """config.json of the checkpoint."""
    L = c["num_hidden_layers"]
    e = tk.token_to_id
    return dict(
        architectures=["GlmMoeDsaForCausalLM"],
        model_type="glm_moe_dsa",
        dtype="bfloat16",
        attention_bias=False,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=[e("<|endoftext|>"), e("<|user|>"), e("<|observation|>")],
        pad_token_id=e("<|endoftext|>"),
        ep_size=1,
        first_k_dense_replace=c["first_k_dense_replace"],
        head_dim=c["qk_rope_head_dim"],
        hidden_act="silu",
        hidden_size=c["hidden_size"],
        index_head_dim=c["index_head_dim"],
        index_n_heads=c["index_n_heads"],
        index_topk=c["index_topk"],
        index_topk_freq=4,
        index_skip_topk_offset=3,
        index_share_for_mtp_iteration=True,
        indexer_rope_interleave=True,
        indexer_types=indexer_types(L),
        initializer_range=0.02,
        intermediate_size=c["intermediate_size"],
        kv_lora_rank=c["kv_lora_rank"],
        max_position_embeddings=c["max_position_embeddings"],
        mlp_layer_types=["dense"] * c["first_k_dense_replace"] + ["sparse"] * (L - c["first_k_dense_replace"]),
        moe_intermediate_size=c["moe_intermediate_size"],
        moe_layer_freq=1,
        n_group=1,
        n_routed_experts=c["n_routed_experts"],
        n_shared_experts=1,
        norm_topk_prob=True,
        num_attention_heads=c["num_attention_heads"],
        num_experts_per_tok=c["num_experts_per_tok"],
        num_hidden_layers=L,
        num_key_value_heads=c["num_attention_heads"],
        num_nextn_predict_layers=1,
        q_lora_rank=c["q_lora_rank"],
        qk_head_dim=c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        qk_nope_head_dim=c["qk_nope_head_dim"],
        qk_rope_head_dim=c["qk_rope_head_dim"],
        rms_norm_eps=c["rms_norm_eps"],
        rope_interleave=True,
        rope_parameters=dict(rope_theta=c["rope_theta"], rope_type="default"),
        routed_scaling_factor=c["routed_scaling_factor"],
        scoring_func="sigmoid",
        tie_word_embeddings=False,
        topk_group=1,
        topk_method="noaux_tc",
        transformers_version="5.17.0",
        use_cache=True,
        v_head_dim=c["v_head_dim"],
        vocab_size=c["vocab_size"],
    )
