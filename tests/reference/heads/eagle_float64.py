"""EAGLE-2 and EAGLE-3 in float64, one row at a time, written from the papers: says how close the
decisions of a draft were.

A row pairs the feature of a position with the token after it. Rows of the text stay; a row of a
draft sees the text, its ancestors and itself.
"""
import numpy as np

from head_values import hidden_rows, target_tables, tensors_of


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


class Head:
    def __init__(self, case):
        self.config = config = case["config"]
        self.w = {name: each.astype(np.float64) for name, each in tensors_of(case).items()}
        embedding, self.target_head = [each.astype(np.float64) for each in target_tables(case)]
        self.is_eagle3 = case["plugin"] == "specd.drafter.eagle3"
        self.layer = "midlayer." if self.is_eagle3 else "layers.0."
        self.embedding = self.w.get("embed_tokens.weight", embedding)
        self.n_heads = config["num_attention_heads"]
        self.n_kv_heads = config.get("num_key_value_heads", self.n_heads)
        self.hidden = config["hidden_size"]
        self.dim = self.hidden // self.n_heads
        scaling = config.get("rope_scaling") or {"factor": 1.0}
        theta = config.get("rope_theta", 10000.0)
        self.inv_freq = 1 / (theta ** (np.arange(0, self.dim, 2) / self.dim) * scaling["factor"])
        head = self.w["lm_head.weight"] if self.is_eagle3 else self.target_head
        self.ids = np.arange(len(head))
        if "d2t" in self.w:
            self.ids = self.ids + self.w["d2t"].astype(int)
        self.kv = []  # (k, v) of the text's rows

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean() + self.config["rms_norm_eps"]) * self.w[name]

    def linear(self, name, x):
        return self.w[name + ".weight"] @ x + self.w.get(name + ".bias", 0)

    def rotate(self, x, position):
        angle = position * self.inv_freq
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                               b * np.cos(angle) + a * np.sin(angle)], axis=-1)

    def row(self, feature, token, position, seen):
        """Its output, and its (k, v); `seen`: those of the rows that it sees besides itself."""
        at, embedded = self.layer, self.embedding[token]
        if self.is_eagle3:
            residual = feature
            x = np.concatenate([self.norm(embedded, at + "input_layernorm.weight"),
                                self.norm(feature, at + "hidden_norm.weight")])
        else:
            x = residual = self.linear("fc", np.concatenate([embedded, feature]))
        q, k, v = [self.linear(f"{at}self_attn.{each}_proj", x).reshape(-1, self.dim)
                   for each in "qkv"]
        q, k = self.rotate(q, position), self.rotate(k, position)
        keys, values = [np.stack([each[i] for each in seen] + [own]) for i, own in ((0, k), (1, v))]
        heads = []
        for h in range(self.n_heads):
            group = h * self.n_kv_heads // self.n_heads
            weight = np.exp(log_softmax(keys[:, group] @ q[h] / np.sqrt(self.dim)))
            heads.append(weight @ values[:, group])
        y = residual + self.linear(at + "self_attn.o_proj", np.concatenate(heads))
        n = self.norm(y, at + "post_attention_layernorm.weight")
        gate, up = self.linear(at + "mlp.gate_proj", n), self.linear(at + "mlp.up_proj", n)
        return y + self.linear(at + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up), (k, v)

    def logprobs(self, output):
        if self.is_eagle3:
            return log_softmax(self.linear("lm_head", self.norm(output, "norm.weight")))
        return log_softmax(self.target_head @ output)

    def extend(self, states, tokens):
        """Feeds rows of the text: states [n, taps * hidden of the target], and the tokens after."""
        for state, token in zip(states, tokens):
            feature = self.linear("fc", state) if self.is_eagle3 else state
            self.last, kv = self.row(feature, token, len(self.kv), self.kv)
            self.kv.append(kv)

    def draft(self, n_nodes, depth, top_k):
        """The set of the drafted paths, and the margin: by how much, as a cumulative
        log-probability, the closest decision was taken that changes the set. Such are: the last
        node proposed against the first one not; and, where the stronger is proposed, the last node
        of a level that is run against the next one, and the last child of a node against the next
        token."""
        beams = [((), 0.0, self.last, [])]  # path, score, output, (k, v) of the path's rows
        found, cuts = [], []
        for level in range(depth + 1):
            children = []
            for path, score, output, rows in beams:
                logprob = self.logprobs(output)
                order = np.argsort(-logprob, kind="stable")
                cuts.append((score + logprob[order[top_k - 1]], score + logprob[order[top_k]]))
                children += [(path + (int(self.ids[z]),), score + logprob[z], output, rows)
                             for z in order[:top_k]]
            found += children
            if level == depth:
                break
            children.sort(key=lambda each: -each[1])
            if level > 0:
                cuts.append((children[top_k - 1][1], children[top_k][1]))
            beams = []
            for path, score, feature, rows in children[:top_k]:
                output, kv = self.row(feature, path[-1], len(self.kv) + level, self.kv + rows)
                beams.append((path, score, output, rows + [kv]))
        found.sort(key=lambda each: -each[1])
        last = found[n_nodes - 1][1]
        cuts = [cut for cut in cuts if cut[0] >= last]
        if len(found) > n_nodes:
            cuts.append((last, found[n_nodes][1]))
        return {each[0] for each in found[:n_nodes]}, min(a - b for a, b in cuts)


def states_of(case, context, n):
    """Those that the head reads at the first n positions of a context, one beside the other."""
    taps = range(len(case["taps"]))
    states = [hidden_rows(case, tap, context, n) for tap in taps]
    return np.concatenate(states, axis=1).astype(np.float64)
