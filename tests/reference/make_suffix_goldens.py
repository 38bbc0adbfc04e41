#!/usr/bin/env python3
"""Writes suffix_arctic_goldens.json: what ArcticInference's suffix trees draft for the texts of
suffix_goldens.json.

usage: make_suffix_goldens.py suffix_goldens.json VERSION OUT.json

Needs the package arctic-inference, or of its source only csrc/suffix_decoding built with nanobind as
arctic_inference/suffix_decoding/_C.so. One tree holds the text, another the corpus, one sequence a document;
as in its cache.py the text's draft stays unless the other's score is greater. Chains only: among equally likely
nodes the order of its trees is that of a heap.

The trees are 256 deep, more than any match with its draft. Also printed: how many drafts are the same with 64
and with 24, where the original ends what goes on here.
"""
import json
import sys

from arctic_inference.suffix_decoding._C import SuffixTree

SETTINGS = [{"max_spec_factor": 1.0}, {"max_spec_factor": 4.0, "min_token_prob": 0.0},
            {"max_spec_factor": 1.5, "max_spec_offset": -1.0, "min_token_prob": 0.3},
            {"max_spec_offset": 8.0, "max_spec_tokens": 40}]


def drafts(golden, case, settings, depth):
    local, other = SuffixTree(depth), SuffixTree(depth)
    if case["corpus"]:
        for i, document in enumerate(golden["corpus"]):
            other.extend(i, document)
    n, out = 0, []
    for to in [step[0] for step in case["steps"]]:
        local.extend(0, case["text"][n:to])
        n = to
        best = None
        for tree in (local, other):
            draft = tree.speculate(case["text"][:n][-depth:], settings["max_spec_tokens"],
                                   settings["max_spec_factor"], settings["max_spec_offset"],
                                   settings["min_token_prob"], False)
            if best is None or draft.score > best.score:
                best = draft
        out.append([n, list(best.token_ids)])
    return out


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        golden = json.load(file)
    cases, same, all_steps = [], {64: 0, 24: 0}, 0
    for i, case in enumerate(golden["cases"][:20]):
        settings = {"max_spec_tokens": 16, "max_spec_factor": 1.0, "max_spec_offset": 0.0, "min_token_prob": 0.1,
                    "max_tree_depth": 256, "max_branches": 1}
        settings.update(SETTINGS[(i // 4 + i) % len(SETTINGS)])
        steps = drafts(golden, case, settings, 256)
        cases.append({"settings": settings, "corpus": case["corpus"], "text": case["text"], "begin": case["begin"],
                      "steps": steps})
        all_steps += len(steps)
        for depth in same:
            same[depth] += sum(a == b for a, b in zip(steps, drafts(golden, case, settings, depth)))
    print("same as with 256:", same, "of", all_steps)
    out = {"made_by": "make_suffix_goldens.py, ArcticInference " + sys.argv[2],
           "max_positions": golden["max_positions"], "vocab_size": golden["vocab_size"],
           "corpus": golden["corpus"], "cases": cases}
    with open(sys.argv[3], "w", encoding="utf-8") as file:
        json.dump(out, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
