#!/usr/bin/env python3
"""Writes redrafter.json: what the authors' code of ReDrafter proposes for small heads.

usage: make_redrafter.py RECURRENT_DRAFTER OUT.json

RECURRENT_DRAFTER: a checkout of github.com/apple/ml-recurrent-drafter, recorded at commit
bd8586bb9bbfa761644c36f932a0cd1eb3f1cdf9, of which recurrent_drafting/attention.py,
configuration_drafter.py, modeling_drafter.py and tree_attention.py are read. Needs torch and numpy,
one thread of a CPU. Run unchanged: Drafter.beam_search_candidates(), and tree_attention.pack(),
which merges beams that begin alike. transformers is a stand-in: its classes are only derived from.
Their beam length counts the token from which the beams begin, "draft_tokens" does not.

Weights and states are those of head_values.py. Every second context is drafted for again after some
tokens of a drafted path and the target's next one. "margin": the smallest difference, in float64,
of cumulative log-probabilities that decided: between the last beam that a step kept and the first
one that it did not, and between neighbours among the last step's beams, whose order is that of the
nodes. make_plain.py computes it, and must draft the same.
"""
import os
import random
import sys
import types

import numpy as np
import torch

from head_values import hidden_rows, target_tables, tensors_of
from make_eagle import write
from make_plain import ReDrafter

COMMIT = "bd8586bb9bbfa761644c36f932a0cd1eb3f1cdf9"
N_CONTEXTS = 20
N_LAYERS = 4  # of the target


def load(checkout):
    """The authors' modules."""
    class Config:
        def __init__(self, **kwargs):
            assert not kwargs

    class Model(torch.nn.Module):
        def __init__(self, config):
            super().__init__()

    transformers = types.ModuleType("transformers")
    transformers.PretrainedConfig, transformers.PreTrainedModel = Config, Model
    sys.modules["transformers"] = transformers
    package = types.ModuleType("recurrent_drafting")  # theirs imports the Llama and the program too
    package.__path__ = [os.path.join(checkout, "recurrent_drafting")]
    sys.modules["recurrent_drafting"] = package
    from recurrent_drafting import configuration_drafter, modeling_drafter, tree_attention
    return configuration_drafter, modeling_drafter, tree_attention


def case_of(name, vocab, hidden, exit_dim, n_layers, is_rnn, settings, scales,
            names=("lm_head.", "input_proj."), config=None):
    """scales: of the recurrence, the blocks, the output, every bias and the target's embedding."""
    (recurrence, block, output, bias, embedding), (head, project) = scales, names
    tensors = []
    if is_rnn:
        tensors += [["rnn_w.weight", "F32", [hidden, hidden], recurrence, 0],
                    ["rnn_u.weight", "F32", [hidden, hidden], recurrence, 0],
                    ["rnn_u.bias", "F32", [hidden], bias, 0]]
    if exit_dim != 2 * hidden:
        tensors += [[project + "weight", "F32", [exit_dim, 2 * hidden], block, 0],
                    [project + "bias", "F32", [exit_dim], bias, 0]]
    for l in range(n_layers):
        tensors += [[f"{head}{l}.linear.weight", "F32", [exit_dim, exit_dim], block, 0],
                    [f"{head}{l}.linear.bias", "F32", [exit_dim], bias, 0]]
    tensors.append([f"{head}{n_layers}.weight", "F32", [vocab, exit_dim], output, 0])
    own = {"model_type": "recurrent_drafting_drafter", "vocab_size": vocab, "hidden_size": hidden,
           "exit_dim": exit_dim, "num_draft_layers": n_layers, "num_lookback_tokens": 5,
           "rnn": is_rnn}
    return {"name": name, "plugin": "specd.drafter.redrafter", "settings": settings,
            "config": own if names[0] == "lm_head." else config,
            "target": {"vocab_size": vocab, "hidden_size": hidden, "n_layers": N_LAYERS},
            "tensors": tensors, "embedding": [embedding], "head": [0.5], "hidden": [1.0],
            "rounds": []}


def cases():
    yield case_of("recurrent, two layers", 320, 48, 96, 2, True, {"beams": 10, "draft_tokens": 4},
                  (0.25, 0.125, 0.5, 0.5, 1.0))
    yield case_of("sums, one layer, projected, biases of 0", 257, 64, 80, 1, False,
                  {"beams": 5, "draft_tokens": 5}, (0, 0.125, 0.5, 0.0, 0.5))
    yield case_of("recurrent, two layers, projected, 45 beams, names of TensorRT-LLM",
                  500, 56, 64, 2, True, {"beams": 45, "draft_tokens": 3},
                  (0.5, 0.25, 2.0, 0.25, 1.0), ("lm_heads.", "input_projs."),
                  {"redrafter_num_layers": 2, "redrafter_exit_dim": 64, "redrafter_is_rnn": True})
    yield case_of("sums, one layer, other names of TensorRT-LLM", 200, 48, 96, 1, False,
                  {"beams": 3, "draft_tokens": 7}, (0, 0.125, 0.5, 0.5, 0.5), ("0.", "input_proj."))


