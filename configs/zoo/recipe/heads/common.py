"""What every part of the heads' recipe needs: the target in torch, files, data, optimiser.

Everything runs on one CPU thread in float32. The target is read from its exported folder.
"""
import json, math, os
import numpy as np
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
DTYPES = {"BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool, "F32": torch.float32}


def read_safetensors(path):
    """name -> tensor; BF16 becomes float32"""
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        head, out = json.loads(f.read(n)), {}
        for name, t in head.items():
            if name == "__metadata__": continue
            s, e = t["data_offsets"]
            f.seek(8 + n + s)
            x = torch.frombuffer(bytearray(f.read(e - s)), dtype=DTYPES[t["dtype"]])
            out[name] = (x.float() if t["dtype"] == "BF16" else x).reshape(t["shape"])
    return out


def write_safetensors(path, tensors):
    """float tensors are stored as BF16 (to nearest even), int64 and bool as they are"""
    kinds = {torch.int64: "I64", torch.bool: "BOOL"}
    head, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, x in tensors.items():
        kind = kinds.get(x.dtype, "BF16")
        x = x.detach().contiguous()
        raw = (x.to(torch.bfloat16).view(torch.int16) if kind == "BF16" else x).numpy().tobytes()
        head[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw); at += len(raw)
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path + ".tmp", "wb") as f:
        f.write(len(h).to_bytes(8, "little") + h)
        for b in blobs: f.write(b)
    os.replace(path + ".tmp", path)


def rope_table(n, dim=64, theta=10000.0):
    inv = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    a = torch.arange(n, dtype=torch.float64)[:, None] * inv
    a = torch.cat([a, a], 1)
    return a.cos().float(), a.sin().float()


def rotate(x, cos, sin):
    """half-split rotary embedding; cos and sin must broadcast against x [..., d]"""
    h = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., h:], x[..., :h]], -1) * sin


def norm(x, w, eps=1e-5):
    return w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps))


