"""Lookahead decoding in the dense layout of its authors (arXiv 2402.02057, hao-ai-lab/LookaheadDecoding), slow and
plain: lists for levels, every row of a pass with its position and an explicit mask. Tests only.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../zoo/recipe"))
from reference import Llama  # noqa: E402

PROBE, WANT_TOP1 = 1, 2


def splitmix64(x):
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def initial_token(tokens, i):
    """What stands in for the original's random.choice: a function of index and length of the text."""
    return tokens[splitmix64((len(tokens) << 32) | i) % len(tokens)]


class Target(Llama):
    """The zoo's model over rows with positions and an explicit mask."""

    def top1(self, text, rows, visible):
        """The most likely token after every row. text: the committed tokens before the rows; rows: [(token, position)];
        visible[r]: the rows that row r sees, beside all of the text."""
        n, total = len(text), len(text) + len(rows)
        ids = np.array(list(text) + [token for token, _ in rows])
        at = np.array(list(range(n)) + [position for _, position in rows])
        mask = np.full((total, total), -np.inf, np.float32)
        mask[:n, :n] = np.triu(mask[:n, :n], 1)
        mask[n:, :n] = 0
        for r, seen in enumerate(visible):
            mask[n + r, [n + s for s in seen]] = 0
        return np.argmax(self._forward(ids, at, mask)[n:] @ self.head.T, -1).tolist()

    def _forward(self, ids, at, mask):
        c, w, total = self.c, self.w, len(ids)
        heads, groups, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        cos, sin = self.cos[at], self.sin[at]

        def turn(x):  # [heads, rows, d]
            return x * cos + np.concatenate([-x[..., d // 2:], x[..., :d // 2]], -1) * sin

        x = w["model.embed_tokens.weight"][ids]
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")

            def split(name, n):
                return (h @ w[p + f"self_attn.{name}_proj.weight"].T).reshape(total, n, d).transpose(1, 0, 2)

            q, k, v = turn(split("q", heads)), turn(split("k", groups)), split("v", groups)
            k, v = np.repeat(k, heads // groups, 0), np.repeat(v, heads // groups, 0)
            s = q @ k.transpose(0, 2, 1) * np.float32(d ** -0.5) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            o = (s / s.sum(-1, keepdims=True)) @ v
            x = x + o.transpose(1, 0, 2).reshape(total, heads * d) @ w[p + "self_attn.o_proj.weight"].T
            h = self.norm(x, p + "post_attention_layernorm.weight")
            g = h @ w[p + "mlp.gate_proj.weight"].T
            x = x + (g / (1 + np.exp(-g)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
        return self.norm(x, "model.norm.weight")


class Lookahead:
    def __init__(self, window, ngram, guesses, pool_from_prompt, tokens):
        self.W, self.N, self.G, self.from_prompt = window, ngram, guesses, pool_from_prompt
        self.tokens = list(tokens)
        self.levels = [[initial_token(self.tokens, i) for i in range(window + ngram - 3)]]
        self.pool = {}
        if pool_from_prompt:
            for i in range(len(self.tokens) - ngram + 1):
                self._insert(self.tokens[i:i + ngram])

    def _insert(self, gram):
        entries, value = self.pool.setdefault(gram[0], []), tuple(gram[1:])
        if value in entries:
            entries.remove(value)
        entries.append(value)
        del entries[:-self.G if self.G else len(entries)]

    def layout(self):
        """The rows of the next pass: [(token, position)], the rows each one sees (itself included), what each one is:
        'c', ('window', level, column) or ('guess', which, depth)."""
        c, p = self.tokens[-1], len(self.tokens) - 1
        filled = len(self.levels)
        rows, kinds, index = [(c, p)], ["c"], {}
        for i, token in enumerate(self.levels[0]):
            index[0, i + 1] = len(rows)
            rows.append((token, p + 1 + i))
            kinds.append(("window", 0, i + 1))
        for level in range(1, filled):
            for w, token in enumerate(self.levels[level]):
                index[level, w] = len(rows)
                rows.append((token, p + level + w))
                kinds.append(("window", level, w))
        block = 1 + len(self.levels[0])
        visible = [set(range(r + 1)) for r in range(block)]
        for level in range(1, filled):
            for w in range(len(self.levels[level])):
                own = {index[above, w] for above in range(1, level + 1)}
                visible.append(set(range(w + 1)) | own)
        if filled == self.N - 1:
            for g, guess in enumerate(reversed(self.pool.get(c, []))):  # the newest first
                first = len(rows)
                for j, token in enumerate(guess):
                    rows.append((token, p + 1 + j))
                    kinds.append(("guess", g, j))
                    visible.append({0} | set(range(first, first + j + 1)))
        return rows, visible, kinds

    def last_level(self, kinds):
        """Rows whose answers make the window's next tokens, in column order."""
        last = len(self.levels) - 1
        rows = [r for r, kind in enumerate(kinds) if kind[0] == "window" and kind[1] == last]
        return ([0] + rows) if self.N == 2 else rows

    def take(self, kinds, top1, committed):
        """The end of a pass: what the target says after every row, and what was committed."""
        new = [top1[r] for r in self.last_level(kinds)]
        levels = self.levels
        if len(levels) == self.N - 1:
            c = self.tokens[-1]
            for w in range(self.W):
                key = c if w == 0 else levels[0][w - 1]
                self._insert([key] + [levels[level][w] for level in range(1, self.N - 1)] + [new[w]])
            self.levels = [level[:] for level in levels[1:]] + [new]
            self.levels[0] = self.levels[0][1:]
        elif len(levels) == 1:
            self.levels = [levels[0][1:], new]
        else:
            self.levels = [level[1:] for level in levels] + [new[1:]]
        for token in committed:
            self.tokens.append(token)
            if self.from_prompt and len(self.tokens) >= self.N:
                self._insert(self.tokens[-self.N:])

    def verify(self, kinds, rows, top1):
        """Greedy: the longest guess that the target itself would have written, and its token after it."""
        best, n_guesses = [top1[0]], 1 + max((k[1] for k in kinds if k[0] == "guess"), default=-1)
        for g in range(n_guesses):
            at = [r for r, kind in enumerate(kinds) if kind[0] == "guess" and kind[1] == g]
            text = [top1[0]]
            for r in at:
                if rows[r][0] != text[-1]:
                    break
                text.append(top1[r])
            if len(text) > len(best):
                best = text
        return best


def tree_of(rows, visible, kinds, last_level):
    """The proposal that says the same: (token, parent, flags, row of every node). Parents come from the mask alone: a
    row's parent is the row it sees that stands right before it, and sees all else that it sees. Guess rows that see
    the same tokens are one node."""
    order = [r for r, k in enumerate(kinds) if k[0] == "guess"] + [r for r, k in enumerate(kinds) if k[0] == "window"]
    node_of, known, tree = {0: -1}, {}, ([], [], [], [])
    for r in order:
        above = [s for s in visible[r] if s != r and rows[s][1] == rows[r][1] - 1]
        assert len(above) == 1, "not a tree"
        assert visible[above[0]] | {r} == visible[r], "a mask that no tree has"
        parent = node_of[above[0]]
        if kinds[r][0] == "guess":
            if (parent, rows[r][0]) in known:
                node_of[r] = known[parent, rows[r][0]]
                continue
            known[parent, rows[r][0]] = len(tree[0])
        node_of[r] = len(tree[0])
        flags = 0 if kinds[r][0] == "guess" else PROBE | (WANT_TOP1 if r in last_level else 0)
        for column, value in zip(tree, (rows[r][0], parent, flags, r)):
            column.append(value)
    return tree
