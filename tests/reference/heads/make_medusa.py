#!/usr/bin/env python3
"""Writes medusa.json: what the authors' code of Medusa proposes for small heads.

usage: make_medusa.py MEDUSA OUT.json

MEDUSA: a checkout of github.com/FasterDecoding/Medusa, recorded at commit
e2a5d20c048a9b0a4092e6933c34313687422518 (Apache-2.0). Needs torch and numpy, one thread of a CPU.
Run unchanged: MedusaModelABC (its heads of ResBlock, its forward()), initialize_medusa(),
generate_medusa_buffers(), generate_candidates(). transformers, huggingface_hub and the authors'
Llama and Mistral are stand-ins: the target is a table of hidden states. Heads of two blocks with
weights of their own replace the authors', which repeat one; a reduced vocabulary is spread over the
whole one with -inf, as vLLM does it.

Weights and states are those of head_values.py. Every second context is drafted for again after some
tokens of a drafted path and the target's next one. "margin": the smallest difference, in float64,
between the logits of two tokens that would change the proposal if they changed places.
make_plain.py computes it, and must draft the same.
"""
import random
import sys
import types

import numpy as np
import torch

from head_values import hidden_rows, target_tables, tensors_of
from make_eagle import write
from make_plain import Medusa

COMMIT = "e2a5d20c048a9b0a4092e6933c34313687422518"
N_CONTEXTS = 20
N_LAYERS = 4  # of the target


class StandIn(torch.nn.Module):
    """For classes that the authors' modules only derive from."""

    def __init__(self, config):
        super().__init__()

    @classmethod
    def from_pretrained(cls, name):
        return None


class States(torch.nn.Module):
    """For the target without its output head."""
    rows = None

    def forward(self, **kwargs):
        return (self.rows,)


def load(checkout):
    """The authors' module."""
    for name, classes in {
            "transformers": ["PreTrainedModel", "PretrainedConfig", "AutoTokenizer", "AutoConfig"],
            "huggingface_hub": ["hf_hub_download"],
            "medusa.model.modeling_llama_kv": ["LlamaForCausalLM"],
            "medusa.model.modeling_mistral_kv": ["MistralForCausalLM"]}.items():
        module = types.ModuleType(name)
        for each in classes:
            setattr(module, each, type(each, (StandIn,), {}))
        sys.modules[name] = module
    sys.path.insert(0, checkout)
    import medusa.model.medusa_model
    return medusa.model.medusa_model


