#!/usr/bin/env python3
"""Writes a tiny random checkpoint of every model family into models/ and model_goldens.json: what
transformers computes with them in float32.

usage: make_model_goldens.py OUT_FOLDER       (needs `pip install torch transformers`)

For prompts that end below, at and far behind the window and the context that rotary scaling was made
for: the logits behind the last token, 64 greedy tokens, and 64 with a repetition penalty of 1.3. A checkpoint whose smallest gap between
the two best logits is below GAP is made again from the next seed, so that float32's order of
addition cannot decide a token; and one whose text does not depend on what makes the family special
(window, scaling, biases, norms) is refused, so that the goldens can tell.
"""
import copy
import json
import os
import shutil
import sys

import torch
import transformers
from tokenizers import AddedToken, Regex as tokenizers_regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, RepetitionPenaltyLogitsProcessor

GAP = 2e-3
VOCAB = 272  # 256 bytes and some special tokens: models/tokenizer.json
LENGTHS = [5, 31, 150]
N_GREEDY = 64
PENALTY = 1.3

BASE = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5, initializer_range=0.35,
            bos_token_id=256, eos_token_id=257, attention_dropout=0.0)
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# name: architecture, dtype, changes to BASE, changes that must change the text, spelling of rope in config.json
FAMILIES = {
    "llama2": ("llama", torch.float16, dict(num_key_value_heads=4, hidden_size=64), [], "legacy"),
    "llama31": ("llama", torch.bfloat16, dict(rope_theta=500000.0, rope_scaling=dict(LLAMA3, factor=8.0)),
                [dict(rope_scaling=None)], "legacy"),
    "llama32": ("llama", torch.bfloat16,
                dict(rope_theta=500000.0, rope_scaling=dict(LLAMA3, factor=32.0), tie_word_embeddings=True),
                [dict(rope_scaling=None)], "new"),
    "llama_bias": ("llama", torch.float32,
                   dict(attention_bias=True, mlp_bias=True, rope_scaling={"rope_type": "linear", "factor": 4.0}),
                   [dict(rope_scaling=None), "bias"], "type"),
    "mistral": ("mistral", torch.bfloat16, dict(sliding_window=32, head_dim=32), [dict(sliding_window=None)], "legacy"),
    "qwen2": ("qwen2", torch.bfloat16, dict(tie_word_embeddings=True, use_sliding_window=False, sliding_window=8, rope_theta=1e6),
              ["bias"], "legacy"),
    "qwen25_long": ("qwen2", torch.bfloat16,
                    dict(use_sliding_window=True, sliding_window=24, max_window_layers=1, rope_theta=1e6,
                         max_position_embeddings=64,
                         rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
                    [dict(use_sliding_window=False, sliding_window=None, layer_types=["full_attention"] * 3),
                     dict(rope_scaling=None), "bias"], "legacy"),
    "qwen3": ("qwen3", torch.bfloat16,
              dict(head_dim=32, tie_word_embeddings=True, use_sliding_window=True, sliding_window=40,
                   layer_types=["full_attention", "sliding_attention", "full_attention"], rope_theta=1e6),
              [dict(layer_types=["full_attention"] * 3), "norm"], "new"),
}


def prompts():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in LENGTHS]


def config_of(kind, changes):
    fields = dict(BASE, **changes)
    if kind == "qwen2":  # hidden_size by heads
        fields.pop("head_dim")
        fields["hidden_size"] = 64
    rope = fields.pop("rope_scaling", None)
    theta = fields.pop("rope_theta", 10000.0)
    fields["rope_parameters"] = dict(rope or {"rope_type": "default"}, rope_theta=theta)
    return AutoConfig.for_model(kind, **fields)


def make_model(kind, dtype, changes, seed):
    torch.manual_seed(seed)
    config = config_of(kind, changes)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.5)
            elif "norm" in name:
                p.normal_(1, 0.3)
            p.copy_(p.to(dtype).float())
    model.tie_weights()
    return model


