"""The network that is trained: GlmMoeDsaForCausalLM in PyTorch (MLA, DSA indexer with IndexShare, sigmoid router MoE, one MTP layer).

Rows hold several documents; `doc` numbers them, and attention stays within one. Per-token functions work on flattened (tokens, ...) tensors, so
that short and long rows share one compiled graph. Shapes: B rows, T positions, D hidden, H heads, h indexer heads."""

import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    FLEX = True
except ImportError:
    FLEX = False

CFG = dict(
    vocab_size=6144,
    hidden_size=256,
    num_hidden_layers=10,
    num_attention_heads=8,
    q_lora_rank=128,
    kv_lora_rank=128,
    qk_nope_head_dim=32,
    qk_rope_head_dim=32,
    v_head_dim=64,
    index_n_heads=8,
    index_head_dim=64,
    index_topk=256,
    intermediate_size=704,
    first_k_dense_replace=2,
    n_routed_experts=16,
    num_experts_per_tok=4,
    moe_intermediate_size=128,
    routed_scaling_factor=2.5,
    rope_theta=100000.0,
    max_position_embeddings=8192,
    rms_norm_eps=1e-05,
)


def indexer_types(L):
    """Which layers have an indexer of their own ("full"): 0, 1, 2, then every fourth. The others share the last one's choice."""
    return ["full" if max(i - 2, 0) % 4 == 0 else "shared" for i in range(L)]


COMPILE = [False]


def comp(f):
    """Compiled at its first call, once COMPILE[0] is set."""
    c = [None]

    def g(*a, **kw):
        if not COMPILE[0]:
            return f(*a, **kw)
        if c[0] is None:
            c[0] = torch.compile(f, dynamic=False)
        return c[0](*a, **kw)

    return g


def rms(x, w, eps):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return w * y


def rope(x, cos, sin):
    """Pairs (2i, 2i+1) in, halves out, as the checkpoint's rope_interleave asks."""
    a, b = (x[..., 0::2], x[..., 1::2])
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def P(*s, std=0.02):
    return nn.Parameter(torch.randn(*s) * std if std > 0 else torch.zeros(*s))