def cases():
    """Shapes; "paths" is what the authors' code gets when that is not `choices`."""
    def blocks(n_heads, n_blocks, name, hidden, bias_scale=None):
        for h in range(n_heads):
            for l in range(n_blocks):
                yield [name.format(h, l) + "weight", "F32", [hidden, hidden], 0.5, 0]
                if bias_scale is not None:
                    yield [name.format(h, l) + "bias", "F32", [hidden], bias_scale, 0]

    def outputs(n_heads, name, rows, hidden):
        return [[name.format(h), "F32", [rows, hidden], 2, 0] for h in range(n_heads)]

    yield {"name": "published tree, 4 heads, names of v0.1",
           "settings": {"tree": "mc_sim_7b_63"}, "paths": "mc_sim_7b_63",
           "config": {"medusa_num_heads": 4, "medusa_num_layers": 1},
           "target": {"vocab_size": 320, "hidden_size": 64, "n_layers": N_LAYERS},
           "tensors": [*blocks(4, 1, "{}.{}.linear.", 64, 0.5),
                       *outputs(4, "{}.1.weight", 320, 64)]}
    leaves = [[4, 1, 0], [0, 0, 9], [0, 0, 3], [1, 0], [0, 2, 1], [0, 5], [9], [2, 7, 0], [0, 0, 0]]
    yield {"name": "leaves alone, 3 heads, names of v1.0",
           "settings": {"choices": leaves},
           "config": {"medusa_num_heads": 3, "medusa_num_layers": 1},
           "target": {"vocab_size": 257, "hidden_size": 48, "n_layers": N_LAYERS},
           "tensors": [*blocks(3, 1, "medusa_head.{}.{}.linear.", 48, 0.25),
                       *outputs(3, "medusa_head.{}.1.weight", 257, 48)]}
    yield {"name": "shared output head of TGI, published tree cut to 3 heads",
           "settings": {"tree": "vicuna_13b_stage2"}, "paths": "vicuna_13b_stage2",
           "config": {"medusa_num_heads": 5, "medusa_num_layers": 1},
           "target": {"vocab_size": 500, "hidden_size": 56, "n_layers": N_LAYERS},
           "tensors": [*blocks(3, 1, "{}.{}.linear.", 56, 0.5)]}
    choices = [[0], [0, 0], [1], [0, 0, 0], [2], [0, 1], [1, 0], [0, 0, 0, 0], [3], [0, 0, 1],
               [2, 0], [0, 0, 0, 1], [1, 0, 0], [4], [0, 1, 0], [3, 0], [0, 2], [1, 0, 0, 0]]
    mapped = random.Random("token_map").sample(range(400), 200)
    yield {"name": "two blocks without bias, 200 of 400 tokens, names of vLLM",
           "settings": {"choices": choices},
           "config": {"model_type": "medusa", "hidden_size": 64, "vocab_size": 400, "num_heads": 4,
                      "num_hidden_layers": 2, "truncated_vocab_size": 200, "medusa_fc_bias": False},
           "target": {"vocab_size": 400, "hidden_size": 64, "n_layers": N_LAYERS},
           "tensors": [*blocks(4, 2, "blocks.{}.layers.{}.", 64),
                       *outputs(4, "lm_heads.{}.weight", 200, 64),
                       ["token_map", "I64", [200], mapped]]}


def model_of(authors, case, weights, head):
    """The authors' model with these weights."""
    target, prefix = case["target"], "medusa_head."
    is_vllm = "token_map" in weights
    at = "blocks.{}.layers.{}." if is_vllm else "{}.{}.linear."
    if not any(name.startswith(prefix) for name in weights):
        prefix = ""
    n_heads = 0
    while prefix + at.format(n_heads, 0) + "weight" in weights:
        n_heads += 1
    n_blocks = 2 if is_vllm else 1

    class Model(authors.MedusaModelABC, StandIn):
        pass

    model = Model(types.SimpleNamespace(medusa_num_heads=n_heads, medusa_num_layers=1,
                                        hidden_size=target["hidden_size"],
                                        vocab_size=target["vocab_size"], _name_or_path=""))
    model.model = States()
    model.lm_head = torch.nn.Linear(*head.shape[::-1], bias=False)
    model.lm_head.weight.data = torch.from_numpy(head)
    for h in range(n_heads):
        layers = [authors.ResBlock(target["hidden_size"]) for _ in range(n_blocks)]
        if n_blocks == 1:
            layers = [model.medusa_head[h][0]]
        for l, block in enumerate(layers):
            name = prefix + at.format(h, l)
            block.linear.weight.data = torch.from_numpy(weights[name + "weight"])
            bias = weights.get(name + "bias", np.zeros(target["hidden_size"], np.float32))
            block.linear.bias.data = torch.from_numpy(bias)
        output = weights.get(f"lm_heads.{h}.weight" if is_vllm else f"{prefix}{h}.1.weight", head)
        linear = torch.nn.Linear(*output.shape[::-1], bias=False)
        linear.weight.data = torch.from_numpy(output)
        model.medusa_head[h] = torch.nn.Sequential(*layers, linear)
    return model


