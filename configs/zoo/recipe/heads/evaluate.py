#!/usr/bin/env python3
"""Measure how many draft tokens the target accepts per step, for exported heads.

usage: evaluate.py HEAD_DIR TARGET_DIR OUT.json [--prompts FILE.jsonl] [--corpus CORPUS_DIR]
                   [--count 48] [--new 128] [--cache FILE.pt]

The target writes its text once (greedily, and at temperature 0.8). Speculation with the
one-hot rule changes nothing in that text, so a head is replayed along it: at every place
where a step would begin it proposes, and the tokens that agree with the text count. tau is
accepted + 1, the mean over all steps. For sampled text the rule is the same (the target's
token, drawn from its own distribution, either is in the tree or not), which is lossless.

Prompts: --prompts takes a HumanEval-like file (turns[0]; a first line of instructions is cut
off), --corpus the first 128 tokens of --count files of CORPUS_DIR/val.tok.
"""
import argparse, json, os
import numpy as np
import torch
import common, nets

MEDUSA_TREE = """0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100
020 12 003 40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101
021 90 060 0001 16 070""".split()


def open_head(folder, target):
    """An exported folder; its kind shows in config.json."""
    c = json.load(open(os.path.join(folder, "config.json")))
    kind = {"medusa": "medusa", "recurrent_drafting_drafter": "redrafter"}.get(c["model_type"]) or \
        ("eagle3" if "draft_vocab_size" in c else "eagle2")
    head = nets.HEADS[kind](target)
    t = common.read_safetensors(os.path.join(folder, "model.safetensors"))
    head.p = {k: v for k, v in t.items() if v.dtype == torch.float32}
    head.fixed = {k: v for k, v in t.items() if v.dtype != torch.float32}
    head.ready()
    return head


def humaneval(path, tokenizer):
    out = []
    for line in open(path, encoding="utf-8"):
        text = json.loads(line)["turns"][0]
        first, rest = text.split("\n", 1)
        if first.startswith("Complete the code"): text = rest.lstrip("\n")
        out.append(tokenizer.encode(text, bos=True))
    return out


def corpus_files(folder, count, length=128):
    data = np.fromfile(os.path.join(folder, "val.tok"), np.uint16).astype(np.int64)
    docs = [d for d in np.split(data, np.flatnonzero(data == 0))[1:] if len(d) >= length + 64]
    order = np.random.default_rng(5).permutation(len(docs))[:count]
    return [docs[i][:length].tolist() for i in order]


def texts(target, prompts, new, temperature):
    """-> list of (tokens, prompt length): the prompt and what the target writes after it"""
    gen, out = torch.Generator().manual_seed(3), [None] * len(prompts)
    by_len = {}
    for i, p in enumerate(prompts): by_len.setdefault(len(p), []).append(i)
    for n, ids in sorted(by_len.items()):
        x = target.write(torch.tensor([prompts[i] for i in ids]), new + 8,
                         torch.full((len(ids),), temperature), gen)
        for i, row in zip(ids, x): out[i] = (row, n)
    return out


class Texts:
    """Padded texts with their states; place[b] is the number of tokens known before a step."""
    def __init__(self, target, found, new):
        N = max(len(t) for t, _ in found)
        self.tokens = torch.stack([torch.nn.functional.pad(t, (0, N - len(t))) for t, _ in found])
        got = [target.forward(x) for x in self.tokens.split(8)]
        self.states = torch.cat([g[0] for g in got])
        self.taps = torch.cat([g[1] for g in got]).flatten(2)
        self.place = [n + 1 for _, n in found]      # the prompt and the target's first own token
        self.end = []
        for t, n in found:
            stop = (t[n:n + new] == 1).nonzero()
            self.end.append(n + (int(stop[0]) + 1 if len(stop) else new))
        self.slack = [len(t) for t, _ in found]

    def replay(self, propose):
        """propose(ids, rows) -> accepted per text; goes on until every text is used up.
        A step may reach past the end, so that the last one counts fully."""
        place, done = list(self.place), []
        while True:
            ids = [b for b in range(len(place)) if place[b] < self.end[b]]
            if not ids: break
            accepted = propose(ids, [place[b] - 2 for b in ids])
            for b, a in zip(ids, accepted):
                done.append(a); place[b] += a + 1
        return float(np.mean(done)) + 1, len(done)


