#!/usr/bin/env python3
"""A plain reference of ours for trained heads: EAGLE-1, EAGLE-2, EAGLE-3, Medusa and ReDrafter in
numpy, written from the papers and the shapes of published files. No cache between steps, no
batches; everything in float64, from the weights as they are stored.

usage: make_plain.py PLUGIN HEAD_DIR TARGET_DIR QUESTIONS.jsonl OUT.json [SETTINGS]

Records the greedy drafts of a trained head: 20 contexts of 30 steps. Needs numpy and regex.
PLUGIN: eagle, eagle3, medusa or redrafter; HEAD_DIR, TARGET_DIR: config.json and safetensors, as
configs/zoo/pico-eagle3 and pico-target; QUESTIONS.jsonl: HumanEval prompts, {"turns": ["Complete
...\\n<prompt>"]} a line; SETTINGS: the plugin's configuration without weights, as JSON.

"prompt" and "root" come first, each step follows them and all that was committed: "token" and
"parent" of the draft; the tokens "committed", the last of which is the next root; "margin".
"parent" is beside "contexts" where all drafts have the same. Medusa's margin is the smallest gap of
logits that decided, so is that of a fixed tree; the others' is one of cumulative log-probabilities.
The order in which a tree that grows is proposed, depth first, likeliest first, is not part of it.
zoo_HEAD.json are the heads of configs/zoo, with the "settings" in them.

"taps" are the states that the drafter reads, numbered as in plugin_api/drafter.h. "states" has a
few numbers of them: of some contexts, [value at positions[i] and columns[i]] for each of the taps.

A drafter has `taps`, the states of the target that it asks for (0: the embedding, l: after layer l,
LAST: after the final norm), and propose(tokens, rows) -> (token, parent, margin). tokens: all that
are committed; the last one is the root, whose states are not known. rows[t][i]: state taps[t] at
position i < len(tokens) - 1.
"""
import json
import os
import sys

import numpy as np

STEPS = 30
N_CONTEXTS = 20
# A path per word, a rank per digit.
MEDUSA_TREE = ("0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 "
               "020 12 003 40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 "
               "31 22 80 050 15 101 021 90 060 0001 16 070")
EAGLE_TREE = ("0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 "
              "00000 00001")
N_CANDIDATES = 50  # of a row in ReDrafter
STATES_OF = (5, 17)  # contexts
N_STATES = 64  # of a tap
LAST = -1  # in taps: after the final norm