@torch.no_grad()
def run(model):
    def text(prompt, processor):
        ids, gaps, first = list(prompt), [], None
        for _ in range(N_GREEDY):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            first = logits if first is None else first
            scores = processor(torch.tensor([ids]), logits[None].clone())[0]
            top = torch.topk(scores, 2).values
            gaps.append(float(top[0] - top[1]))
            ids.append(int(torch.argmax(scores)))
        return ids[len(prompt):], first, min(gaps)

    out = []
    for prompt in prompts():
        greedy, logits, gap = text(prompt, lambda ids, scores: scores)
        penalized, _, other_gap = text(prompt, RepetitionPenaltyLogitsProcessor(PENALTY))
        out.append({"prompt": prompt, "logits": [round(float(x), 5) for x in logits], "greedy": greedy,
                    "penalized": penalized, "gap": min(gap, other_gap)})
    return out


def changed(model, kind, changes, without):
    """The model without what makes it special."""
    other_changes = dict(changes)
    if isinstance(without, dict):
        other_changes.update(without)
    config = config_of(kind, other_changes)
    other = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    state = copy.deepcopy(model.state_dict())
    for name in state:
        if without == "bias" and name.endswith("bias"):
            state[name].zero_()
        if without == "norm" and ("q_norm" in name or "k_norm" in name):
            state[name].fill_(1)
    other.load_state_dict(state)
    return other


def spell(path, spelling):
    """config.json as older transformers and model authors wrote it."""
    config = json.load(open(path))
    for key in ("transformers_version", "architectures_version"):
        config.pop(key, None)
    if spelling != "new":
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        if spelling == "type":
            config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
        config["torch_dtype"] = config.pop("dtype")
        if config["model_type"] == "qwen2":
            config.pop("layer_types", None)
    json.dump(config, open(path, "w"), indent=1, sort_keys=True)


def tokenizer():
    """Every byte is a token, its id the byte; BOS, EOS. So that an engine can run the checkpoints."""
    alphabet = {}
    for byte in range(256):
        text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))[0][0] \
            if byte < 128 else None
        alphabet[byte] = text
    others = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {a for a in alphabet.values() if a})
    high = [chr(c) for c in range(161, 256) if c != 173]  # bytes that stand for themselves
    rest = iter([c for c in others if c not in high])
    for byte in range(128, 256):
        alphabet[byte] = chr(byte) if chr(byte) in high else next(rest)
    made = Tokenizer(models.BPE(vocab={alphabet[b]: b for b in range(256)}, merges=[]))
    split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers_regex(split), "isolated", False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True)])
    for text in ("hello", "é😀\n\x7f"):
        assert made.encode(text).ids == list(text.encode()), made.encode(text).ids
    return made


def main():
    out = sys.argv[1]
    os.makedirs(os.path.join(out, "models"), exist_ok=True)
    tokenizer().save(os.path.join(out, "models", "tokenizer.json"), pretty=False)
    goldens = {"made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, float32", "models": {}}
    for name, (kind, dtype, changes, specials, spelling) in FAMILIES.items():
        for seed in range(1000):
            model = make_model(kind, dtype, changes, seed)
            cases = run(model)
            if min(c["gap"] for c in cases) < GAP:
                continue
            if all(len(set(c["greedy"])) >= 12 for c in cases):
                break
        else:
            raise SystemExit(f"{name}: no seed")
        for special in specials:
            other = run(changed(model, kind, changes, special))
            differ = [a["greedy"] != b["greedy"] for a, b in zip(cases, other)]
            print(f"{name} without {special}: texts differ {differ}")
            assert differ[-1], f"{name}: {special} changes nothing"
        folder = os.path.join(out, "models", name)
        shutil.rmtree(folder, ignore_errors=True)
        model.to(dtype).save_pretrained(folder, max_shard_size="40KB" if name == "mistral" else "5GB")
        spell(os.path.join(folder, "config.json"), spelling)
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
        print(f"{name}: seed {seed}, smallest gap {min(c['gap'] for c in cases):.4f}, {size} bytes, {sorted(os.listdir(folder))}")
        goldens["models"][name] = [{k: c[k] for k in ("prompt", "logits", "greedy", "penalized")} for c in cases]
    with open(os.path.join(out, "model_goldens.json"), "w") as file:
        json.dump(goldens, file, separators=(",", ":"))
        file.write("\n")


main()
