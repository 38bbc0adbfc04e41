#!/usr/bin/env python3
"""Writes layouts.json: drafts of heads in public layouts that the authors' code does not run.

usage: make_layouts.py OUT.json

What they draft is what make_plain.py drafts, in float64. That one agrees with the authors' code in
the goldens beside this one. Needs numpy.

Names of tensors and keys of config.json are as published: speculators leave out what is the default
of the layer's class, so a "transformer_layer_config" without "num_attention_heads" has 32. Weights
and states are those of head_values.py. Every second of 5 contexts is drafted for again, after some
tokens of a drafted path and another one. "margin" as in make_plain.py.
"""
import random
import sys

from head_values import hidden_rows, target_tables, tensors_of
from make_eagle import paths_of, write
from make_plain import LAST, MEDUSA_TREE, Eagle, Medusa, ReDrafter
from make_plain import paths_of as paths_of_words

SOURCE = "make_plain.py, float64"
N_CONTEXTS = 5
N_LAYERS = 8  # of the target
IDS = "eagle_aux_hidden_state_layer_ids"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def matrix(name, n_out, n_in, scale):
    return [name + ".weight", "F32", [n_out, n_in], scale, 0]


def bias(name, n, scale=0.5):
    return [name + ".bias", "F32", [n], scale, 0]


def norm(name, n):
    return [name + ".weight", "F32", [n], 0.25, 1]


def layer(at, hidden, n_in, heads, ffn, scale, has=()):
    """A decoder layer without its input norms. heads: (of queries, of keys, width of one). has:
    "qkv_bias", "o_bias", "mlp_bias", "head_norm"."""
    n_heads, n_kv_heads, dim = heads
    attention, mlp = at + "self_attn.", at + "mlp."
    widths = {"q_proj": n_heads * dim, "k_proj": n_kv_heads * dim, "v_proj": n_kv_heads * dim}
    rows = [matrix(attention + name, n, n_in, scale) for name, n in widths.items()]
    rows.append(matrix(attention + "o_proj", hidden, n_heads * dim, 0.125))
    rows += [matrix(mlp + name, ffn, hidden, 0.25) for name in ("gate_proj", "up_proj")]
    rows.append(matrix(mlp + "down_proj", hidden, ffn, 0.125))
    rows.append(norm(at + "post_attention_layernorm", hidden))
    if "qkv_bias" in has:
        rows += [bias(attention + name, n) for name, n in widths.items()]
    if "o_bias" in has:
        rows.append(bias(attention + "o_proj", hidden))
    if "mlp_bias" in has:
        rows += [bias(mlp + name, ffn) for name in ("gate_proj", "up_proj")]
        rows.append(bias(mlp + "down_proj", hidden))
    if "head_norm" in has:
        rows += [norm(f"{attention}{name}_norm", dim) for name in "qk"]
    return rows


def case_of(name, plugin, settings, config, vocab, hidden, taps, tensors, head=0.5):
    return {"name": name, "plugin": "specd.drafter." + plugin, "settings": settings,
            "config": config,
            "target": {"vocab_size": vocab, "hidden_size": hidden, "n_layers": N_LAYERS},
            "taps": taps, "tensors": tensors, "embedding": [1.0], "head": [head], "hidden": [1.0]}


# ---- EAGLE ---------------------------------------------------------------------------------------


def eagle(name, settings, config, heads, vocab, head=0.5, has_embedding=False):
    hidden, has = config["hidden_size"], ["qkv_bias"] * config.get("qkv_bias", False)
    tensors = [matrix("fc", hidden, 2 * hidden, 0.125)]
    if config.get("bias", True):
        tensors.append(bias("fc", hidden, 0.25))
    if has_embedding:
        # Not the target's values, so it shows that these are not used.
        tensors.append(matrix("embed_tokens", vocab, hidden, 1.0))
    for l in range(config["num_hidden_layers"]):
        at = f"layers.{l}."
        tensors += layer(at, hidden, hidden, heads, config["intermediate_size"], 0.5, has)
        if l > 0:
            tensors.append(norm(at + "input_layernorm", hidden))
    return case_of(name, "eagle", settings, config, vocab, hidden, [N_LAYERS + 1], tensors, head)