class Block(nn.Module):

    def __init__(self, c, moe, full):
        super().__init__()
        D, H = (c["hidden_size"], c["num_attention_heads"])
        self.moe, self.full = (moe, full)
        nope, rp, v = (c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"])
        ql, kl = (c["q_lora_rank"], c["kv_lora_rank"])
        one = lambda n: nn.Parameter(torch.ones(n))
        self.ln1, self.ln2 = (one(D), one(D))
        self.q_a, self.q_ln, self.q_b = (P(ql, D, std=D ** (-0.5)), one(ql), P(H * (nope + rp), ql, std=ql ** (-0.5)))
        self.kv_a, self.kv_ln, self.kv_b = (P(kl + rp, D, std=D ** (-0.5)), one(kl), P(H * (nope + v), kl, std=kl ** (-0.5)))
        self.o = P(D, H * v, std=0)
        if full:
            hi, di = (c["index_n_heads"], c["index_head_dim"])
            self.wq_b, self.wk, self.kn_w, self.kn_b, self.wp = (
                P(hi * di, ql, std=ql ** (-0.5)),
                P(di, D, std=D ** (-0.5)),
                one(di),
                nn.Parameter(torch.zeros(di)),
                P(hi, D, std=D ** (-0.5)),
            )
        if moe:
            E, I = (c["n_routed_experts"], c["moe_intermediate_size"])
            self.gate = P(E, D, std=0.02)
            self.register_buffer("bias", torch.zeros(E))
            self.gu = P(2 * (E + 1), I, D, std=D ** (-0.5))
            self.dn = P(E + 1, D, I, std=0)
        else:
            I = c["intermediate_size"]
            self.gu = P(2, I, D, std=D ** (-0.5))
            self.dn = P(D, I, std=0)


def pre(x, ln1, q_a, q_ln, q_b, kv_a, kv_ln, kv_b, cos, sin, H, nope, rp, vd):
    N = x.shape[0]
    xn = rms(x, ln1, 1e-05)
    qr = rms(F.linear(xn, q_a), q_ln, 1e-06)
    q = F.linear(qr, q_b).view(N, H, nope + rp)
    ckv = F.linear(xn, kv_a)
    kl = kv_a.shape[0] - rp
    kv = F.linear(rms(ckv[..., :kl], kv_ln, 1e-06), kv_b).view(N, H, nope + vd)
    kr = rope(ckv[..., kl:].float(), cos, sin).unsqueeze(1).expand(N, H, rp)
    q = torch.cat([q[..., :nope], rope(q[..., nope:].float(), cos[:, None], sin[:, None]).to(q.dtype)], -1)
    k = torch.cat([kv[..., :nope], kr.to(kv.dtype)], -1)
    return (q.contiguous(), k.contiguous(), kv[..., nope:].contiguous(), xn, qr)


def post_dense(x, att, o, ln2, gu, dn):
    x = x + F.linear(att, o)
    h = rms(x, ln2, 1e-05)
    g = F.linear(h, gu[0])
    u = F.linear(h, gu[1])
    return x + F.linear(F.silu(g) * u, dn)


def post_moe(x, att, o, ln2, gate, bias, gu, dn, topk, scale):
    """Attention's output projection, then all experts as one dense product with the routing weights inside: at this size cheaper than sorting tokens."""
    N, D = x.shape
    E1, _, I = dn.shape
    x = x + F.linear(att, o)
    h = rms(x, ln2, 1e-05)
    with torch.autocast(x.device.type, enabled=False):
        s = torch.sigmoid(F.linear(h.float(), gate.float()))
    idx = torch.topk(s.detach() + bias, topk, -1, sorted=False).indices
    m = torch.zeros_like(s).scatter_(1, idx, 1.0)
    w = s * m
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * scale
    w = torch.cat([w, torch.ones_like(w[:, :1])], 1)
    a = F.linear(h, gu.view(2 * E1 * I, D)).view(N, E1, 2, I)
    a = F.silu(a[:, :, 0]) * a[:, :, 1] * w.to(a.dtype)[:, :, None]
    y = F.linear(a.reshape(N, E1 * I), dn.permute(1, 0, 2).reshape(D, E1 * I))
    return (x + y, m.sum(0))


def idx_proj(xn, qr, wq_b, wk, kn_w, kn_b, wp, cos, sin, hi, di, rp):
    N = xn.shape[0]
    q = F.linear(qr, wq_b).view(N, hi, di)
    k = F.layer_norm(F.linear(xn, wk).float(), (di,), kn_w, kn_b, 1e-06)
    q = torch.cat([rope(q[..., :rp].float(), cos[:, None], sin[:, None]), q[..., rp:].float()], -1)
    k = torch.cat([rope(k[..., :rp], cos, sin), k[..., rp:]], -1)
    w = F.linear(xn, wp).float() * hi ** (-0.5)
    return (q, k, w)


def idx_score(q, k, w):
    s = torch.einsum("bshd,btd->bsht", q, k) * q.shape[-1] ** (-0.5)
    return (F.relu(s).float() * w.unsqueeze(-1)).sum(2)


def masked_score(iq, ik, iw, mask):
    return idx_score(iq, ik, iw).masked_fill(~mask, -1e30)


def attn_probs(q, k, mask, scale):
    s = (q @ k.transpose(-1, -2)).float() * scale
    return torch.softmax(s.masked_fill(~mask[:, None], -1e30), -1).mean(1)


def kl_loss(p, iq, ik, iw, mask, valid):
    """How far the indexer's distribution is from the attention it stands for."""
    lp = torch.log_softmax(masked_score(iq, ik, iw, mask), -1)
    kl = (p * (torch.log(p.clamp_min(1e-09)) - lp)).masked_fill(~mask, 0).sum(-1)
    return (kl * valid).sum() / valid.sum().clamp_min(1)


def ce_loss(h, W, tgt, wt):
    """Sums, so that short and long rows are weighed together by the caller."""
    lg = F.linear(h, W).float()
    nll = torch.logsumexp(lg, -1) - lg.gather(-1, tgt.unsqueeze(-1)).squeeze(-1)
    ok = (lg.detach().argmax(-1) == tgt).float() * (wt >= 0.99)
    return ((nll * wt).sum(), wt.sum(), ok.sum(), (wt >= 0.99).float().sum())


def kd_loss(h, W, tlg, wt):
    """MTP to the main model's distribution."""
    lg = F.linear(h, W).float()
    lp = torch.log_softmax(lg, -1)
    p = torch.softmax(tlg.float(), -1)
    kd = -(p * lp).sum(-1)
    ok = (lg.detach().argmax(-1) == tlg.argmax(-1)).float() * (wt >= 0.99)
    return ((kd * wt).sum(), wt.sum(), ok.sum(), (wt >= 0.99).float().sum())


c_pre, c_pd, c_pm, c_ip, c_ap, c_kl, c_ce, c_kd, c_ms = map(
    comp, (pre, post_dense, post_moe, idx_proj, attn_probs, kl_loss, ce_loss, kd_loss, masked_score)
)
c_rms = comp(rms)
c_flex = comp(lambda q, k, v, bm, scale: flex_attention(q, k, v, block_mask=bm, scale=scale)) if FLEX else None
BS = 128


def blocks_of(dense):
    return (
        dense.sum(-1).to(torch.int32)[:, None].contiguous(),
        torch.argsort(dense.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)[:, None].contiguous(),
    )


def make_bm(M, mod, use_full=True):
    """Block mask of flex attention from a dense one."""
    B, Tq, Tk = M.shape
    t = M.view(B, Tq // BS, BS, Tk // BS, BS)
    any_ = t.any(4).any(2)
    if use_full:
        all_ = t.all(4).all(2)
        a, b = blocks_of(any_ & ~all_)
        c, d = blocks_of(all_)
        return BlockMask.from_kv_blocks(a, b, c, d, BLOCK_SIZE=BS, mask_mod=mod, seq_lengths=(Tq, Tk))
    a, b = blocks_of(any_)
    return BlockMask.from_kv_blocks(a, b, BLOCK_SIZE=BS, mask_mod=mod, seq_lengths=(Tq, Tk))


def doc_mod(doc):

    def f(b, h, q, k):
        return (doc[b, q] == doc[b, k]) & (q >= k)

    return f


def sel_mod(sel):

    def f(b, h, q, k):
        return sel[b, q, k]

    return f


def attend(q, k, v, M, bm, scale):
    if bm is not None:
        return c_flex(q, k, v, bm, scale)
    s = (q @ k.transpose(-1, -2)).float() * scale
    return torch.softmax(s.masked_fill(~M[:, None], -1e30), -1).to(v.dtype) @ v


class Model(nn.Module):

    def __init__(self, c=CFG):
        super().__init__()
        self.c = c
        L, D, V = (c["num_hidden_layers"], c["hidden_size"], c["vocab_size"])
        types = indexer_types(L)
        self.emb = P(V, D, std=0.1)
        self.head = P(V, D, std=0.005)
        self.norm = nn.Parameter(torch.ones(D))
        self.layers = nn.ModuleList([Block(c, i >= c["first_k_dense_replace"], types[i] == "full") for i in range(L)])
        self.mtp = Block(c, True, True)
        self.eh = P(D, 2 * D, std=(2 * D) ** (-0.5))
        self.enorm, self.hnorm, self.snorm = (nn.Parameter(torch.ones(D)) for _ in range(3))
        rp = c["qk_rope_head_dim"]
        inv = 1.0 / c["rope_theta"] ** (torch.arange(0, rp, 2).float() / rp)
        f = torch.outer(torch.arange(c["max_position_embeddings"]).float(), inv)
        self.register_buffer("cos", f.cos(), persistent=False)
        self.register_buffer("sin", f.sin(), persistent=False)
        self.flex = False
        self.scale = (c["qk_nope_head_dim"] + rp) ** (-0.5)

    def cs(self, B, T):
        return (self.cos[:T].repeat(B, 1), self.sin[:T].repeat(B, 1))

    def a_pre(self, b, x, cs, B, T):
        c = self.c
        q, k, v, xn, qr = c_pre(
            x,
            b.ln1,
            b.q_a,
            b.q_ln,
            b.q_b,
            b.kv_a,
            b.kv_ln,
            b.kv_b,
            cs[0],
            cs[1],
            c["num_attention_heads"],
            c["qk_nope_head_dim"],
            c["qk_rope_head_dim"],
            c["v_head_dim"],
        )
        f = lambda t: t.view(B, T, t.shape[1], t.shape[2]).transpose(1, 2)
        return (f(q), f(k), f(v), xn, qr)

    def a_post(self, b, x, att):
        att = att.transpose(1, 2).reshape(x.shape[0], -1)
        if b.moe:
            return c_pm(x, att, b.o, b.ln2, b.gate, b.bias, b.gu, b.dn, self.c["num_experts_per_tok"], self.c["routed_scaling_factor"])
        return (c_pd(x, att, b.o, b.ln2, b.gu, b.dn), None)

    def index(self, b, xn, qr, cs, B, T):
        c = self.c
        q, k, w = c_ip(
            xn.detach(),
            qr.detach(),
            b.wq_b,
            b.wk,
            b.kn_w,
            b.kn_b,
            b.wp,
            cs[0],
            cs[1],
            c["index_n_heads"],
            c["index_head_dim"],
            c["qk_rope_head_dim"],
        )
        return (q.view(B, T, *q.shape[1:]), k.view(B, T, -1), w.view(B, T, -1))

    @torch.no_grad()
    def select(self, ix, M):
        q, k, w = ix
        out = torch.empty_like(M)
        K = self.c["index_topk"]
        for i in range(M.shape[0]):
            sc = c_ms(q[i : i + 1], k[i : i + 1], w[i : i + 1], M[i : i + 1])
            out[i : i + 1] = (
                torch.zeros_like(M[i : i + 1]).scatter_(-1, torch.topk(sc, min(K, sc.shape[-1]), -1, sorted=False).indices, True)
                & M[i : i + 1]
            )
        return out

    def masks(self, doc):
        T = doc.shape[1]
        ar = torch.arange(T, device=doc.device)
        M = (doc[:, :, None] == doc[:, None, :]) & (ar[:, None] >= ar[None])
        return (M, make_bm(M, doc_mod(doc)) if self.flex else None)

    def forward(self, ids, doc, sparse=False, kl=None):
        """-> post-norm hidden, counts, kl loss, masks (mtp_run takes them again). kl = sampled query positions [B,S] or None"""
        B, T = ids.shape
        M, bm = self.masks(doc)
        cs = self.cs(B, T)
        x = F.embedding(ids.reshape(-1), self.emb)
        counts = []
        klsum = x.new_zeros(())
        grp = None
        Mc, bmc = (M, bm)

        def flush():
            nonlocal klsum, grp
            if grp is not None:
                klsum = klsum + c_kl(grp[0] / grp[1], *grp[2])
                grp = None

        for b in self.layers:
            q, k, v, xn, qr = self.a_pre(b, x, cs, B, T)
            if b.full and (sparse or kl is not None):
                ix = self.index(b, xn, qr, cs, B, T)
                if sparse:
                    Mc = self.select(ix, M)
                    bmc = make_bm(Mc, sel_mod(Mc), False) if self.flex else None
                if kl is not None:
                    flush()
                    grp = [0.0, 0, kl_args(ix, M, kl)]
            if kl is not None:
                with torch.no_grad():
                    pr = c_ap(gather_q(q, kl), k, gather_m(M, kl), self.scale)
                grp[0] = grp[0] + pr
                grp[1] += 1
            att = attend(q, k, v, Mc, bmc, self.scale)
            x, ct = self.a_post(b, x, att)
            if ct is not None:
                counts.append(ct)
        flush()
        return (c_rms(x, self.norm, 1e-05).view(B, T, -1), counts, klsum, (M, bm))

    def mtp_run(self, h, ids, doc, M, bm, steps, sparse=False, kl=None):
        """h [B,T,D]: post-norm hidden of the main model at position j. Step k at position j sees emb(t[j+1]) and predicts t[j+2]."""
        B, T, D = h.shape
        cs = self.cs(B, T)
        nxt = torch.cat([ids[:, 1:], ids[:, :1]], 1)
        e = c_rms(F.embedding(nxt.reshape(-1), self.emb), self.enorm, 1e-05)
        ar = torch.arange(T, device=ids.device)
        outs = []
        counts = []
        klsum = h.new_zeros(())
        K, V = ([], [])
        b = self.mtp
        Mc, bmc = (M, bm)
        for st in range(steps):
            x = F.linear(torch.cat([e, c_rms(h.reshape(B * T, D), self.hnorm, 1e-05)], -1), self.eh).float()
            q, k, v, xn, qr = self.a_pre(b, x, cs, B, T)
            if st == 0 and (sparse or kl is not None):
                ix = self.index(b, xn, qr, cs, B, T)
                if sparse:
                    Mc = self.select(ix, M)
                    bmc = make_bm(Mc, sel_mod(Mc), False) if self.flex else None
                if kl is not None:
                    with torch.no_grad():
                        pr = c_ap(gather_q(q, kl), k, gather_m(M, kl), self.scale)
                    klsum = klsum + c_kl(pr, *kl_args(ix, M, kl))
            K.append(k)
            V.append(v)
            if st == 0:
                att = attend(q, k, v, Mc, bmc, self.scale)
            else:
                # Step 0's selection of query j - st, then one key for each earlier step.
                base = torch.zeros_like(Mc)
                base[:, st:] = Mc[:, :-st]
                parts = [base]
                for m in range(1, st + 1):
                    d = ar[:, None] - (st - m) == ar[None]
                    same = doc[:, :, None] == doc[:, None, :]
                    parts.append(same & d[None])
                MM = torch.cat(parts, 2)
                att = attend(q, torch.cat(K, 2), torch.cat(V, 2), MM, make_bm(MM, sel_mod(MM), False) if self.flex else None, self.scale)
            y, ct = self.a_post(b, x, att)
            counts.append(ct)
            g = c_rms(y, self.snorm, 1e-05).view(B, T, D)
            outs.append(g)
            h = torch.cat([g[:, :1], g[:, :-1]], 1)
        return (outs, counts, klsum)


def gather_q(q, kl):
    return torch.gather(q, 2, kl[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))


def gather_m(M, kl):
    return torch.gather(M, 1, kl[:, :, None].expand(-1, -1, M.shape[2]))


def kl_args(ix, M, kl):
    """What kl_loss needs at the sampled queries, but for the attention."""
    iq, ik, iw = ix
    bi = torch.arange(iq.shape[0], device=kl.device)[:, None]
    m = gather_m(M, kl)
    return (iq[bi, kl], ik, iw[bi, kl], m, (m.sum(-1) > 2).float())


# Name in a checkpoint below self_attn, and the parameter of Block.
ATTENTION = (
    ("q_a_proj.weight", "q_a"),
    ("q_a_layernorm.weight", "q_ln"),
    ("q_b_proj.weight", "q_b"),
    ("kv_a_proj_with_mqa.weight", "kv_a"),
    ("kv_a_layernorm.weight", "kv_ln"),
    ("kv_b_proj.weight", "kv_b"),
    ("o_proj.weight", "o"),
)
INDEXER = (
    ("indexer.wq_b.weight", "wq_b"),
    ("indexer.wk.weight", "wk"),
    ("indexer.k_norm.weight", "kn_w"),
    ("indexer.k_norm.bias", "kn_b"),
    ("indexer.weights_proj.weight", "wp"),
)
ROUTER_BIAS = "mlp.gate.e_score_correction_bias"


def checkpoint_tensors(m):
    """Parameters, or parts of them, beside their names in a Hugging Face checkpoint."""
    yield "model.embed_tokens.weight", m.emb
    yield "lm_head.weight", m.head
    yield "model.norm.weight", m.norm
    for i, b in enumerate(list(m.layers) + [m.mtp]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", b.ln1
        yield p + "post_attention_layernorm.weight", b.ln2
        for name, parameter in ATTENTION + (INDEXER if b.full else ()):
            yield p + "self_attn." + name, getattr(b, parameter)
        if not b.moe:
            yield p + "mlp.gate_proj.weight", b.gu[0]
            yield p + "mlp.up_proj.weight", b.gu[1]
            yield p + "mlp.down_proj.weight", b.dn
            continue
        yield p + "mlp.gate.weight", b.gate
        yield p + ROUTER_BIAS, b.bias
        for e in range(len(b.dn)):
            q = p + ("mlp.shared_experts." if e == len(b.gate) else f"mlp.experts.{e}.")
            yield q + "gate_proj.weight", b.gu[2 * e]
            yield q + "up_proj.weight", b.gu[2 * e + 1]
            yield q + "down_proj.weight", b.dn[e]
    p = f"model.layers.{len(m.layers)}."
    yield p + "eh_proj.weight", m.eh
    yield p + "enorm.weight", m.enorm
    yield p + "hnorm.weight", m.hnorm
    yield p + "shared_head.norm.weight", m.snorm


def export_state(m):
    """The checkpoint's tensors: bf16, router biases float32."""
    dtype = lambda name: torch.float32 if name.endswith(ROUTER_BIAS) else torch.bfloat16
    return {name: t.detach().to("cpu", dtype(name), copy=True).contiguous() for name, t in checkpoint_tensors(m)}


@torch.no_grad()
def import_state(m, o):
    """The other way."""
    for name, t in checkpoint_tensors(m):
        t.copy_(o[name].float())
