#!/usr/bin/env python3
"""Writes lookahead_goldens.json: proposals of lookahead decoding, step by step.

usage: make_lookahead_goldens.py TARGET_DIR QUESTIONS.jsonl LADE_DIR OUT.json
TARGET_DIR: configs/zoo/pico-target; QUESTIONS.jsonl: HumanEval prompts, {"turns": ["Complete ...\\n<prompt>"]} a line;
LADE_DIR: a checkout of hao-ai-lab/LookaheadDecoding, run by lookahead_original.py.
"contexts" are lookahead_reference.py's, "recorded" the original's.
"""
import json
import sys

from lookahead_original import record
from lookahead_reference import WANT_TOP1, Lookahead, Target, tree_of
from bpe import Tokenizer  # beside the numpy model
from reference import PROMPTS

STEPS = 30
# window, ngram, guesses
SETTINGS = [(7, 5, 7), (4, 3, 4), (5, 4, 2), (3, 2, 5), (1, 3, 3), (10, 3, 1), (2, 8, 4), (15, 5, 15), (1, 2, 2),
            (6, 4, 0)]


def steps_of(target, state):
    steps = []
    for _ in range(STEPS):
        rows, visible, kinds = state.layout()
        top1 = target.top1(state.tokens[:-1], rows, visible)
        committed = state.verify(kinds, rows, top1)
        token, parent, flags, row = tree_of(rows, visible, kinds, state.last_level(kinds))
        answers = [top1[r] if f & WANT_TOP1 else -1 for r, f in zip(row, flags)]
        steps.append({"token": token, "parent": parent, "flags": flags, "top1": answers, "committed": committed})
        state.take(kinds, top1, committed)
    return steps


def main():
    folder, questions, lade, out = sys.argv[1:5]
    tokenizer, target = Tokenizer(folder), Target(folder)
    with open(questions, encoding="utf-8") as f:
        asked = [json.loads(line)["turns"][0].split("\n", 1)[1].lstrip() for line in f]
    prompts = [tokenizer.encode(text, bos=True) for text in PROMPTS]
    prompts += [tokenizer.encode(text, bos=True)[:120] for text in asked[:9]]
    # As the first proposal finds them: with the token that the prompt's own pass gave.
    prompts = [prompt + target.greedy([prompt], 1)[0].tolist() for prompt in prompts]
    prompts += [[tokenizer.bos], [260] * 12, [308, 292]]
    contexts = []
    for i, prompt in enumerate(prompts):
        window, ngram, guesses = SETTINGS[i % len(SETTINGS)]
        state = Lookahead(window, ngram, guesses, i % 3 == 1, prompt)
        contexts.append({"window": window, "ngram": ngram, "guesses": guesses, "pool_from_prompt": state.from_prompt,
                         "prompt": prompt, "steps": steps_of(target, state)})
        print(i, prompt[:3], len(prompt), SETTINGS[i % len(SETTINGS)], "tokens a step",
              sum(len(s["committed"]) for s in contexts[-1]["steps"]) / STEPS)
    recorded = record(folder, lade, prompts[:12:2])
    with open(out, "w", encoding="utf-8") as f:
        json.dump({"contexts": contexts, **recorded}, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
