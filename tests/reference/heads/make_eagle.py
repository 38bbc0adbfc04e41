#!/usr/bin/env python3
"""Writes eagle2.json and eagle3.json: the drafts of the authors' own code, topK_genrate() of
eagle/model/cnets1.py (EAGLE-2) and of eagle/model/cnets.py (EAGLE-3), on weights that a hash makes.

usage: make_eagle.py EAGLE_DIR OUT_DIR

EAGLE_DIR: a checkout of github.com/SafeAILab/EAGLE, recorded at
cb7e0841fe0c206c6ed74a197ad5e2a1f13f5a2b (Apache-2.0), imported unchanged. Needs torch, numpy and
transformers 4.46.3; recorded with torch 2.15 in float32, on one thread of a CPU.

The target is not needed: its embedding, its head and its states are hashed, too. Each of 20
contexts is drafted for. For three out of four, some tokens of a drafted path and another one are
then committed, and it is drafted for again, up to twice. `margin` is by eagle_float64.py. Where
that drafts anything else, the round is printed.
"""
import json
import os
import random
import sys

import numpy as np

from eagle_float64 import Head, states_of
from head_values import hidden_rows, target_tables, tensors_of

SOURCE = "SafeAILab/EAGLE cb7e084, eagle/model/{}, topK_genrate(), float32"
N_CONTEXTS = 20


def layer(at, config, n_in, scale):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv = hidden // heads * config.get("num_key_value_heads", heads)
    ffn = config["intermediate_size"]
    rows = [[f"{at}self_attn.{name}_proj.weight", "F32", [n, n_in], scale, 0]
            for name, n in (("q", hidden), ("k", kv), ("v", kv))]
    if config.get("qkv_bias"):
        rows += [[f"{at}self_attn.{name}_proj.bias", "F32", [n], 0.5, 0]
                 for name, n in (("q", hidden), ("k", kv), ("v", kv))]
    return rows + [[at + "self_attn.o_proj.weight", "F32", [hidden, hidden], 0.125, 0],
                   [at + "mlp.gate_proj.weight", "F32", [ffn, hidden], 0.25, 0],
                   [at + "mlp.up_proj.weight", "F32", [ffn, hidden], 0.25, 0],
                   [at + "mlp.down_proj.weight", "F32", [hidden, ffn], 0.125, 0],
                   [at + "post_attention_layernorm.weight", "F32", [hidden], 0.25, 1]]


def config_of(hidden, heads, kv_heads, ffn, vocab, **more):
    return {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "intermediate_size": ffn, "vocab_size": vocab, "num_hidden_layers": 1,
            "hidden_act": "silu", "max_position_embeddings": 256, **more}


def eagle2(name, settings, config, head=0.5):
    hidden = config["hidden_size"]
    tensors = [["fc.weight", "F32", [hidden, 2 * hidden], 0.125, 0]]
    if config.get("bias", True):
        tensors.append(["fc.bias", "F32", [hidden], 0.25, 0])
    return {"name": name, "plugin": "specd.drafter.eagle", "settings": settings, "config": config,
            "target": {"vocab_size": config["vocab_size"], "hidden_size": hidden, "n_layers": 8},
            "taps": [9], "tensors": tensors + layer("layers.0.", config, hidden, 0.5),
            "embedding": [1.0], "head": [head], "hidden": [1.0]}


def eagle3(name, settings, config, has_t2d=True):
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    n_draft, target_hidden = config["draft_vocab_size"], config.get("target_hidden_size", hidden)
    norms = ["midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight", "norm.weight"]
    tensors = [["fc.weight", "F32", [hidden, 3 * target_hidden], 0.125, 0]]
    tensors += layer("midlayer.", config, 2 * hidden, 0.25)
    tensors += [[each, "F32", [hidden], 0.25, 1] for each in norms]
    tensors.append(["lm_head.weight", "F32", [n_draft, hidden], 0.5, 0])
    if n_draft < vocab:
        used = sorted(random.Random(name).sample(range(vocab), n_draft))
        tensors.append(["d2t", "I64", [n_draft], [token - i for i, token in enumerate(used)]])
        if has_t2d:
            mask = [int(token in used) for token in range(vocab)]
            tensors.append(["t2d", "BOOL", [vocab], mask])
    if target_hidden != hidden:
        tensors.append(["embed_tokens.weight", "F32", [vocab, hidden], 1.0, 0])
    return {"name": name, "plugin": "specd.drafter.eagle3", "settings": settings, "config": config,
            "target": {"vocab_size": vocab, "hidden_size": target_hidden, "n_layers": 8},
            "taps": [2, 4, 5], "tensors": tensors,
            "embedding": [1.0], "head": [0.5], "hidden": [1.0]}


def tree(total_token, depth, top_k):
    return {"total_token": total_token, "depth": depth, "top_k": top_k}


