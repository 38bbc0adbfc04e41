"""A plain reference of ours for trained heads: EAGLE-1, EAGLE-2, EAGLE-3, Medusa and ReDrafter in numpy,
as /specs describe them: no cache between steps, no batches, everything computed in float64 from the
weights as they are stored.

Every drafter has propose(tokens, rows) -> (token, parent, margin). tokens: the committed ones, the last
of which is the root, whose states are not known. rows[t][i]: state t that the drafter asks for (its
`taps`, see there) at position i < len(tokens) - 1. margin: the smallest difference of the logits or of
the cumulative log-probabilities that decided. Needs numpy.
"""
import json
import os

import numpy as np

N_CANDIDATES = 50  # of a row in ReDrafter


def load(folder):
    """(tensors, config or None) of a folder of weights."""
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
    tensors, config = {}, None
    for file in sorted(os.listdir(folder)):
        if file == "config.json":
            with open(os.path.join(folder, file), encoding="utf-8") as f:
                config = json.load(f)
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as f:
            raw = f.read()
        data = 8 + int.from_bytes(raw[:8], "little")
        for name, about in json.loads(raw[8:data]).items():
            if name == "__metadata__":
                continue
            begin, end = (data + offset for offset in about["data_offsets"])
            if about["dtype"] == "BF16":
                halves = np.frombuffer(raw[begin:end], "<u2").astype(np.uint32) << 16
                values = halves.view(np.float32)
            else:
                values = np.frombuffer(raw[begin:end], kinds[about["dtype"]])
            tensors[name] = values.reshape(about["shape"])
    return tensors, config


def silu(x):
    return x / (1 + np.exp(-x))


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def largest(values, n):
    """(indexes of the n largest in decreasing order, ties by index; the smallest gap between one of
    them and the next)"""
    order = np.argsort(-values, kind="stable")[:n + 1]
    gaps = values[order[:-1]] - values[order[1:]]
    return order[:n], min(gaps.tolist(), default=np.inf)


def f64(array):
    return np.asarray(array, np.float64)


def tree_of_paths(paths):
    """(last element of each node's path, parent of each node): nodes in the order in which the paths
    first need them."""
    numbers, parents, ends = {}, [], []
    for path in paths:
        parent = -1
        for n in range(1, len(path) + 1):
            prefix = tuple(path[:n])
            if prefix not in numbers:
                numbers[prefix] = len(ends)
                ends.append(path[n - 1])
                parents.append(parent)
            parent = numbers[prefix]
    return ends, parents


class Medusa:
    """Heads on the last state; paths of ranks, with all prefixes or without any."""

    def __init__(self, tensors, target_head, paths):
        self.target_head = f64(target_head)
        self.heads = []
        tensors = {name: array for name, array in tensors.items()}
        for prefix in ("medusa_head.", "medusa_heads."):
            if any(name.startswith(prefix) for name in tensors):
                tensors = {name[len(prefix):]: array for name, array in tensors.items()
                           if name.startswith(prefix)}
        is_vllm = "blocks.0.layers.0.weight" in tensors
        at = "blocks.{}.layers.{}." if is_vllm else "{}.{}.linear."
        while at.format(len(self.heads), 0) + "weight" in tensors:
            h, blocks = len(self.heads), []
            while at.format(h, len(blocks)) + "weight" in tensors:
                name = at.format(h, len(blocks))
                blocks.append((f64(tensors[name + "weight"]), f64(tensors.get(name + "bias", 0))))
            names = [f"lm_heads.{h}.weight", "lm_head.weight", "lm_heads.0.weight"]
            names = names if is_vllm else [f"{h}.{len(blocks)}.weight"]
            stored = [f64(tensors[name]) for name in names if name in tensors]
            self.heads.append((blocks, stored[0] if stored else self.target_head))
        self.token_map = tensors.get("token_map")
        self.ranks, self.parents = tree_of_paths([p for p in paths if len(p) <= len(self.heads)])

    @staticmethod
    def taps(n_layers):
        return [n_layers + 1]  # after the final norm

    def logits(self, x, head):
        blocks, output = self.heads[head]
        for weight, bias in blocks:
            x = x + silu(weight @ x + bias)
        return output @ x

    def propose(self, tokens, rows):
        x = f64(rows[0][len(tokens) - 2])
        depth = []
        for parent in self.parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        best, margin = [], np.inf
        for level in range(max(depth) + 1):
            width = 1 + max(rank for rank, d in zip(self.ranks, depth) if d == level)
            ids, gap = largest(self.logits(x, level), width)
            best.append(ids if self.token_map is None else self.token_map[ids])
            margin = min(margin, gap)
        return [int(best[d][rank]) for rank, d in zip(self.ranks, depth)], self.parents, margin


class ReDrafter:
    """Beams of a recurrent head on the last state."""

    def __init__(self, tensors, embedding, beams, draft_tokens):
        self.embedding, self.beams, self.draft_tokens = f64(embedding), beams, draft_tokens
        head = next(p for p in ("lm_head.", "lm_heads.", "0.")
                    if p + "0.linear.weight" in tensors or p + "0.weight" in tensors)

        def linear(name):
            return f64(tensors[name + ".weight"]), f64(tensors.get(name + ".bias", 0))

        self.blocks = []
        while f"{head}{len(self.blocks)}.linear.weight" in tensors:
            self.blocks.append(linear(f"{head}{len(self.blocks)}.linear"))
        self.output = f64(tensors[f"{head}{len(self.blocks)}.weight"])
        self.input = next((linear(name) for name in ("input_proj", "input_projs")
                           if name + ".weight" in tensors), None)
        is_recurrent = "rnn_u.weight" in tensors
        self.recurrence = (linear("rnn_w")[0], *linear("rnn_u")) if is_recurrent else None

    taps = staticmethod(Medusa.taps)

    def step(self, token, state):
        if self.recurrence is None:
            return self.embedding[token] + state
        from_token, from_state, bias = self.recurrence
        return silu(from_token @ self.embedding[token] + from_state @ state + bias)

    def logprobs(self, context, state):
        """Over the likeliest tokens alone; the others are -inf."""
        z = np.concatenate([context, state])
        if self.input is not None:
            z = self.input[0] @ z + self.input[1]
        for weight, bias in self.blocks:
            z = z + silu(weight @ z + bias)
        logits = self.output @ z
        kept = np.sort(logits)[-min(N_CANDIDATES, len(logits))]
        return log_softmax(np.where(logits < kept, -np.inf, logits))

    def propose(self, tokens, rows):
        context = f64(rows[0][len(tokens) - 2])
        beams = [([], 0.0, np.zeros(len(context)))]  # drafted tokens, score, state before the last one
        margin = np.inf
        for depth in range(self.draft_tokens):
            states = [self.step((drafted or tokens)[-1], state) for drafted, _, state in beams]
            scores = np.stack([score + self.logprobs(context, state)
                               for (_, score, _), state in zip(beams, states)])
            n_finite = int(np.isfinite(scores).sum())
            ids, gap = largest(scores.reshape(-1), min(self.beams, n_finite))
            flat, vocab = scores.reshape(-1), scores.shape[1]
            if depth + 1 == self.draft_tokens:
                margin = min(margin, gap)  # the order of the beams is that of the nodes
            elif len(ids) < n_finite:
                margin = min(margin, flat[ids[-1]] - np.sort(flat)[-len(ids) - 1])
            beams = [(beams[i // vocab][0] + [int(i % vocab)], flat[i], states[i // vocab]) for i in ids]
        return (*tree_of_paths([drafted for drafted, _, _ in beams]), margin)