def propose(authors, model, paths, rows, token_map):
    """(the target's own next token, {path of ranks: token})"""
    buffers = authors.generate_medusa_buffers(paths, device="cpu")
    model.model.rows = torch.from_numpy(rows)[None]
    logits, orig = authors.initialize_medusa(None, model, buffers["medusa_attn_mask"], None)
    if token_map is not None:
        spread = torch.full((*logits.shape[:-1], orig.shape[-1]), -torch.inf)
        spread[..., torch.from_numpy(token_map)] = logits
        logits = spread
    candidates, tree = authors.generate_candidates(logits, orig, buffers["tree_indices"],
                                                   buffers["retrieve_indices"])
    in_order = sorted(paths, key=lambda path: (len(path), path))
    root, *tokens = tree[0].tolist()
    token = {tuple(path): each for path, each in zip(in_order, tokens)}
    # The candidates that they verify say the same, padding aside.
    said = {tuple(row[:1 + int((nodes > 0).sum())].tolist())
            for row, nodes in zip(candidates, buffers["retrieve_indices"])}
    leaves = [path for path in token if not any(other[:-1] == path for other in token)]
    assert said == {(root, *(token[path[:n]] for n in range(1, len(path) + 1))) for path in leaves}
    return root, token


def closed(paths):
    """With every prefix."""
    return sorted({tuple(path[:n]) for path in paths for n in range(1, len(path) + 1)})


def record(authors, case):
    case |= {"embedding": [1.0], "head": [2.0], "hidden": [1.0], "rounds": []}
    weights, head = tensors_of(case), target_tables(case)[1]
    model = model_of(authors, case, weights, head)
    name = case.pop("paths", None)
    given = getattr(authors, name) if name else case["settings"]["choices"]
    given = [list(path) for path in given if len(path) <= model.medusa]
    paths = [list(path) for path in closed(given)]
    reference = Medusa(weights, head, given)
    assert len(reference.ranks) == len(paths)
    n_apart, margins = 0, []
    for context in range(N_CONTEXTS):
        rng = random.Random(f"{case['name']} {context}")
        tokens = [rng.randrange(len(head)) for _ in range(rng.randint(2, 9))]
        first = 0
        for number in range(1 + context % 2):
            rows = hidden_rows(case, 0, context, len(tokens))
            root, token_of = propose(authors, model, paths, rows, weights.get("token_map"))
            tokens.append(root)
            # In the order of the plugin's tree.
            path, token, parent = [], [], reference.parents
            for rank, above in zip(reference.ranks, parent):
                path.append((path[above] if above >= 0 else ()) + (rank,))
                token.append(token_of[path[-1]])
            plain, _, margin = reference.propose(tokens, [rows])
            n_apart += plain != token
            assert plain == token or margin < 1e-4, (case["name"], context, margin)
            margins.append(margin)
            case["rounds"].append({"context": context, "tokens": list(tokens), "rows_from": first,
                                   "token": token, "parent": parent,
                                   "margin": float(f"{margin:.3g}")})
            # Some drafted tokens are committed, and the root's row and theirs are new.
            first = len(tokens) - 1
            taken = rng.choice(path)[:rng.randint(0, 4)]
            tokens += [token_of[taken[:n]] for n in range(1, len(taken) + 1)]
    below = [sum(m < end for m in margins) for end in (1e-3, 1e-4)]
    print(f"{case['name']}: {len(token)} nodes, {len(margins)} rounds, {n_apart} differ in "
          f"float64; margins from {min(margins):.2g}, median {np.median(margins):.2g}, "
          f"{below[0]} below 1e-3, {below[1]} below 1e-4")
    return {"name": case["name"], "plugin": "specd.drafter.medusa", **case}


def main():
    torch.set_num_threads(1)
    authors = load(sys.argv[1])
    source = (f"FasterDecoding/Medusa {COMMIT[:7]}, generate_candidates() after "
              f"MedusaModelABC.forward(), float32, torch {torch.__version__}")
    write(sys.argv[2], source, [record(authors, case) for case in cases()])


if __name__ == "__main__":
    main()