def eagle_cases():
    def config(hidden, heads, ffn, vocab, n_layers, **more):
        return {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": hidden,
                "intermediate_size": ffn, "max_position_embeddings": 2048, "model_type": "llama",
                "num_attention_heads": heads, "num_hidden_layers": n_layers, "vocab_size": vocab,
                **more}

    yield eagle("EAGLE: two layers, biased queries, keys and values, a copy of the embedding",
                {"total_token": 32, "depth": 4, "top_k": 6},
                config(64, 4, 96, 320, 2, bias=False, num_key_value_heads=2, qkv_bias=True,
                       rms_norm_eps=1e-6, rope_theta=1e6),
                (4, 2, 16), 320, has_embedding=True)
    yield eagle("EAGLE: the authors' fixed tree, rotation of Llama 3", {"mode": "static"},
                config(64, 2, 96, 256, 1, bias=False, num_key_value_heads=1, rms_norm_eps=1e-5,
                       rope_scaling=LLAMA3, rope_theta=500000.0),
                (2, 1, 32), 256, has_embedding=True)
    yield eagle("EAGLE: a chain, two layers, as many keys as queries and a bias by default",
                {"mode": "chain", "draft_tokens": 6},
                config(48, 3, 64, 200, 2, rms_norm_eps=1e-6), (3, 3, 16), 200)


def eagle3(name, settings, config, hidden, target_hidden, heads, ffn, vocab, n_draft, taps, *,
           layers=("midlayer.",), has=(), has_fc=True, has_embedding=False, has_t2d=True):
    """layers: what the names of their tensors begin with. has: also "input_norm", "fc_norm"."""
    tensors, fused = [], len(taps) * target_hidden
    if n_draft < vocab:
        used = sorted(random.Random(name).sample(range(vocab), n_draft))
        tensors.append(["d2t", "I64", [n_draft], [token - i for i, token in enumerate(used)]])
        if has_t2d:
            mask = [int(token in used) for token in range(vocab)]
            tensors.append(["t2d", "BOOL", [vocab], mask])
    if has_embedding:
        tensors.append(matrix("embed_tokens", vocab, hidden, 1.0))
    if has_fc:
        tensors.append(matrix("fc", hidden, fused, 0.125))
    if "input_norm" in has:
        tensors.append(norm("input_norm", fused))
    if "fc_norm" in has:
        tensors += [norm(f"fc_norm.{t}", target_hidden) for t in range(len(taps))]
    for l, at in enumerate(layers):
        tensors += layer(at, hidden, hidden if l else 2 * hidden, heads, ffn, 0.25, has)
        tensors.append(norm(at + "input_layernorm", hidden))
        if l == 0:
            tensors.append(norm(at + "hidden_norm", hidden))
    tensors += [norm("norm", hidden), matrix("lm_head", n_draft, hidden, 0.5)]
    return case_of(name, "eagle3", settings, config, vocab, target_hidden, taps, tensors)