def load(folder):
    """(tensors, config or None) of a folder of weights."""
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "?"}
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
    """(last element of each node's path, parent of each node), in the order in which the paths need
    them."""
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
        self.taps = [LAST]
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
        self.taps = [LAST]
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
        beams = [([], 0.0, np.zeros(len(context)))]  # drafted tokens, score, state before the last
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
            beams = [(beams[i // vocab][0] + [int(i % vocab)], flat[i], states[i // vocab])
                     for i in ids]
        return (*tree_of_paths([drafted for drafted, _, _ in beams]), margin)


def rope_frequencies(config, dim):
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    frequency = 1 / theta ** (np.arange(0, dim, 2) / dim)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        return frequency / scaling["factor"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * np.pi)
        keep = np.clip((turns - low) / (high - low), 0, 1)
        return keep * frequency + (1 - keep) * frequency / scaling["factor"]
    assert kind == "default", kind
    return frequency


class Layer:
    """A decoder layer, from what it attends with to what it hands on."""

    def __init__(self, tensors, at, config):
        self.w = {name[len(at):]: f64(array) for name, array in tensors.items()
                  if name.startswith(at)}
        n_heads = config.get("num_attention_heads", 32)  # both classes of speculators
        self.dim = config.get("head_dim") or len(self.w["self_attn.q_proj.weight"]) // n_heads
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.frequency = rope_frequencies(config, self.dim)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name + ".weight"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w.get(name + ".bias", 0)

    def heads(self, x, name, positions):
        """[heads, rows, dim]"""
        y = self.linear(x, f"self_attn.{name}_proj")
        y = y.reshape(len(x), -1, self.dim).transpose(1, 0, 2)
        if f"self_attn.{name}_norm.weight" in self.w:
            y = self.norm(y, f"self_attn.{name}_norm")
        if name == "v":
            return y
        a, b = np.split(y, 2, axis=-1)
        angle = positions[:, None] * self.frequency
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def __call__(self, x, residual, positions, cache, visible):
        """cache: (k, v) of earlier rows, or None. visible [rows, earlier rows and these]. Returns
        the output and the new cache."""
        q, k, v = (self.heads(x, name, positions) for name in "qkv")
        if cache is not None:
            k, v = np.concatenate([cache[0], k], 1), np.concatenate([cache[1], v], 1)
        keys, values = (np.repeat(each, len(q) // len(each), axis=0) for each in (k, v))
        scores = np.where(visible, q @ keys.transpose(0, 2, 1) / np.sqrt(self.dim), -np.inf)
        seen = np.exp(log_softmax(scores)) @ values
        y = residual + self.linear(seen.transpose(1, 0, 2).reshape(len(x), -1), "self_attn.o_proj")
        n = self.norm(y, "post_attention_layernorm")
        inner = silu(self.linear(n, "mlp.gate_proj")) * self.linear(n, "mlp.up_proj")
        return y + self.linear(inner, "mlp.down_proj"), (k, v)


class Target:
    """A Llama; the states of a text that grows."""

    def __init__(self, folder):
        tensors, config = load(folder)
        self.embedding = f64(tensors["model.embed_tokens.weight"])
        self.head = f64(tensors.get("lm_head.weight", self.embedding))
        self.norm_weight = f64(tensors["model.norm.weight"])
        self.n_layers = config["num_hidden_layers"]
        self.layers = [Layer(tensors, f"model.layers.{l}.", config) for l in range(self.n_layers)]

    def begin(self):
        self.caches = [None] * self.n_layers
        self.states = [np.zeros((0, self.embedding.shape[1])) for _ in range(self.n_layers + 2)]

    def extend(self, tokens):
        """Adds the states of these tokens. Returns the next token, and by how much it won."""
        before, x = len(self.states[0]), self.embedding[tokens]
        positions = np.arange(before, before + len(tokens))
        visible = np.arange(before + len(tokens)) <= positions[:, None]
        states = [x]
        for l, layer in enumerate(self.layers):
            x, self.caches[l] = layer(layer.norm(x, "input_layernorm"), x, positions,
                                      self.caches[l], visible)
            states.append(x)
        eps = self.layers[0].eps
        states.append(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.norm_weight)
        self.states = [np.concatenate(pair) for pair in zip(self.states, states)]
        (best,), gap = largest(self.head @ states[-1][-1], 1)
        return int(best), gap


class Eagle:
    """EAGLE-1 and EAGLE-2, which have the same weights, and EAGLE-3. settings: total_token, depth
    and top_k of a tree that grows; "mode" "static" with choices, or "chain" with draft_tokens."""

    def __init__(self, tensors, config, target_embedding, target_head, n_layers, settings):
        self.settings, self.config = settings, config
        self.is_eagle3 = "lm_head.weight" in tensors
        names = [at for at in ("midlayer.", *(f"{each}.{l}." for each in ("midlayer", "layers")
                                              for l in range(100)))
                 if at + "self_attn.q_proj.weight" in tensors]
        shape = config.get("transformer_layer_config", config)
        self.layers = [Layer(tensors, at, shape) for at in names]
        self.w = {name: f64(array) for name, array in tensors.items()
                  if not name.startswith(tuple(names))}
        self.embedding, self.head, ids = f64(target_embedding), f64(target_head), 0
        self.taps = [LAST]
        if self.is_eagle3:
            self.embedding = self.w.get("embed_tokens.weight", self.embedding)
            self.head = self.w["lm_head.weight"]
            ids = tensors.get("d2t", 0)
        if self.is_eagle3 and "fc.weight" in self.w:
            key = "eagle_aux_hidden_state_layer_ids"
            listed = (settings.get("layer_ids") or config.get(key) or
                      config.get("eagle_config", {}).get(key) or [2, n_layers // 2, n_layers - 3])
            kind = settings.get("layer_ids_are", "outputs" if listed[0] == 1 else "inputs")
            self.taps = [tap + (kind == "outputs") for tap in listed]
        self.ids = np.arange(len(self.head)) + ids

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.layers[0].eps) * self.w[name]

    def fc(self, x):
        return x @ self.w["fc.weight"].T + self.w.get("fc.bias", 0)

    def features(self, rows):
        """Of the states of the target."""
        if not self.is_eagle3 or "fc.weight" not in self.w:
            return rows[0]
        if "fc_norm.0.weight" in self.w:
            rows = [self.norm(each, f"fc_norm.{t}.weight") for t, each in enumerate(rows)]
        joined = np.concatenate(rows, axis=-1)
        if "input_norm.weight" in self.w:
            joined = self.norm(joined, "input_norm.weight")
        return self.fc(joined)

    def run(self, features, tokens, positions, caches, visible):
        """Rows of a feature and the token after it. Returns what they hand on, and the caches."""
        embedded, after = self.embedding[tokens], []
        for l, layer in enumerate(self.layers):
            if l > 0:
                residual, inner = x, layer.norm(x, "input_layernorm")
            elif self.is_eagle3:
                normed = layer.norm(features, "hidden_norm")
                residual = normed if self.config.get("norm_before_residual") else features
                inner = np.concatenate([layer.norm(embedded, "input_layernorm"), normed], axis=-1)
            else:
                residual = inner = self.fc(np.concatenate([embedded, features], axis=-1))
            x, cache = layer(inner, residual, positions, caches[l], visible)
            after.append(cache)
        return (self.norm(x, "norm.weight") if self.config.get("norm_output") else x), after

    def logits(self, output):
        if self.is_eagle3 and not self.config.get("norm_output"):
            output = self.norm(output, "norm.weight")
        return self.head @ output

    def propose(self, tokens, rows):
        n = len(tokens) - 1
        features = self.features([f64(each[:n]) for each in rows])
        outputs, self.caches = self.run(features, tokens[1:], np.arange(n),
                                        [None] * len(self.layers), np.tri(n, dtype=bool))
        self.n_rows = self.n_text = n
        root = Node(outputs[-1])
        mode = self.settings.get("mode", "dynamic")
        if mode == "dynamic":
            return self.grow(root)
        length = self.settings.get("draft_tokens", 4)
        return self.fill(root, [[0] * length] if mode == "chain"
                         else self.settings.get("choices") or paths_of(EAGLE_TREE))

    def expand(self, nodes):
        """Runs nodes of one level: each sees the text, its ancestors and itself."""
        visible = np.zeros((len(nodes), self.n_rows + len(nodes)), bool)
        visible[:, :self.n_text] = True
        for i, node in enumerate(nodes):
            node.row = self.n_rows + i
            above = node
            while above.parent is not None:
                visible[i, above.row] = True
                above = above.parent
        position = np.full(len(nodes), self.n_text + len(nodes[0].path) - 1)
        outputs, self.caches = self.run(np.stack([node.parent.output for node in nodes]),
                                        [node.path[-1] for node in nodes], position, self.caches,
                                        visible)
        for node, output in zip(nodes, outputs):
            node.output = output
        self.n_rows += len(nodes)

    def grow(self, root):
        total_token, depth, top_k = (self.settings.get(name, otherwise) for name, otherwise in
                                     (("total_token", 60), ("depth", 7), ("top_k", 10)))
        found, level, cuts = [], [root], []  # cuts: scores on both sides of a decision
        for at in range(depth + 1):
            if at > 0:
                level.sort(key=lambda node: -node.score)
                cuts += [(a.score, b.score) for a, b in zip(level[top_k - 1:top_k], level[top_k:])]
                level = level[:top_k]
                self.expand(level)
            fresh = []
            for node in level:
                scores = node.score + log_softmax(self.logits(node.output))
                best, _ = largest(scores, top_k + 1)
                cuts += [(scores[a], scores[b]) for a, b in zip(best[top_k - 1:], best[top_k:])]
                fresh += [Node(None, node, self.ids[i], scores[i]) for i in best[:top_k]]
            level = list(fresh)
            found += fresh
        found.sort(key=lambda node: -node.score)
        kept, rest = found[:total_token - 1], found[total_token - 1:]
        # What is not proposed cannot have decided.
        margins = [a - b for a, b in cuts if a >= kept[-1].score]
        margins += [kept[-1].score - each.score for each in rest[:1]]
        token, parent = [], []

        def visit(above, number):  # depth first, the likeliest child first
            for node in [each for each in kept if each.parent is above]:
                token.append(node.path[-1])
                parent.append(number)
                visit(node, len(token) - 1)

        visit(root, -1)
        return token, parent, min(margins)

    def fill(self, root, paths):
        ranks, parents = tree_of_paths(paths)
        depth, margin = [], np.inf
        for parent in parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        nodes = [None] * len(ranks)
        for level in range(max(depth) + 1):
            above = sorted({parents[i] for i in range(len(ranks)) if depth[i] == level})
            if level > 0:
                self.expand([nodes[p] for p in above])
            for p in above:
                parent = root if p < 0 else nodes[p]
                children = [i for i in range(len(ranks)) if parents[i] == p]
                best, gap = largest(self.logits(parent.output), 1 + max(ranks[i] for i in children))
                margin = min(margin, gap)
                for i in children:
                    nodes[i] = Node(None, parent, self.ids[best[ranks[i]]], 0)
        return [node.path[-1] for node in nodes], parents, margin


class Node:
    """Of EAGLE's tree: path of tokens, log of its probability, row and output once it was run."""

    def __init__(self, output, parent=None, token=None, score=0.0):
        self.output, self.parent, self.score, self.row = output, parent, float(score), None
        self.path = () if parent is None else parent.path + (int(token),)


def paths_of(words):
    return [[int(rank) for rank in word] for word in words.split()]


def drafter_of(plugin, folder, settings, target):
    tensors, config = load(folder)
    assert settings.get("tree", "mc_sim_7b_63") == "mc_sim_7b_63", "give choices instead"
    if plugin == "medusa":
        return Medusa(tensors, target.head, settings.get("choices") or paths_of(MEDUSA_TREE))
    if plugin == "redrafter":
        return ReDrafter(tensors, target.embedding, settings.get("beams", 5),
                         settings.get("draft_tokens", 4))
    drafter = Eagle(tensors, config, target.embedding, target.head, target.n_layers, settings)
    assert drafter.is_eagle3 == (plugin == "eagle3")
    return drafter


def record(drafter, target, prompt):
    """The steps of one context. The target's own text is what is accepted."""
    target.begin()
    root, _ = target.extend(prompt)
    tokens, steps = prompt + [root], []
    for _ in range(STEPS):
        rows = [target.states[tap][:len(tokens) - 1] for tap in drafter.taps]
        token, parent, margin = drafter.propose(tokens, rows)
        at, committed = [-1], []  # the root, then the nodes that are accepted
        while at:
            said, _ = target.extend([(tokens + committed)[-1]])
            committed.append(said)
            at = [i for i, p in enumerate(parent) if p == at[0] and token[i] == said]
        steps.append({"token": token, "parent": parent, "margin": float(f"{margin:.3g}"),
                      "committed": committed})
        tokens = tokens + committed
    return {"prompt": prompt, "root": root, "steps": steps}


def some_states(target, taps):
    """Numbers of the target's present text, from its first position to its last one."""
    n, width = target.states[0].shape
    positions = np.linspace(0, n - 1, N_STATES).astype(int)
    columns = 37 * np.arange(N_STATES) % width
    values = [[float(f"{x:.9g}") for x in target.states[tap][positions, columns]] for tap in taps]
    return {"positions": positions.tolist(), "columns": columns.tolist(), "values": values}


def prompts(folder, questions):
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.join(here, "../../../configs/zoo/recipe"))
    from bpe import Tokenizer
    from reference import PROMPTS
    with open(questions, encoding="utf-8") as f:
        texts = [json.loads(line)["turns"][0].split("\n", 1)[1].lstrip() for line in f]
    tokenizer = Tokenizer(folder)
    return [tokenizer.encode(text, bos=True)[:100] for text in (PROMPTS + texts)[:N_CONTEXTS]]


def main():
    plugin, folder, target_folder, questions, out = sys.argv[1:6]
    settings = json.loads(sys.argv[6]) if len(sys.argv) > 6 else {}
    target = Target(target_folder)
    drafter = drafter_of(plugin, folder, settings, target)
    contexts, states = [], []
    for number, prompt in enumerate(prompts(target_folder, questions)):
        contexts.append(record(drafter, target, prompt))
        if number in STATES_OF:
            states.append({"context": number, **some_states(target, drafter.taps)})
        n = sum(len(step["committed"]) for step in contexts[-1]["steps"])
        least = min(step["margin"] for step in contexts[-1]["steps"])
        print(f"{len(contexts)}: {n / STEPS:.2f} tokens a step, margins from {least}", flush=True)
    taps = [target.n_layers + 1 if tap == LAST else tap for tap in drafter.taps]
    document = {"plugin": "specd.drafter." + plugin, "settings": settings, "taps": taps,
                "states": states}
    steps = [step for context in contexts for step in context["steps"]]
    if all(step["parent"] == steps[0]["parent"] for step in steps):
        document["parent"] = steps[0]["parent"]
        for step in steps:
            del step["parent"]
    with open(out, "w", encoding="utf-8") as f:
        f.write(json.dumps(document, separators=(",", ":"))[:-1] + ',"contexts":[\n')
        f.write(",\n".join(json.dumps(each, separators=(",", ":")) for each in contexts) + "]}\n")


if __name__ == "__main__":
    main()