class Target:
    """The target; forward() also returns the states that the heads read."""
    def __init__(self, folder):
        self.c = c = json.load(open(os.path.join(folder, "config.json")))
        self.w = read_safetensors(os.path.join(folder, "model.safetensors"))
        self.embed = self.w["model.embed_tokens.weight"]
        self.head = self.w.get("lm_head.weight", self.embed)
        self.cos, self.sin = rope_table(c["max_position_embeddings"], c["head_dim"],
                                        c["rope_theta"])
        L = c["num_hidden_layers"]
        self.taps = (2, L // 2, L - 3)          # the inputs of these layers, 0-based

    def forward(self, ids, cache=None, at=0):
        """ids [B,T] -> (normalised last states [B,T,d], taps [B,T,3,d]); cache: (k, v) buffers"""
        c, w = self.c, self.w
        B, T = ids.shape
        H, G, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        cos, sin = self.cos[at:at + T], self.sin[at:at + T]
        x, taps = self.embed[ids], []
        for l in range(c["num_hidden_layers"]):
            if l in self.taps: taps.append(x)
            p = f"model.layers.{l}."
            h = norm(x, w[p + "input_layernorm.weight"])
            f = lambda n, k: (h @ w[p + f"self_attn.{n}_proj.weight"].t()) \
                .view(B, T, k, d).transpose(1, 2)
            q, k, v = rotate(f("q", H), cos, sin), rotate(f("k", G), cos, sin), f("v", G)
            if cache is not None:
                kc, vc = cache[l]
                kc[:, :, at:at + T] = k; vc[:, :, at:at + T] = v
                k, v = kc[:, :, :at + T], vc[:, :, :at + T]
            if T == 1:                          # one new token: the heads of a group share keys
                s = (q.reshape(B, G, H // G, d) @ k.transpose(2, 3) * d ** -0.5).softmax(-1)
                o = (s @ v).reshape(B, 1, H * d)
            else:
                k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
                o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                o = o.transpose(1, 2).reshape(B, T, H * d)
            x = x + o @ w[p + "self_attn.o_proj.weight"].t()
            h = norm(x, w[p + "post_attention_layernorm.weight"])
            m = F.silu(h @ w[p + "mlp.gate_proj.weight"].t())
            m = m * (h @ w[p + "mlp.up_proj.weight"].t())
            x = x + m @ w[p + "mlp.down_proj.weight"].t()
        return norm(x, w["model.norm.weight"]), torch.stack(taps, 2)

    @torch.no_grad()
    def write(self, ids, n, temperature, gen):
        """ids [B,P] -> [B,P+n]; temperature [B], 0 is greedy; sampling by Gumbel noise"""
        c = self.c
        B, P = ids.shape
        shape = (B, c["num_key_value_heads"], P + n, c["head_dim"])
        cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(c["num_hidden_layers"])]
        out = torch.zeros(B, P + n, dtype=torch.long)
        out[:, :P] = ids
        hot, t = temperature > 0, temperature[:, None]
        for at in range(P, P + n):
            x = self.forward(out[:, :P], cache)[0] if at == P else \
                self.forward(out[:, at - 1:at], cache, at - 1)[0]
            lg = x[:, -1] @ self.head.t()
            if hot.any():
                e = torch.empty_like(lg[hot]).exponential_(generator=gen)
                lg[hot] -= t[hot] * e.log()     # -log of an exponential is Gumbel noise
            out[:, at] = lg.argmax(-1)
        return out


class Rows:
    """Rows of 512 tokens with their states, as states.py wrote them (it may still be writing)."""
    LEN, D = 512, 384

    def __init__(self, folder, own_share=0.5, seed=0):
        self.folder, self.share, self.rng = folder, own_share, np.random.default_rng(seed)
        self.order, self.n = {0: [], 1: []}, 0
        self.refresh()

    def refresh(self):
        p = lambda name: os.path.join(self.folder, name)
        kind = np.fromfile(p("kind.u8"), np.uint8)
        if len(kind) == self.n: return
        self.n = len(kind)
        self.kind = kind
        at = lambda name, kind, *s: np.memmap(p(name), kind, "r", shape=(self.n, self.LEN) + s)
        self.tokens = at("tokens.u16", np.uint16)
        self.norm = at("norm.f16", np.float16, self.D)
        self.taps = at("taps.f16", np.float16, 3, self.D)

    def counts(self):
        """how often each id occurs in all rows"""
        return torch.from_numpy(np.bincount(self.tokens.reshape(-1), minlength=4096))

    def take(self, batch, window, taps=False):
        """-> tokens [B,W], normalised states [B,W,d], taps [B,W,3d] or None"""
        self.refresh()
        picks = []
        for _ in range(batch):
            k = int(self.rng.random() < self.share)
            if not self.order[k]:
                ids = np.flatnonzero(self.kind == k)
                pieces = [(i, j) for i in ids for j in range(0, self.LEN, window)]
                self.order[k] = [pieces[i] for i in self.rng.permutation(len(pieces))]
            picks.append(self.order[k].pop())
        cut = lambda x, dt: torch.from_numpy(
            np.stack([x[i, j:j + window] for i, j in picks]).astype(dt))
        t = cut(self.taps, np.float32).flatten(2) if taps else None
        return cut(self.tokens, np.int64), cut(self.norm, np.float32), t


class SoftLoss(torch.autograd.Function):
    """Sum over rows of the cross entropy against p (which may sum to less than 1), for the
    logits x @ w.T; the logits are not kept."""
    @staticmethod
    def forward(ctx, x, w, p):
        lg = x @ w.t()
        mass = p.sum(-1, keepdim=True)
        lse = lg.logsumexp(-1, keepdim=True)
        loss = (mass * lse).sum() - (p * lg).sum()
        g = lg.sub_(lse).exp_().mul_(mass).sub_(p)
        ctx.save_for_backward(x, w, g)
        return loss

    @staticmethod
    def backward(ctx, up):
        x, w, g = ctx.saved_tensors
        dw = (g.t() @ x).mul_(up) if ctx.needs_input_grad[1] else None
        return (g @ w).mul_(up), dw, None


def orthogonalise(g, steps=5):
    """Newton-Schulz iteration of Muon: the nearest semi-orthogonal matrix, roughly."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.t().contiguous() if g.shape[0] > g.shape[1] else g.clone()
    x /= x.norm() + 1e-7
    for _ in range(steps):
        s = x @ x.t()
        s = torch.addmm(s, s, s, beta=b, alpha=c)
        x = torch.addmm(x, s, x, beta=a)
    return x.t() if g.shape[0] > g.shape[1] else x


class Optimiser:
    """Orthogonalised momentum for the matrices in `inner`, Adam for the rest."""
    def __init__(self, params, inner, muon_lr, adam_lr, clip=1.0):
        self.p, self.inner, self.clip = params, inner, clip
        self.lr = muon_lr, adam_lr
        self.m = {k: torch.zeros_like(v) for k, v in params.items()}
        self.v = {k: torch.zeros_like(v) for k, v in params.items() if k not in inner}
        self.step = 0

    @torch.no_grad()
    def update(self, scale):
        self.step += 1
        total = math.sqrt(sum(float(p.grad.norm()) ** 2 for p in self.p.values()))
        clip = min(1.0, self.clip / (total + 1e-9))
        for k, p in self.p.items():
            g, m = p.grad.mul_(clip), self.m[k]
            if k in self.inner:
                m.lerp_(g, 0.05)
                u = orthogonalise(g.lerp_(m, 0.95))
                p.add_(u, alpha=-scale * self.lr[0] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)
            else:
                v = self.v[k]
                m.lerp_(g, 0.1); v.lerp_(g * g, 0.05)
                d = (v / (1 - 0.95 ** self.step)).sqrt_().add_(1e-10)
                p.addcdiv_(m, d, value=-scale * self.lr[1] / (1 - 0.9 ** self.step))
            p.grad = None
        return total

    def state(self):
        return {"m": self.m, "v": self.v, "step": self.step}

    def restore(self, s):
        self.m, self.v, self.step = s["m"], s["v"], s["step"]
