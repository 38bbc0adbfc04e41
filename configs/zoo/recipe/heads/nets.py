"""The four heads: parameters under their published names, training loss, drafting.

Notation: row i of a window reads the target's states at position i and, for the EAGLE heads,
the token at i+1; it predicts the token at i+2. `p[j]` is the target's distribution for the
token at j+1. Losses are cross entropies against p, each further step weighing less.
"""
import torch
import torch.nn.functional as F
from common import SoftLoss, norm, rope_table, rotate

H, G, D = 6, 2, 64                              # query heads, key/value heads, their size


def frequent(counts, n):
    """the n most frequent ids, ascending; ties go to the smaller id"""
    return torch.argsort(counts, descending=True, stable=True)[:n].sort().values


def teacher(target, x):
    """normalised states [N,d] -> the target's distributions [N,V]"""
    return (x @ target.head.t()).softmax(-1)


class Head:
    decay, taps, steps = 0.8, False, 3

    def __init__(self, target):
        self.t, self.p, self.fixed = target, {}, {}
        self.cos, self.sin = rope_table(2048, D)

    def load(self, tensors):
        for k in self.p: self.p[k] = tensors[k].float()
        for k in self.fixed: self.fixed[k] = tensors[k]
        self.ready()

    def ready(self):
        pass

    def config(self):
        raise NotImplementedError


