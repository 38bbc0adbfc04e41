#!/usr/bin/env python3
"""Draft trees, slow and plain: paths as tuples, scores in a dictionary, one forward of the draft model per path. The
growth is EAGLE-2's (arXiv 2406.16858, section 4): of every level the likeliest nodes are expanded, of all that came up
the likeliest are proposed.

usage: draft_tree_reference.py TARGET_DIR DRAFT_DIR QUESTIONS.jsonl OUT.json    (writes draft_tree_goldens.json)
TARGET_DIR, DRAFT_DIR: configs/zoo/pico-target and pico-draft; QUESTIONS.jsonl: HumanEval prompts, {"turns": ["Complete
...\\n<prompt>"]} a line. Log-probabilities are rounded to 1/1024, so that sums are exact in float32 too; "asked" has
what the draft model said below each path that was run: the tokens, likeliest first, and 1024 times their logs.
"""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../zoo/recipe"))
from bpe import Tokenizer  # noqa: E402
from reference import PROMPTS, Llama  # noqa: E402

STEPS = 30
UNIT = 1024
# depth, branches, nodes, smallest probability of a path
SETTINGS = [(4, 4, 16, 0), (3, 2, 14, 0), (6, 3, 8, 0), (5, 4, 40, 0.02), (1, 5, 3, 0), (4, 1, 4, 0), (8, 2, 12, 0.05)]


def after(model, tokens):
    """Logits of the token that follows."""
    return model.forward([tokens], hidden=True)[0, -1] @ model.head.T


def likely(model, tokens, n):
    """The n likeliest tokens after a text and UNIT times their log-probabilities, rounded; the lower id of equals."""
    logits = after(model, tokens).astype(np.float64)
    logs = np.rint((logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())) * UNIT).astype(int)
    best = sorted(range(len(logs)), key=lambda token: (-logits[token], token))[:n]
    return best, [int(logs[token]) for token in best]


def grow(model, text, depth, branches, nodes, p_min):
    """All that came up: {path: score}, in the order in which it did; and what was asked: [[path, tokens, logs]]."""
    least = np.log(p_min) * UNIT if p_min > 0 else -np.inf
    scores, asked, run = {}, [], [()]
    for _ in range(depth):
        fresh = []
        for path in run:
            tokens, logs = likely(model, text + list(path), branches)
            asked.append([list(path), tokens, logs])
            for token, log in zip(tokens, logs):
                if scores.get(path, 0) + log >= least:
                    scores[path + (token,)] = scores.get(path, 0) + log
                    fresh.append(path + (token,))
        born = {path: i for i, path in enumerate(scores)}
        ranked = sorted(scores, key=lambda path: (-scores[path], born[path]))
        # Whatever is below the last of the proposed cannot be proposed.
        run = [path for path in ranked[:nodes - 1] if path in fresh][:branches]
    return scores, asked


def proposal(scores, nodes):
    """Tokens and parents of the likeliest paths: depth first, the likeliest child first."""
    born = {path: i for i, path in enumerate(scores)}
    chosen = sorted(scores, key=lambda path: (-scores[path], born[path]))[:nodes]
    tokens, parents = [], []

    def visit(path, parent):
        for child in [c for c in chosen if c[:-1] == path]:  # in the order of their scores
            tokens.append(child[-1])
            parents.append(parent)
            visit(child, len(tokens) - 1)

    visit((), -1)
    return tokens, parents


def accept(target, text, tokens, parents):
    """The nodes that the target itself would have written, and its tokens: those of the nodes and one more."""
    path, said = [], []
    while True:
        said.append(int(np.argmax(after(target, text + said))))
        last = path[-1] if path else -1
        below = [i for i, parent in enumerate(parents) if parent == last and tokens[i] == said[-1]]
        if not below:
            return path, said
        path.append(below[0])


def main():
    target, draft, questions, out = sys.argv[1:5]
    tokenizer, target, draft = Tokenizer(target), Llama(target), Llama(draft)
    with open(questions, encoding="utf-8") as f:
        asked = [json.loads(line)["turns"][0].split("\n", 1)[1].lstrip() for line in f]
    prompts = [tokenizer.encode(text, bos=True) for text in PROMPTS]
    prompts += [tokenizer.encode(text, bos=True)[:100] for text in asked[:20]]
    contexts = []
    for i, prompt in enumerate(prompts[:20]):
        depth, branches, nodes, p_min = SETTINGS[i % len(SETTINGS)]
        text, steps = list(prompt), []
        for _ in range(STEPS):
            scores, queries = grow(draft, text, depth, branches, nodes, p_min)
            tokens, parents = proposal(scores, nodes)
            path, committed = accept(target, text, tokens, parents)
            steps.append({"asked": queries, "token": tokens, "parent": parents, "accepted": path, "committed": committed})
            text += committed
        contexts.append({"depth": depth, "branches": branches, "nodes": nodes, "p_min": p_min, "prompt": prompt,
                         "steps": steps})
        print(i, SETTINGS[i % len(SETTINGS)], "tokens a step", (len(text) - len(prompt)) / STEPS, flush=True)
    with open(out, "w", encoding="utf-8") as f:
        json.dump({"contexts": contexts}, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