LINEAR = {"rope_scaling": {"type": "linear", "factor": 2.0}}
CASES = {
    "eagle2": [
        eagle2("biased, the defaults", tree(60, 7, 10),
               config_of(64, 4, 4, 96, 256, rms_norm_eps=1e-6, bias=True)),
        eagle2("grouped heads, deep and narrow", tree(32, 8, 4),
               config_of(64, 4, 2, 128, 320, rms_norm_eps=1e-5, bias=False, rope_theta=500000.0)),
        eagle2("biased queries, keys and values, shallow and wide", tree(24, 3, 8),
               config_of(48, 3, 1, 96, 200, rms_norm_eps=1e-6, bias=False, qkv_bias=True), 1.0),
        eagle2("biased by default, scaled positions", tree(40, 5, 10),
               config_of(64, 2, 1, 64, 500, rms_norm_eps=1e-6, **LINEAR)),
    ],
    "eagle3": [
        eagle3("grouped heads, reduced vocabulary, the defaults", tree(60, 7, 10),
               config_of(64, 4, 2, 96, 400, rms_norm_eps=1e-5, draft_vocab_size=160)),
        eagle3("full vocabulary, deep and narrow", tree(32, 8, 4),
               config_of(64, 4, 4, 128, 256, rms_norm_eps=1e-6, draft_vocab_size=256,
                         rope_theta=1e6)),
        eagle3("wider than the target, own embedding", tree(24, 3, 8),
               config_of(64, 2, 1, 96, 300, rms_norm_eps=1e-6, draft_vocab_size=200,
                         target_hidden_size=48)),
        eagle3("no t2d, scaled positions", tree(40, 5, 10),
               config_of(48, 3, 1, 80, 500, rms_norm_eps=1e-6, draft_vocab_size=96, **LINEAR),
               False),
    ],
}


def authors_head(case, eagle_dir):
    """Their Model with the case's weights, and what stands for the target's output head."""
    import torch
    sys.path.insert(0, eagle_dir)
    from eagle.model import cnets, cnets1
    from eagle.model.configs import EConfig
    torch.set_num_threads(1)
    module = cnets if case["plugin"] == "specd.drafter.eagle3" else cnets1
    shape = case["settings"]
    model = module.Model(EConfig(**case["config"]), bias=case["config"].get("bias", True),
                         total_tokens=shape["total_token"], depth=shape["depth"],
                         top_k=shape["top_k"])
    embedding, head = target_tables(case)
    state = {"embed_tokens.weight": embedding, **tensors_of(case)}
    missing, unexpected = model.load_state_dict(
        {name: torch.from_numpy(np.array(each)) for name, each in state.items()}, strict=False)
    assert not unexpected and set(missing) <= {"d2t", "t2d"}, (missing, unexpected)
    model.eval()
    model.init_tree()
    head_of_target = torch.nn.Linear(*reversed(head.shape), bias=False)
    head_of_target.weight.data = torch.from_numpy(head)
    return torch, model, head_of_target


def paths_of(token, parent):
    paths = []
    for t, p in zip(token, parent):
        paths.append((paths[p] if p >= 0 else ()) + (t,))
    return paths


def record(case, eagle_dir):
    torch, model, head_of_target = authors_head(case, eagle_dir)
    shape, vocab = case["settings"], case["target"]["vocab_size"]
    rounds = []
    for context in range(N_CONTEXTS):
        rng = random.Random(f"{case['name']} {context}")
        tokens = [rng.randrange(vocab) for _ in range(rng.randint(5, 40))]
        slow = Head(case)
        model.reset_kv()
        rows_from = 0
        for repeat in range(1 + context % 4 // 2 + (context % 4 > 0)):
            n = len(tokens) - 1
            states = states_of(case, context, n)[rows_from:]
            draft, _, mask, depth = model.topK_genrate(
                torch.from_numpy(states.astype(np.float32))[None], torch.tensor([tokens]),
                head_of_target, None)
            mask, depth, draft = mask[0, 0].tolist(), depth.tolist(), draft[0].tolist()
            assert draft[0] == tokens[-1]
            parent = [next(j for j in range(i) if mask[i][j] and depth[j] == depth[i] - 1) - 1
                      for i in range(1, len(draft))]
            token = draft[1:]
            slow.extend(states, tokens[rows_from + 1:])
            paths, margin = slow.draft(shape["total_token"] - 1, shape["depth"], shape["top_k"])
            if paths != set(paths_of(token, parent)):
                print(f"{case['name']}, context {context}, round {repeat}: float64 differs, margin "
                      f"{margin:.1e}")
            rounds.append({"context": context, "tokens": list(tokens), "rows_from": rows_from,
                           "token": token, "parent": parent, "margin": float(f"{margin:.3g}")})
            accepted = rng.choice(paths_of(token, parent))[:rng.randint(0, 4)]
            tokens += list(accepted) + [rng.randrange(vocab)]
            rows_from = n
    return {**case, "rounds": rounds}


def write(path, source, cases):
    """One line for each tensor and round."""
    def dump(each):
        return json.dumps(each, separators=(",", ":"))

    def lines(rows):
        return "[\n  " + ",\n  ".join(dump(each) for each in rows) + "]"
    text = []
    for case in cases:
        items = [f"{dump(key)}:{lines(value) if key in ('tensors', 'rounds') else dump(value)}"
                 for key, value in case.items()]
        text.append("{" + ",\n ".join(items) + "}")
    with open(path, "w", encoding="utf-8") as out:
        out.write(f'{{"source":{dump(source)},\n"cases":[\n' + ",\n".join(text) + "]}\n")


def main():
    eagle_dir, out_dir = sys.argv[1:]
    for name, cases in CASES.items():
        recorded = [record(case, eagle_dir) for case in cases]
        file = "cnets.py" if name == "eagle3" else "cnets1.py"
        write(os.path.join(out_dir, name + ".json"), SOURCE.format(file), recorded)
        for case in recorded:
            margins = sorted(each["margin"] for each in case["rounds"])
            print(f"{name}: {case['name']}: {len(margins)} rounds, margins from {margins[0]}, "
                  f"median {margins[len(margins) // 2]}, {sum(m < 1e-3 for m in margins)} below "
                  f"1e-3, {sum(m < 1e-4 for m in margins)} below 1e-4")


if __name__ == "__main__":
    main()