class Eagle(Head):
    """What EAGLE-2 and EAGLE-3 share: one decoder layer that is fed its own output."""
    inter = 512

    def layer_from_target(self, prefix, inter):
        """The target's last layer, with its most used feed-forward units."""
        t, p = self.t.w, f"model.layers.{self.t.c['num_hidden_layers'] - 1}."
        g, u, d = (t[p + f"mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
        keep = torch.argsort(u.norm(dim=1) * d.norm(dim=0), descending=True)[:inter].sort().values
        self.p[prefix + "self_attn.o_proj.weight"] = t[p + "self_attn.o_proj.weight"].clone()
        self.p[prefix + "mlp.gate_proj.weight"] = g[keep].clone()
        self.p[prefix + "mlp.up_proj.weight"] = u[keep].clone()
        self.p[prefix + "mlp.down_proj.weight"] = d[:, keep].clone()
        self.p[prefix + "post_attention_layernorm.weight"] = \
            t[p + "post_attention_layernorm.weight"].clone()
        return {n: t[p + f"self_attn.{n}_proj.weight"] for n in "qkv"}, \
            t[p + "input_layernorm.weight"]

    def qkv(self, x, cos, sin):
        """x [B,n,*] -> q [B,H,n,D], k and v [B,G,n,D]"""
        f = lambda n, h: (x @ self.p[self.prefix + f"self_attn.{n}_proj.weight"].t()) \
            .unflatten(-1, (h, D)).transpose(1, 2)
        return rotate(f("q", H), cos, sin), rotate(f("k", G), cos, sin), f("v", G)

    def finish(self, residual, o):
        """attention output [B,H,n,D] -> the layer's output g [B,n,d]"""
        w = lambda n: self.p[self.prefix + n].t()
        y = residual + o.transpose(1, 2).flatten(2) @ w("self_attn.o_proj.weight")
        m = norm(y, self.p[self.prefix + "post_attention_layernorm.weight"])
        m = F.silu(m @ w("mlp.gate_proj.weight")) * (m @ w("mlp.up_proj.weight"))
        return y + m @ w("mlp.down_proj.weight")

    def loss(self, tokens, states, taps):
        """Training-time test: step 0 reads the target's states, a later one the step before."""
        B, W = tokens.shape
        with torch.no_grad():
            p = self.restrict(teacher(self.t, states[:, 1:].flatten(0, 1))).unflatten(0, (B, W - 1))
        u = self.first(taps if self.taps else states)
        wide = lambda x: x.repeat_interleave(H // G, 1)
        total, parts, later = 0, [], []
        for k in range(self.steps):
            n = W - 1 - k
            e = self.t.embed[tokens[:, 1 + k:1 + k + n]]
            residual, x = self.join(e, u[:, :n])
            q, kk, v = self.qkv(x, self.cos[k:k + n], self.sin[k:k + n])
            kk, v = wide(kk), wide(v)
            if k == 0:
                k0, v0 = kk, v
                o = F.scaled_dot_product_attention(q, k0, v0, is_causal=True)
            else:
                later.append((kk, v))
                q = q * D ** -0.5
                s = q @ k0[:, :, :n].transpose(2, 3)
                s = s + torch.full((n, n), float("-inf")).triu(1)
                own = [(q * a[:, :, :n]).sum(-1, keepdim=True) for a, _ in later]
                s = torch.cat([s] + own, -1).softmax(-1)
                o = s[..., :n] @ v0[:, :, :n]
                for j, (_, b) in enumerate(later): o = o + s[..., n + j:n + j + 1] * b[:, :, :n]
            u = self.finish(residual, o)
            out = self.output(u).flatten(0, 1)
            l = SoftLoss.apply(out, self.output_matrix(), p[:, k:].flatten(0, 1)) / (B * n)
            total = total + self.decay ** k * l
            parts.append(float(l.detach()))
        return total, parts

    # drafting, for evaluate.py ------------------------------------------------------------

    def begin(self, tokens, states, taps):
        """All rows of the texts [B,N] at once -> stable keys, values and outputs."""
        n = tokens.shape[1] - 1
        u = self.first(taps if self.taps else states)[:, :n]
        residual, x = self.join(self.t.embed[tokens[:, 1:]], u)
        q, k, v = self.qkv(x, self.cos[:n], self.sin[:n])
        k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
        g = self.finish(residual, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return k, v, g

    def tree(self, kept, rows, top, depth, total):
        """Dynamic trees behind row rows[b] of each text (top 1 gives a chain of depth + 1).
        -> candidates in list order: tokens, parents (-1: the root), kept or not, each [B,C]"""
        K, V, g_all = kept
        B, N = len(rows), K.shape[2]
        g = g_all[torch.arange(B), rows][:, None]
        val, tok = self.scores(g).topk(top, -1)
        val, tok = val[:, 0], tok[:, 0]                          # [B,top]
        toks, vals, parents = [tok], [val], [torch.full_like(tok, -1)]
        node = torch.arange(top).expand(B, top)                  # candidate index of each beam
        g = g.expand(B, top, -1)
        stable = (torch.arange(N) <= rows[:, None])[:, None, None]
        seen = torch.zeros(B, top, 0, dtype=torch.bool)
        ks, vs = [], []
        for level in range(depth):
            residual, x = self.join(self.t.embed[self.ids(tok)], g)
            at = rows + 1 + level
            q, k, v = self.qkv(x, self.cos[at][:, None, None], self.sin[at][:, None, None])
            ks.append(k.repeat_interleave(H // G, 1)); vs.append(v.repeat_interleave(H // G, 1))
            seen = torch.cat([seen, torch.eye(top, dtype=torch.bool).expand(B, -1, -1)], -1)
            s = torch.cat([(q @ K.transpose(2, 3)).masked_fill(~stable, float("-inf")),
                           (q @ torch.cat(ks, 2).transpose(2, 3))
                           .masked_fill(~seen[:, None], float("-inf"))], -1)
            s = (s * D ** -0.5).softmax(-1)
            g = self.finish(residual, s[..., :N] @ V + s[..., N:] @ torch.cat(vs, 2))
            lv, lt = self.scores(g).topk(top, -1)                # [B,top,top]
            lv = (val[..., None] + lv).flatten(1); lt = lt.flatten(1)
            base = top + level * top * top
            toks.append(lt); vals.append(lv)
            parents.append(node.repeat_interleave(top, 1))
            val, pick = lv.topk(top, -1)
            tok, node, beam = lt.gather(1, pick), base + pick, pick // top
            g = g.gather(1, beam[..., None].expand(-1, -1, g.shape[-1]))
            seen = seen.gather(1, beam[..., None].expand(-1, -1, seen.shape[-1]))
        toks, vals, parents = torch.cat(toks, 1), torch.cat(vals, 1), torch.cat(parents, 1)
        order = torch.argsort(vals, dim=1, descending=True, stable=True)[:, :total]
        keep = torch.zeros_like(toks, dtype=torch.bool).scatter_(1, order, True)
        return self.ids(toks), parents, keep

    def scores(self, g):
        """log-probabilities over the draft's vocabulary"""
        return (self.output(g) @ self.output_matrix().t()).log_softmax(-1)


class Eagle3(Eagle):
    name, taps, prefix = "eagle3", True, "midlayer."
    vocab = 3072

    def initialise(self, rows):
        d = self.t.embed.shape[1]
        used = frequent(rows.counts(), self.vocab)
        t2d = torch.zeros(len(self.t.embed), dtype=torch.bool); t2d[used] = True
        self.fixed = {"d2t": used - torch.arange(self.vocab), "t2d": t2d}
        self.p["fc.weight"] = torch.cat([0.02 * torch.randn(d, 2 * d), torch.eye(d)], 1)
        old, gain = self.layer_from_target(self.prefix, self.inter)
        for n, w in old.items():                # the embedding's half starts near nothing
            self.p[self.prefix + f"self_attn.{n}_proj.weight"] = \
                torch.cat([0.01 * torch.randn_like(w), w], 1)
        self.p[self.prefix + "hidden_norm.weight"] = gain.clone()
        self.p[self.prefix + "input_layernorm.weight"] = torch.ones(d)
        self.p["norm.weight"] = self.t.w["model.norm.weight"].clone()
        self.p["lm_head.weight"] = self.t.head[used].clone()
        self.ready()

    def ready(self):
        self.used = self.fixed["d2t"] + torch.arange(self.vocab)

    def inner(self):
        return [k for k, v in self.p.items() if v.dim() == 2 and k != "lm_head.weight"]

    def restrict(self, p):
        return p[:, self.used]

    def first(self, taps):
        return taps @ self.p["fc.weight"].t()

    def join(self, e, u):
        w = lambda n: self.p[self.prefix + n]
        return u, torch.cat([norm(e, w("input_layernorm.weight")),
                             norm(u, w("hidden_norm.weight"))], -1)

    def output(self, g):
        return norm(g, self.p["norm.weight"])

    def output_matrix(self):
        return self.p["lm_head.weight"]

    def ids(self, z):
        return self.used[z]

    def config(self):
        return {"architectures": ["LlamaForCausalLMEagle3"], "attention_bias": False,
                "bos_token_id": 0, "draft_vocab_size": self.vocab,
                "eagle_aux_hidden_state_layer_ids": [2, 4, 5], "eos_token_id": 1,
                "head_dim": D, "hidden_act": "silu", "hidden_size": 384,
                "intermediate_size": self.inter, "max_position_embeddings": 2048,
                "model_type": "llama", "num_attention_heads": H, "num_hidden_layers": 1,
                "num_key_value_heads": G, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 4096}


class Eagle2(Eagle):
    name, prefix, inter = "eagle2", "layers.0.", 448

    def initialise(self, rows):
        d = self.t.embed.shape[1]
        # fc starts as the best linear guess of the next state, the layer as nothing
        f = torch.from_numpy(rows.norm[::4, :256].astype("float32"))
        e = self.t.embed[torch.from_numpy(rows.tokens[::4, 1:256].astype("int64"))]
        x, y = torch.cat([e, f[:, :-1]], -1).flatten(0, 1), f[:, 1:].flatten(0, 1)
        s = x.t() @ x
        s += 0.01 * s.diagonal().mean() * torch.eye(2 * d)
        self.p["fc.weight"] = torch.linalg.solve(s, x.t() @ y).t().contiguous()
        old, gain = self.layer_from_target(self.prefix, self.inter)
        gain = gain / self.t.w["model.norm.weight"].clamp(min=0.1)
        for n, w in old.items():                # no input norm here: its gain goes into the matrix
            self.p[self.prefix + f"self_attn.{n}_proj.weight"] = w * gain
        self.p[self.prefix + "self_attn.o_proj.weight"].zero_()
        self.p[self.prefix + "mlp.down_proj.weight"].zero_()

    def inner(self):
        return [k for k, v in self.p.items() if v.dim() == 2]

    def restrict(self, p):
        return p

    def first(self, states):
        return states

    def join(self, e, u):
        x = torch.cat([e, u], -1) @ self.p["fc.weight"].t()
        return x, x

    def output(self, g):
        return g

    def output_matrix(self):
        return self.t.head

    def ids(self, z):
        return z

    def config(self):
        return {"architectures": ["LlamaForCausalLM"], "bias": False, "bos_token_id": 0,
                "eos_token_id": 1, "hidden_act": "silu", "hidden_size": 384,
                "intermediate_size": self.inter, "max_position_embeddings": 2048,
                "model_type": "llama", "num_attention_heads": H, "num_hidden_layers": 1,
                "num_key_value_heads": G, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 4096}


class Medusa(Head):
    name, heads, vocab = "medusa", 3, 1024

    def initialise(self, rows):
        d = self.t.embed.shape[1]
        self.fixed = {"token_map": frequent(rows.counts(), self.vocab)}
        for h in range(self.heads):
            self.p[f"blocks.{h}.layers.0.weight"] = torch.zeros(d, d)
            self.p[f"blocks.{h}.layers.0.bias"] = torch.zeros(d)
            self.p[f"lm_heads.{h}.weight"] = self.t.head[self.fixed["token_map"]].clone()

    def inner(self):
        return [k for k in self.p if k.startswith("blocks.") and k.endswith("weight")]

    def features(self, x, h):
        w = f"blocks.{h}.layers.0."
        return x + F.silu(x @ self.p[w + "weight"].t() + self.p[w + "bias"])

    def loss(self, tokens, states, taps):
        B, W = tokens.shape
        with torch.no_grad():
            p = teacher(self.t, states[:, 1:].flatten(0, 1))[:, self.fixed["token_map"]]
            p = p.unflatten(0, (B, W - 1))
        total, parts = 0, []
        for h in range(self.heads):
            n = W - 1 - h
            x = self.features(states[:, :n], h).flatten(0, 1)
            l = SoftLoss.apply(x, self.p[f"lm_heads.{h}.weight"], p[:, h:].flatten(0, 1)) / (B * n)
            total = total + self.decay ** h * l
            parts.append(float(l.detach()))
        return total, parts

    def best(self, states, h, n=10):
        """the n best ids of head h for each state"""
        z = self.features(states, h) @ self.p[f"lm_heads.{h}.weight"].t()
        return self.fixed["token_map"][z.topk(n, -1).indices]

    def config(self):
        return {"architectures": ["MedusaModel"], "hidden_size": 384, "max_paths": 64,
                "medusa_fc_bias": True, "model_type": "medusa", "num_heads": self.heads,
                "num_hidden_layers": 1, "original_lm_head": False, "topk": 10,
                "torch_dtype": "bfloat16", "truncated_vocab_size": self.vocab,
                "vocab_size": 4096}


class Redrafter(Head):
    name, decay, steps, exit, layers = "redrafter", 0.9, 4, 192, 1

    def initialise(self, rows):
        d = self.t.embed.shape[1]
        # the best output matrix of this rank for the states that occur
        x = torch.from_numpy(rows.norm[::8, ::16].reshape(-1, d).astype("float32"))
        val, vec = torch.linalg.eigh(x.t() @ x / len(x))
        half = vec * val.clamp(min=1e-6).sqrt()
        u, s, v = torch.linalg.svd(self.t.head @ half, full_matrices=False)
        back = v[:self.exit] @ (vec / val.clamp(min=1e-6).sqrt()).t()      # [exit, d]
        p = self.p
        p["rnn_w.weight"] = torch.randn(d, d) / d ** 0.5 / self.t.embed.std()
        p["rnn_u.weight"] = 0.7 * torch.linalg.qr(torch.randn(d, d))[0]
        p["rnn_u.bias"] = torch.zeros(d)
        for l in range(self.layers):
            p[f"lm_head.{l}.linear.weight"] = torch.zeros(self.exit, self.exit)
            p[f"lm_head.{l}.linear.bias"] = torch.zeros(self.exit)
        p[self.out_name()] = u[:, :self.exit] * s[:self.exit]
        # input_proj starts as the best linear guess of the coming states, the rest being random
        f = torch.from_numpy(rows.norm[::10, :256].astype("float32"))
        y = torch.from_numpy(rows.tokens[::10, :256].astype("int64"))
        s, xx, xy, N = None, 0, 0, f.shape[1] - self.steps
        p["input_proj.weight"] = torch.zeros(self.exit, 2 * d)
        for k in range(1, self.steps + 1):
            s, _ = self.step(0, s, y[:, k:k + N])
            x = torch.cat([f[:, :N], s, torch.ones(*s.shape[:2], 1)], -1).flatten(0, 1)
            xx = xx + x.t() @ x
            xy = xy + x.t() @ (f[:, k:k + N].flatten(0, 1) @ back.t())
        w = torch.linalg.solve(xx + 0.01 * xx.diagonal().mean() * torch.eye(2 * d + 1), xy).t()
        p["input_proj.weight"], p["input_proj.bias"] = w[:, :-1].contiguous(), w[:, -1].clone()

    def inner(self):
        return [k for k, v in self.p.items() if v.dim() == 2 and k != self.out_name()]

    def out_name(self):
        return f"lm_head.{self.layers}.weight"

    def step(self, context, s, y):
        """context = input_proj's part of h; y token ids -> (new state, exit vector)"""
        p, d = self.p, self.t.embed.shape[1]
        s = F.silu(self.t.embed[y] @ p["rnn_w.weight"].t() + p["rnn_u.bias"] +
                   (0 if s is None else s @ p["rnn_u.weight"].t()))
        z = context + s @ p["input_proj.weight"][:, d:].t()
        for l in range(self.layers):
            z = z + F.silu(z @ p[f"lm_head.{l}.linear.weight"].t() + p[f"lm_head.{l}.linear.bias"])
        return s, z

    def context(self, h):
        return h @ self.p["input_proj.weight"][:, :h.shape[-1]].t() + self.p["input_proj.bias"]

    def loss(self, tokens, states, taps):
        B, W = tokens.shape
        with torch.no_grad():
            p = teacher(self.t, states[:, 1:].flatten(0, 1)).unflatten(0, (B, W - 1))
        c, s, total, parts = self.context(states), None, 0, []
        for k in range(self.steps):
            n = W - 1 - k
            s, z = self.step(c[:, :n], None if s is None else s[:, :n], tokens[:, 1 + k:1 + k + n])
            l = SoftLoss.apply(z.flatten(0, 1), self.p[self.out_name()],
                               p[:, k:].flatten(0, 1)) / (B * n)
            total = total + self.decay ** k * l
            parts.append(float(l.detach()))
        return total, parts

    def beams(self, h, y, width, length):
        """h [B,d], y [B] the root token -> [B,width,length] draft tokens, best first"""
        B = len(y)
        c, s = self.context(h)[:, None], None
        y, val = y[:, None], torch.zeros(B, 1)
        out = torch.zeros(B, 1, 0, dtype=torch.long)
        for _ in range(length):
            s, z = self.step(c, s, y)
            lp = (z @ self.p[self.out_name()].t()).log_softmax(-1)
            V = lp.shape[-1]
            val, pick = (val[..., None] + lp).flatten(1).topk(width, -1)
            beam, y = pick // V, pick % V
            take = lambda x: x.gather(1, beam[..., None].expand(-1, -1, x.shape[-1]))
            s, out = take(s), torch.cat([take(out), y[..., None]], -1)
        return out

    def config(self):
        return {"architectures": ["Drafter"], "exit_dim": self.exit, "hidden_size": 384,
                "model_type": "recurrent_drafting_drafter", "num_draft_layers": self.layers,
                "num_lookback_tokens": 1, "rnn": True, "torch_dtype": "bfloat16",
                "vocab_size": 4096}


HEADS = {h.name: h for h in (Eagle3, Eagle2, Medusa, Redrafter)}