def longest(cand, parents, keep, truth):
    """depth of the deepest kept candidate whose path agrees with truth"""
    children = {}
    for c, (tok, par, k) in enumerate(zip(cand, parents, keep)):
        if k: children.setdefault((par, tok), c)
    node, n = -1, 0
    while n < len(truth) and (node, truth[n]) in children:
        node = children[(node, truth[n])]; n += 1
    return n


def follow(x, b, row, n=8):
    return x.tokens[b, row + 2:min(row + 2 + n, x.slack[b])].tolist()


def eagle(head, x, top, depth, total):
    parts = [head.begin(x.tokens[i:i + 8], x.states[i:i + 8], x.taps[i:i + 8])
             for i in range(0, len(x.tokens), 8)]
    kept = [torch.cat(p) for p in zip(*parts)]

    def propose(ids, rows):
        c, p, k = head.tree([y[ids] for y in kept], torch.tensor(rows), top, depth, total)
        return [longest(c[i].tolist(), p[i].tolist(), k[i].tolist(), follow(x, b, r))
                for i, (b, r) in enumerate(zip(ids, rows))]
    return x.replay(propose)


def medusa(head, x, tree=True):
    paths = {tuple(map(int, w)) for w in MEDUSA_TREE if len(w) <= head.heads}
    if not tree: paths = {(0,) * n for n in range(1, head.heads + 1)}

    def propose(ids, rows):
        best = [head.best(x.states[ids, rows], h) for h in range(head.heads)]
        best = torch.stack(best, 1).tolist()
        out = []
        for i, (b, r) in enumerate(zip(ids, rows)):
            truth, path = follow(x, b, r), ()
            while len(path) < min(head.heads, len(truth)):
                level = best[i][len(path)]
                if truth[len(path)] not in level: break
                step = path + (level.index(truth[len(path)]),)
                if step not in paths: break
                path = step
            out.append(len(path))
        return out
    return x.replay(propose)


def redrafter(head, x, width, length):
    def propose(ids, rows):
        rows = torch.tensor(rows); ids_t = torch.tensor(ids)
        beams = head.beams(x.states[ids_t, rows], x.tokens[ids_t, rows + 1], width, length).tolist()
        out = []
        for i, (b, r) in enumerate(zip(ids, rows.tolist())):
            truth, best = follow(x, b, r), 0
            for beam in beams[i]:
                n = 0
                while n < min(length, len(truth)) and beam[n] == truth[n]: n += 1
                best = max(best, n)
            out.append(best)
        return out
    return x.replay(propose)


WAYS = {
    "eagle": {"chain of 5": lambda h, x: eagle(h, x, 1, 4, 5),
              "tree, 24 nodes": lambda h, x: eagle(h, x, 4, 6, 24)},
    "medusa": {"chain of 3": lambda h, x: medusa(h, x, False), "tree mc_sim_7b_63": medusa},
    "redrafter": {"chain of 4": lambda h, x: redrafter(h, x, 1, 4),
                  "5 beams of 4": lambda h, x: redrafter(h, x, 5, 4)}}


@torch.no_grad()
def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("head"); ap.add_argument("target"); ap.add_argument("out")
    ap.add_argument("--prompts"); ap.add_argument("--corpus")
    ap.add_argument("--count", type=int, default=48)
    ap.add_argument("--new", type=int, default=128)
    ap.add_argument("--cache", help="where the target's texts are kept between calls")
    a = ap.parse_args()
    target = common.Target(a.target)
    head = open_head(a.head, target)
    written = torch.load(a.cache) if a.cache and os.path.exists(a.cache) else {}
    sets, result = {}, {}
    if a.prompts:
        import sys
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
        from bpe import Tokenizer
        sets["humaneval-dev"] = lambda: humaneval(a.prompts, Tokenizer(a.target))
    if a.corpus: sets["corpus files"] = lambda: corpus_files(a.corpus, a.count)
    for name, prompts in sets.items():
        for temperature in (0.0, 0.8):
            key = f"{name}, T {temperature:g}"
            if key not in written:
                written[key] = texts(target, prompts(), a.new, temperature)
                if a.cache: torch.save(written, a.cache)
            x = Texts(target, written[key], a.new)
            for way, f in WAYS[head.name.rstrip("23")].items():
                tau, steps = f(head, x)
                result.setdefault(way, {})[key] = round(tau, 3)
                print(f"{head.name}: {way}: {key}: tau {tau:.3f} in {steps} steps", flush=True)
    if a.out != "-":
        with open(a.out, "w") as f: json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