def speculators(layer_config, n_draft, **more):
    return {"architectures": ["Eagle3DraftModel"], "draft_vocab_size": n_draft, IDS: None,
            "embed_requires_grad": False, "fc_norm": False, "norm_before_fc": False,
            "norm_before_residual": False, "norm_output": False,
            "speculators_config": {
                "algorithm": "eagle3", "default_proposal_method": "greedy",
                "proposal_methods": [{"accept_tolerance": 0.0, "proposal_type": "greedy",
                                      "speculative_tokens": 5, "verifier_accept_k": 1}],
                "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "target"}},
            "speculators_model_type": "eagle3", "speculators_version": "0.5.0",
            "target_hidden_size": None, "transformer_layer_config": layer_config, **more}


def eagle3_cases():
    yield eagle3("speculators: what is left out is Llama's default, normed residual",
                 {"total_token": 40, "depth": 5, "top_k": 8},
                 speculators({"head_dim": 16, "hidden_size": 64, "intermediate_size": 96,
                              "model_type": "llama", "num_hidden_layers": 1, "vocab_size": 400},
                             160, norm_before_residual=True),
                 64, 64, (32, 32, 16), 96, 400, 160, [2, 4, 5],
                 layers=["layers.0."], has_embedding=True)
    yield eagle3("speculators: what is left out is Qwen3's default, normed states, named ones",
                 {"total_token": 25, "depth": 4, "top_k": 5, "layer_ids": [3, 1, 6],
                  "layer_ids_are": "outputs"},
                 speculators({"hidden_size": 48, "intermediate_size": 80, "model_type": "qwen3",
                              "num_attention_heads": 64, "num_hidden_layers": 2,
                              "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
                              "vocab_size": 300}, 96, norm_before_fc=True),
                 48, 48, (64, 32, 128), 80, 300, 96, [4, 2, 7],
                 layers=["layers.0.", "layers.1."], has=["head_norm", "input_norm"],
                 has_embedding=True)
    yield eagle3("speculators: all heads of Qwen3's default, rotation of Llama 3, a chain",
                 {"mode": "chain", "draft_tokens": 6},
                 speculators({"hidden_size": 64, "intermediate_size": 64, "model_type": "qwen3",
                              "num_hidden_layers": 1,
                              "rope_parameters": {"rope_theta": 500000.0, **LLAMA3},
                              "vocab_size": 256}, 256, norm_before_residual=True),
                 64, 64, (32, 32, 128), 64, 256, 256, [2, 4, 5],
                 layers=["layers.0."], has=["head_norm"])
    yield eagle3("speculators: five normed states, two layers, normed output, a fixed tree",
                 {"mode": "static"},
                 speculators({"head_dim": 32, "hidden_size": 64, "intermediate_size": 96,
                              "model_type": "llama", "num_attention_heads": 4,
                              "num_hidden_layers": 2, "num_key_value_heads": 2,
                              "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "vocab_size": 320},
                             128, fc_norm=True, norm_output=True, **{IDS: [0, 2, 4, 7, 8]}),
                 64, 64, (4, 2, 32), 96, 320, 128, [0, 2, 4, 7, 8],
                 layers=["layers.0.", "layers.1."], has=["fc_norm"], has_embedding=True)
    choices = [[0], [1], [2], [5], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 3], [1, 0, 0],
               [0, 0, 0, 0], [0, 0, 0, 1]]
    yield eagle3("ModelOpt: two layers, ids of outputs, rotation of Llama 3",
                 {"mode": "static", "choices": choices},
                 {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 256,
                  "eagle_config": {IDS: [1, 3, 5], "next_layer_regular": True,
                                   "parallel_draft_step": 1, "use_aux_hidden_state": True,
                                   "use_input_layernorm_in_first_layer": True,
                                   "use_last_layernorm": True, "use_mtp_layernorm": False},
                  "head_dim": 32, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 96,
                  "max_position_embeddings": 4096, "model_type": "llama",
                  "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 1,
                  "rms_norm_eps": 1e-5, "rope_scaling": LLAMA3, "rope_theta": 500000.0,
                  "vocab_size": 256},
                 48, 48, (2, 1, 32), 96, 256, 256, [2, 4, 6],
                 layers=["midlayer.0.", "midlayer.1."])
    yield eagle3("ModelOpt: no fc, the target's last state, all biases",
                 {"total_token": 24, "depth": 3, "top_k": 6},
                 {"architectures": ["LlamaForCausalLMEagle3"], "attention_bias": True,
                  "draft_vocab_size": 96,
                  "eagle_config": {IDS: [], "use_aux_hidden_state": False,
                                   "use_input_layernorm_in_first_layer": True,
                                   "use_last_layernorm": True},
                  "hidden_size": 64, "intermediate_size": 64, "mlp_bias": True,
                  "num_attention_heads": 4, "num_hidden_layers": 1, "num_key_value_heads": 4,
                  "rms_norm_eps": 1e-6, "vocab_size": 384},
                 64, 64, (4, 4, 16), 64, 384, 96, [N_LAYERS + 1],
                 has=["qkv_bias", "o_bias", "mlp_bias"], has_fc=False, has_t2d=False)
    yield eagle3("SpecForge: ids of outputs, narrower than the target, linear rotation",
                 {"total_token": 32, "depth": 5, "top_k": 6},
                 {"architectures": ["LlamaForCausalLMEagle3"], "attention_bias": False,
                  "attention_dropout": 0.0, "bos_token_id": 1, "draft_vocab_size": 120,
                  "eagle_config": {IDS: [1, 4, 6], "use_aux_hidden_state": True},
                  "eos_token_id": 2, "fc_norm": True, "head_dim": 32, "hidden_act": "silu",
                  "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 80,
                  "max_position_embeddings": 4096, "max_window_layers": 1, "mlp_bias": False,
                  "model_type": "llama", "norm_output": True, "num_attention_heads": 2,
                  "num_hidden_layers": 1, "num_key_value_heads": 2, "pretraining_tp": 1,
                  "rms_norm_eps": 1e-6, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
                  "rope_theta": 1000000, "sliding_window": None, "target_hidden_size": 64,
                  "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
                  "use_sliding_window": False, "vocab_size": 360},
                 48, 64, (2, 2, 32), 80, 360, 120, [2, 5, 7],
                 has=["fc_norm"], has_embedding=True)


# ---- Medusa and ReDrafter ------------------------------------------------------------------------


def blocks(n_heads, n_blocks, name, hidden, has_bias=True):
    for h in range(n_heads):
        for l in range(n_blocks):
            yield matrix(name.format(h, l), hidden, hidden, 0.5)
            if has_bias:
                yield bias(name.format(h, l), hidden)


def outputs(n_heads, name, vocab, hidden):
    return [matrix(name.format(h), vocab, hidden, 2) for h in range(n_heads)]


def medusa_cases():
    def medusa(name, settings, config, vocab, hidden, tensors):
        return case_of(name, "medusa", settings, config, vocab, hidden, [N_LAYERS + 1], tensors, 2)

    def vllm(vocab, hidden, n_heads, n_blocks, **more):
        return {"architectures": ["MedusaModel"], "hidden_size": hidden, "max_paths": 64,
                "model_type": "medusa", "num_heads": n_heads, "num_hidden_layers": n_blocks,
                "topk": 10, "vocab_size": vocab, **more}

    yield medusa("Medusa: TGI v1, two blocks",
                 {}, {"medusa_num_heads": 2, "medusa_num_layers": 2}, 300, 64,
                 [*blocks(4, 2, "{}.{}.linear", 64), *outputs(4, "{}.2", 300, 64)])
    yield medusa("Medusa: a prefix",
                 {"choices": [[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 0, 0], [1, 0], [1, 0, 2]]},
                 {"medusa_num_heads": 3, "medusa_num_layers": 1}, 256, 48,
                 [*blocks(3, 1, "medusa_heads.{}.{}.linear", 48),
                  *outputs(3, "medusa_heads.{}.1", 256, 48)])
    yield medusa("Medusa: vLLM, one output head for all, biased",
                 {"choices": [[0, 0, 0], [0, 0, 1], [0, 2, 0], [0, 1], [1, 0], [4]]},
                 vllm(320, 48, 3, 1, medusa_fc_bias=True, original_lm_head=True), 320, 48,
                 [*blocks(3, 1, "blocks.{}.layers.{}", 48), *outputs(1, "lm_head", 320, 48)])
    mapped = random.Random("token_map").sample(range(400), 150)
    yield medusa("Medusa: vLLM, a prefix, the first output head for all, 150 of 400 tokens",
                 {},
                 vllm(400, 64, 4, 2, original_lm_head=True, truncated_vocab_size=150), 400, 64,
                 [*blocks(4, 2, "medusa_heads.blocks.{}.layers.{}", 64, False),
                  *outputs(1, "medusa_heads.lm_heads.0", 150, 64),
                  ["medusa_heads.token_map", "I64", [150], mapped]])
    yield medusa("Medusa: v1.0 in a whole model",
                 {},
                 {"architectures": ["MistralForCausalLM"], "hidden_size": 56,
                  "intermediate_size": 64, "medusa_num_heads": 5, "medusa_num_layers": 1,
                  "model_type": "mistral", "num_attention_heads": 4,
                  "num_hidden_layers": N_LAYERS, "vocab_size": 280}, 280, 56,
                 [matrix("model.embed_tokens", 280, 56, 1), norm("model.norm", 56),
                  norm("model.layers.0.input_layernorm", 56),
                  matrix("model.layers.0.self_attn.q_proj", 56, 56, 1),
                  matrix("lm_head", 280, 56, 1),
                  *blocks(5, 1, "medusa_head.{}.{}.linear", 56),
                  *outputs(5, "medusa_head.{}.1", 280, 56)])


def redrafter_cases():
    hidden, vocab, exit_dim = 48, 320, 64
    tensors = [norm("emb_norm", hidden), matrix("input_proj", exit_dim, 2 * hidden, 0.25),
               bias("input_proj", exit_dim), matrix("rnn_u", hidden, hidden, 0.25),
               bias("rnn_u", hidden), matrix("rnn_w", hidden, hidden, 0.25)]
    for l in range(2):
        tensors += [matrix(f"lm_head.{l}.linear", exit_dim, exit_dim, 0.25),
                    bias(f"lm_head.{l}.linear", exit_dim)]
    tensors.append(matrix("lm_head.2", vocab, exit_dim, 0.5))
    yield case_of("ReDrafter: the norm of the MLX port, which does not apply it",
                  "redrafter", {"beams": 8, "draft_tokens": 4},
                  {"emb_norm": True, "exit_dim": exit_dim, "hidden_size": hidden,
                   "model_type": "recurrent_drafting_drafter", "num_draft_layers": 2,
                   "num_lookback_tokens": 5, "rms_norm_eps": 1e-5, "rnn": True,
                   "vocab_size": vocab},
                  vocab, hidden, [N_LAYERS + 1], tensors)


# --------------------------------------------------------------------------------------------------


def drafter_of(case):
    plugin, settings, tensors = case["plugin"].split(".")[-1], case["settings"], tensors_of(case)
    embedding, head = target_tables(case)
    if plugin == "medusa":
        choices = settings.get("choices") or paths_of_words(MEDUSA_TREE)
        return Medusa(tensors, head, choices)
    if plugin == "redrafter":
        return ReDrafter(tensors, embedding, settings["beams"], settings["draft_tokens"])
    drafter = Eagle(tensors, case["config"], embedding, head, N_LAYERS, settings)
    assert drafter.is_eagle3 == (plugin == "eagle3")
    return drafter


def record(case):
    drafter, rounds, sizes = drafter_of(case), [], []
    assert [N_LAYERS + 1 if tap == LAST else tap for tap in drafter.taps] == case["taps"]
    for context in range(N_CONTEXTS):
        rng = random.Random(f"{case['name']} {context}")
        vocab = case["target"]["vocab_size"]
        tokens = [rng.randrange(vocab) for _ in range(rng.choice([3, 6, 9, 12, 37]))]
        rows_from = 0
        for _ in range(1 + context % 2):
            n = len(tokens) - 1
            rows = [hidden_rows(case, tap, context, n) for tap in range(len(case["taps"]))]
            token, parent, margin = drafter.propose(tokens, rows)
            token, parent = [int(each) for each in token], [int(each) for each in parent]
            rounds.append({"context": context, "tokens": list(tokens), "rows_from": rows_from,
                           "token": token, "parent": parent, "margin": float(f"{margin:.3g}")})
            sizes.append(len(token))
            accepted = rng.choice(paths_of(token, parent))[:rng.randint(0, 4)]
            tokens += list(accepted) + [rng.randrange(vocab)]
            rows_from = n
    margins = sorted(each["margin"] for each in rounds)
    print(f"{case['name']}: {min(sizes)} to {max(sizes)} nodes, {len(rounds)} rounds, margins from "
          f"{margins[0]}, median {margins[len(margins) // 2]}, {sum(m < 1e-3 for m in margins)} "
          f"below 1e-3")
    return {**case, "rounds": rounds}


def main():
    cases = [*eagle3_cases(), *eagle_cases(), *medusa_cases(), *redrafter_cases()]
    write(sys.argv[1], SOURCE, [record(case) for case in cases])


if __name__ == "__main__":
    main()