def model_of(authors, case, weights, embedding):
    """(the authors' model with these weights, the target's embedding)"""
    configuration_drafter, modeling_drafter, _ = authors
    renamed = {}
    for name, array in weights.items():
        for theirs, ours in (("lm_head.", "lm_heads."), ("lm_head.", "0."),
                             ("input_proj.", "input_projs.")):
            if name.startswith(ours):
                name = theirs + name[len(ours):]
        renamed[name] = torch.from_numpy(array)
    target = case["target"]
    model = modeling_drafter.Drafter(configuration_drafter.DrafterConfig(
        vocab_size=target["vocab_size"], hidden_size=target["hidden_size"],
        exit_dim=next(array.shape[1] for name, array in renamed.items()
                      if name.startswith("lm_head.") and len(array) == target["vocab_size"]),
        num_draft_layers=sum(name.endswith(".linear.weight") for name in renamed),
        rnn="rnn_w.weight" in renamed))
    model.load_state_dict(renamed)
    table = torch.nn.Embedding(*embedding.shape)
    table.weight.data = torch.from_numpy(embedding)
    return model.eval(), table


def propose(authors, model, table, root, state, settings):
    """(token, parent) of the merged beams, in their order."""
    _, modeling_drafter, tree_attention = authors
    shape = modeling_drafter.BeamShape(settings["beams"], 1 + settings["draft_tokens"])
    with torch.no_grad():
        beams, _ = model.beam_search_candidates(torch.from_numpy(state)[None],
                                                torch.tensor([root]), table, shape)
        packed, _, mask, depth = tree_attention.pack(beams, torch.ones(1, 1, dtype=torch.bool))
    packed, depth, mask = packed[0].tolist(), depth[0].tolist(), mask[0, :, 1:].tolist()
    assert packed[0] == root
    parent = [next(j for j in range(i) if mask[i][j] and depth[j] == depth[i] - 1) - 1
              for i in range(1, len(packed))]
    return packed[1:], parent


def record(authors, case):
    settings, weights = case["settings"], tensors_of(case)
    embedding, head = target_tables(case)
    model, table = model_of(authors, case, weights, embedding)
    reference = ReDrafter(weights, embedding, settings["beams"], settings["draft_tokens"])
    n_apart, margins, sizes = 0, [], []
    for context in range(N_CONTEXTS):
        rng = random.Random(f"{case['name']} {context}")
        tokens = [rng.randrange(len(head)) for _ in range(rng.randint(2, 9))]
        first = 0
        for _ in range(1 + context % 2):
            rows = hidden_rows(case, 0, context, len(tokens))
            tokens.append(int(np.argmax(head @ rows[-1])))
            token, parent = propose(authors, model, table, tokens[-1], rows[-1], settings)
            plain_token, plain_parent, margin = reference.propose(tokens, [rows])
            is_same = (plain_token, plain_parent) == (token, parent)
            n_apart += not is_same
            assert is_same or margin < 1e-4, (case["name"], context, margin)
            margins.append(margin)
            sizes.append(len(token))
            case["rounds"].append({"context": context, "tokens": list(tokens), "rows_from": first,
                                   "token": token, "parent": parent,
                                   "margin": float(f"{margin:.3g}")})
            # Some drafted tokens are committed, and the root's row and theirs are new.
            first = len(tokens) - 1
            node, path = rng.randrange(len(token)), []
            while node >= 0:
                path, node = [token[node]] + path, parent[node]
            tokens += path[:rng.randint(0, 4)]
    below = [sum(m < end for m in margins) for end in (1e-3, 1e-4)]
    print(f"{case['name']}: {min(sizes)} to {max(sizes)} nodes, {len(margins)} rounds, {n_apart} "
          f"differ in float64; margins from {min(margins):.2g}, median {np.median(margins):.2g}, "
          f"{below[0]} below 1e-3, {below[1]} below 1e-4")
    return case


def main():
    torch.set_num_threads(1)
    authors = load(sys.argv[1])
    source = (f"apple/ml-recurrent-drafter {COMMIT[:7]}, Drafter.beam_search_candidates() and "
              f"tree_attention.pack(), float32, torch {torch.__version__}")
    write(sys.argv[2], source, [record(authors, case) for case in cases()])


if __name__ == "__main__":
    main()
