#!/usr/bin/env python3
"""Writes tiny quantized checkpoints into quantized/, in the formats that people download, and
quantized_goldens.json: what transformers computes with the weights that the makers' code reads from
them.

usage: make_quantized_goldens.py OUT_FOLDER [NAME ...]
needs `pip install torch transformers compressed-tensors==0.17.1 safetensors psutil` (0.20 no longer reads
g_idx), and the files of autoawq and auto-gptq (`pip install --no-deps --no-build-isolation autoawq
auto-gptq`)

A checkpoint has one or more readings:
  weights         weights as read, nothing else rounded
  inputs          what the format means for a server: the inputs of its layers are rounded as well
  weights_fp8_kv, inputs_fp8_kv   and keys (rotated) and values are rounded with the file's scales
Of each: the logits behind the prompt in float32, 64 greedy tokens, and for each of them the gap between
the two best logits. Where inputs are rounded, a difference in the last bits may move one of them to the
next value of the small type, and then logits differ visibly. Two things make such goldens usable:
  - while the prompt is read, no input is so near to the middle between two values that an error of
    `margin` (of itself, or of its row's largest one) would move it. So the logits behind the prompt can
    be compared as closely as those of the other readings;
  - `noise` says for every greedy token by how much a logit changed at most in JITTERS runs over the same
    text with inputs that were off by up to `margin`. A token whose gap is more than twice its noise is
    decisive: given the text before it, it must come. The tests expect the others too; specd's bits never change.
A checkpoint is made again from the next seed until this holds, enough tokens are decisive, and every
mistake that its format invites (Layer.misread) changes the logits. Where transformers loads a format on
a CPU and reads it alike, it loads the written checkpoint and must agree. It does not read alike: int8
inputs per token (it divides by 127.5, servers by 127), and blocks at an uneven edge (it takes them for
equally large).
"""
import itertools
import json
import os
import shutil
import sys
import zlib

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import compressed_tensors
from quantized_layers import (FP8_MAX, Range, awq, compressed, fp8_blocks, fp8_rows, fp8_scalar, fp8_tensor, gptq)

VOCAB = 272  # 256 bytes and some special tokens: models/tokenizer.json
N_PROMPT, N_GREEDY, JITTERS = 12, 64, 6
N_TOKENS = 12  # different ones in a text
GAP = 2e-3  # where nothing but weights is rounded, so that float32's order of addition cannot decide a token
MARGIN, SMALL_MARGIN = 7e-7, 4e-7  # the small one where many values are rounded
FIRST_NOISE = 5e-4  # behind the prompt: what is tiny may still have moved
N_DECISIVE = 32
MISREAD = 0.02
SPREAD = 0.35  # of the embedding, of the output head
# Of the layers' weights, by family and tied embedding: small enough that errors stay small, large enough
# for texts that are not one word.
LAYER_SPREAD = {("llama", False): 0.125, ("llama", True): 0.16, ("qwen3", False): 0.2, ("qwen3", True): 0.2}
LAYERS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]

SIZES = dict(hidden_size=64, intermediate_size=96)
UNEVEN = dict(hidden_size=144, intermediate_size=160)  # a block of 128 and a part of one
WHOLE_BLOCKS = dict(num_hidden_layers=1, hidden_size=128, num_key_value_heads=4, head_dim=32, intermediate_size=256)
TIED, UNTIED = dict(tie_word_embeddings=True), dict(tie_word_embeddings=False)
FP8 = dict(num_bits=8, type="float", symmetric=True, dynamic=False)
INT8 = dict(num_bits=8, type="int", symmetric=True, dynamic=False)
INT4 = dict(num_bits=4, type="int", symmetric=True, dynamic=False)
PER_TOKEN = dict(strategy="token", dynamic=True)
KV = dict(FP8, strategy="tensor")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def group(weights, inputs=None, targets=("Linear",), layout=None):
    """A config group as llm-compressor writes it."""
    def args(given):
        return None if given is None else {
            "actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "observer": "minmax",
            "observer_kwargs": {}, "strategy": None, **given}
    made = {"targets": list(targets), "weights": args(weights), "input_activations": args(inputs),
            "output_activations": None}
    return {**made, "format": layout} if layout else made


def ct(layout, groups, **others):
    return {"quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed",
            "config_groups": {f"group_{i}": each for i, each in enumerate(groups)}, "ignore": ["lm_head"],
            "kv_cache_scheme": None, "global_compression_ratio": None, **others}


def ct_case(family, layout, weights, inputs=None, dtype=BF16, others=(), **rest):
    return dict(dict(family=family, layer=compressed(weights, inputs, layout, dtype),
                     quantization=ct(layout, [group(weights, inputs)], **dict(others)),
                     transformers="weights" if inputs is None else "inputs"), **rest)


def awq_config(**others):
    return {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": None, **others}


def gptq_config(**others):
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True,
            "true_sequential": True, "static_groups": False, "damp_percent": 0.01, **others}


def auto_round_config(packing, **others):
    return {"quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 32, "sym": True,
            "data_type": "int", "autoround_version": "0.5.1", "low_gpu_mem_usage": True, "seqlen": 512, **others}


MODELOPT_FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}


def modelopt_file(algorithm, kv=None):
    return {"producer": {"name": "modelopt", "version": "0.29.0"},
            "quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": kv, "exclude_modules": ["lm_head"]}}


# `layer`: a function of quantized_layers, or one that chooses it by name (None: stays as it is).
def mixed(name):
    by_name = {"self_attn.q_proj": 0, "self_attn.k_proj": 0, "self_attn.v_proj": 0, "mlp.gate_proj": 1,
               "mlp.up_proj": 1}
    if name in ("lm_head", "model.layers.1.mlp.down_proj"):
        return None
    if name in MIXED[2][2]:
        return MIXED_LAYERS[2]
    return MIXED_LAYERS[by_name.get(name.split(".", 3)[3], 3)]


MIXED = [(dict(FP8, strategy="channel"), dict(FP8, **PER_TOKEN), [r"re:.*self_attn\.(q|k|v)_proj$"], "float-quantized"),
         (dict(INT4, strategy="group", group_size=32), None, [r"re:.*mlp\.(gate|up)_proj$"], "pack-quantized"),
         (dict(INT8, strategy="channel"), dict(INT8, **PER_TOKEN),
          ["model.layers.1.self_attn.o_proj", "model.layers.0.mlp.down_proj"], "int-quantized"),
         (dict(FP8, strategy="channel"), None, ["Linear"], "naive-quantized")]
MIXED_LAYERS = [compressed(weights, inputs, layout) for weights, inputs, _, layout in MIXED]


def overridden(name):
    if name == "lm_head" or name.endswith("o_proj"):
        return None
    return gptq(8, 16) if name.endswith("down_proj") else gptq(4, 32)


def cases():
    for family in ("llama", "qwen3"):
        dtype = {"llama": BF16, "qwen3": F32}[family]
        yield f"ct_fp8_dynamic_{family}", ct_case(
            family, "float-quantized", dict(FP8, strategy="channel"), dict(FP8, **PER_TOKEN), dtype)
        yield f"ct_int8_dynamic_{family}", ct_case(
            family, "int-quantized", dict(INT8, strategy="channel"), dict(INT8, **PER_TOKEN), dtype,
            others=dict(quantization_status="frozen"), transformers=None)  # as older files say
        yield f"ct_int4_{family}", ct_case(
            family, "pack-quantized", dict(INT4, strategy="group", group_size=32), None, BF16)
        yield f"awq_{family}", dict(
            family=family, layer=awq(32), quantization=awq_config(modules_to_not_convert=["lm_head"]), dtype=F16,
            changes=dict(attention_bias=family == "llama"))
        yield f"gptq_{family}", dict(
            family=family, layer=gptq(4, 32, with_g_idx=family == "llama"), quantization=gptq_config(), dtype=F16,
            changes=dict(attention_bias=family == "llama"))
        yield f"ct_fp8_static_{family}", ct_case(
            family, "float-quantized", dict(FP8, strategy="tensor"), dict(FP8, strategy="tensor"),
            others=dict(kv_cache_scheme=group(KV)["weights"]),
            kv=("self_attn.k_scale", "self_attn.v_scale", [1], BF16), changes=TIED)
        yield f"ct_fp8_block_{family}", ct_case(
            family, "float-quantized", dict(FP8, strategy="block", block_structure=[128, 128]),
            dict(FP8, strategy="group", group_size=128, dynamic=True), transformers=None, changes=dict(UNEVEN, **TIED))
        # The least that a configuration says: everything else is the default.
        yield f"ct_fp8_weights_{family}", ct_case(
            family, "naive-quantized", dict(FP8, strategy="tensor"), changes=TIED, quantization={
                "quant_method": "compressed-tensors", "format": "naive-quantized",
                "quantization_status": "compressed", "ignore": ["lm_head"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}})
        yield f"ct_int8_static_{family}", ct_case(
            family, "int-quantized", dict(INT8, strategy="tensor"), dict(INT8, strategy="tensor"), changes=TIED)
        yield f"ct_int8_groups_{family}", ct_case(
            family, "pack-quantized", dict(INT8, strategy="group", group_size=16), changes=TIED)
        yield f"ct_int8_groups_asymmetric_{family}", ct_case(
            family, "pack-quantized", dict(INT8, strategy="group", group_size=32, symmetric=False), changes=TIED)
        yield f"ct_int8_weights_{family}", ct_case(
            family, "int-quantized", dict(INT8, strategy="channel"), changes=TIED)
        yield f"ct_int4_channel_{family}", ct_case(
            family, "pack-quantized", dict(INT4, strategy="channel"), changes=TIED)
        yield f"ct_int4_asymmetric_{family}", ct_case(
            family, "pack-quantized", dict(INT4, strategy="group", group_size=32, symmetric=False), changes=TIED)
        yield f"ct_int4_actorder_{family}", ct_case(
            family, "pack-quantized", dict(INT4, strategy="group", group_size=32, actorder="group"),
            key="compression_config", transformers=None, changes=TIED)
        yield f"modelopt_fp8_channel_{family}", dict(
            family=family, layer=fp8_rows([-1]), changes=TIED,
            files={"hf_quant_config.json": modelopt_file("FP8_PER_CHANNEL_PER_TOKEN")})
        yield f"modelopt_fp8_block_{family}", dict(
            family=family, layer=fp8_blocks(128, 128, modelopt=True, four_dimensions=family == "llama"),
            changes=dict(WHOLE_BLOCKS, **TIED), files={"hf_quant_config.json": modelopt_file("FP8_PB_WO")})
        yield f"fbgemm_fp8_{family}", dict(
            family=family, layer=lambda name: None if name == "lm_head" or ".layers.0.self_attn" in name else FBGEMM,
            by_name=True, quantization={
                "quant_method": "fbgemm_fp8", "activation_scale_ub": 2.0,
                "modules_to_not_convert": ["lm_head"] + [f"model.layers.0.{each}" for each in LAYERS[:4]]})
        yield f"fp8_static_{family}", dict(
            family=family, layer=fp8_scalar([1]),
            kv=("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale", [1], F32), quantization={
                "quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"],
                "kv_cache_scheme": "static"}, changes=TIED)
        yield f"fp8_dynamic_{family}", dict(
            family=family, layer=fp8_scalar([], static=False), changes=TIED, quantization={
                "quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]})
        yield f"awq_channel_{family}", dict(
            family=family, layer=awq(-1, BF16), quantization=awq_config(group_size=-1), changes=TIED)
        yield f"gptq_actorder_{family}", dict(
            family=family, layer=gptq(4, 32, ordered=False), dtype=F16,
            changes=TIED, files={
                "quantize_config.json": {k: v for k, v in gptq_config(desc_act=True).items() if k != "quant_method"}})
        yield f"gptq_asymmetric_{family}", dict(
            family=family, layer=gptq(4, 32, symmetric=False), quantization=gptq_config(sym=False), dtype=F16,
            changes=TIED)
        yield f"gptq_v2_{family}", dict(
            family=family, layer=gptq(4, 32, symmetric=False, version=2, dtype=F16 if family == "qwen3" else BF16),
            dtype=F16, quantization=gptq_config(sym=False, checkpoint_format="gptq_v2"), changes=TIED)
        # lm_head is quantized too.
        yield f"gptq_int8_{family}", dict(
            family=family, layer=gptq(8, -1), quantization=gptq_config(bits=8, group_size=-1, lm_head=True), dtype=F16,
            lm_head=True, changes=UNTIED)
        yield f"auto_round_gptq_{family}", dict(
            family=family, layer=gptq(4, 32, signed_scales=True), dtype=F16, changes=TIED,
            quantization=auto_round_config("auto_round:auto_gptq"))
        yield f"auto_round_awq_{family}", dict(
            family=family, layer=awq(32), dtype=F16, changes=TIED,
            quantization=auto_round_config("auto_round:auto_awq", sym=False))
    # Scales of one value, F32, of no dimension and of one.
    yield "modelopt_fp8_llama", dict(
        family="llama", layer=fp8_scalar([]), kv=("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale", [], F32),
        files={"hf_quant_config.json": modelopt_file("FP8", "FP8")})
    yield "modelopt_fp8_qwen3", dict(
        family="qwen3", layer=fp8_scalar([1]), kv=("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale", [1], F32),
        files={"hf_quant_config.json": modelopt_file("FP8", "FP8")}, quantization={
            "config_groups": {
                "group_0": {"input_activations": MODELOPT_FP8, "weights": MODELOPT_FP8, "targets": ["Linear"]}},
            "ignore": ["lm_head"], "kv_cache_scheme": MODELOPT_FP8, "quant_algo": "FP8",
            "producer": {"name": "modelopt", "version": "0.37.0"}, "quant_method": "modelopt"})
    yield "fp8_block_llama", dict(
        family="llama", layer=fp8_blocks(32, 32), quantization={
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [32, 32],
            "modules_to_not_convert": ["lm_head"]})
    yield "fp8_block_qwen3", dict(
        family="qwen3", layer=fp8_blocks(128, 128, BF16), changes=UNEVEN, quantization={
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]})
    yield "ct_int8_asymmetric_llama", ct_case(
        "llama", "int-quantized", dict(INT8, strategy="channel"), dict(INT8, strategy="tensor", symmetric=False),
        changes=TIED)
    # lm_head is quantized too.
    yield "ct_int8_packed_qwen3", ct_case(
        "qwen3", "pack-quantized", dict(INT8, strategy="channel"), dtype=F16, others=dict(ignore=[]), lm_head=True,
        changes=UNTIED)
    yield "ct_mixed_llama", dict(
        family="llama", layer=mixed, by_name=True, changes=TIED, quantization=ct(
            "mixed-precision", [group(*each) for each in MIXED],
            ignore=["lm_head", r"re:.*layers\.1\.mlp\.down_proj"]))
    yield "gptq_overrides_llama", dict(
        family="llama", layer=overridden, by_name=True, dtype=F16, changes=TIED, quantization=gptq_config(
            dynamic={r"-:.*\.o_proj": {}, r"+:.*\.down_proj.*": {"bits": 8, "group_size": 16}}))


FBGEMM = fp8_rows([-1, 1], 2.0)


def config_of(case):
    family = case["family"]
    architecture, eps, theta = {"llama": ("LlamaForCausalLM", 1e-5, 500000.0),
                                "qwen3": ("Qwen3ForCausalLM", 1e-6, 1e6)}[family]
    return {"architectures": [architecture], "model_type": family, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB, "hidden_act": "silu",
            "max_position_embeddings": 512, "rms_norm_eps": eps, "rope_theta": theta, "rope_scaling": None,
            "tie_word_embeddings": family == "qwen3", "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 256, "eos_token_id": 257, "use_cache": True,
            "torch_dtype": {F16: "float16", BF16: "bfloat16"}[case.get("dtype", BF16)],
            **SIZES, **case.get("changes", {})}


def empty_model(config):
    fields = {k: v for k, v in config.items() if not k.startswith(("architectures", "torch_dtype", "rope"))}
    made = AutoConfig.for_model(**fields, rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]})
    return AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval().float()


def random_model(config, dtype, seed):
    torch.manual_seed(seed)
    model = empty_model(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.normal_(1, 0.3)
            else:
                layer_spread = LAYER_SPREAD[config["model_type"], config["tie_word_embeddings"]]
                spread = layer_spread if ".layers." in name else SPREAD
                p.normal_(0, 0.5 if name.endswith("bias") else spread)
            p.copy_(p.to(dtype).float())
    model.tie_weights()
    return model


class Errors:
    """What rounded() does to its inputs besides: moves them, while there is a generator, and notes whether
    one was close to another value."""
    generator, margin, is_close = None, 0.0, False


def rounded(rounding, x):
    if Errors.generator is not None:
        unit = 2 * torch.rand(x.shape, generator=Errors.generator) - 1
        x = x + Errors.margin * unit * (x.abs() + x.abs().amax(-1, keepdim=True))
    elif rounding.is_close(x, Errors.margin):
        Errors.is_close = True
    return rounding(x)


class RoundedLinear(torch.nn.Module):
    def __init__(self, layer, bias):
        super().__init__()
        self.rounding, self.weight, self.bias = layer.inputs, layer.weight.double(), bias

    def forward(self, x):
        y = (rounded(self.rounding, x) @ self.weight.T).float()
        return y if self.bias is None else y + self.bias


class RoundedCache(DynamicCache):
    def __init__(self, scales):
        super().__init__()
        self.scales = scales

    def update(self, keys, values, layer, *others, **more):
        keys, values = (rounded(fp8_tensor(scale), x).float() for x, scale in zip((keys, values), self.scales[layer]))
        return super().update(keys, values, layer, *others, **more)


@torch.no_grad()
def calibrate(model, config):
    """Ranges of the inputs of every linear layer, and the largest key and value of every layer."""
    seen, largest, hooks = {}, [[0.0, 0.0] for _ in range(config["num_hidden_layers"])], []

    def watch(name):
        def hook(module, inputs):
            low, high = torch.aminmax(inputs[0])
            seen[name] = Range(float(low), float(high))
        return hook

    class Watch(DynamicCache):
        def update(self, keys, values, layer, *others, **more):
            largest[layer] = [float(keys.abs().max()), float(values.abs().max())]
            return super().update(keys, values, layer, *others, **more)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            hooks.append(module.register_forward_pre_hook(watch(name)))
    ids = torch.randint(0, 256, (4, 48), generator=torch.Generator().manual_seed(3))
    model(ids, past_key_values=Watch(), use_cache=True)
    for each in hooks:
        each.remove()
    return seen, largest


@torch.no_grad()
def logits_of(model, ids, scales=None):
    if scales is None:
        return model(torch.tensor([ids]), use_cache=False).logits[0]
    return model(torch.tensor([ids]), past_key_values=RoundedCache(scales), use_cache=True).logits[0]


def read(model, prompt, scales, rounds):
    """None: too close a choice somewhere, or a text that says too little."""
    ids, gaps, first = list(prompt), [], None
    for _ in range(N_GREEDY):
        logits = logits_of(model, ids, scales)[-1]
        first = logits if first is None else first
        top = torch.topk(logits, 2).values
        gaps.append(float(top[0] - top[1]))
        ids.append(int(torch.argmax(logits)))
        if gaps[-1] < GAP and not rounds or ids[-1] == 257:
            return None
    greedy = ids[N_PROMPT:]
    if len(set(greedy)) < N_TOKENS:
        return None
    made = {"logits": [round(float(x), 5) for x in first], "greedy": greedy, "gaps": [round(g, 5) for g in gaps]}
    if not rounds:
        return made
    whole = logits_of(model, ids[:-1], scales)[N_PROMPT - 1:]
    noise = torch.zeros(N_GREEDY)
    for seed in range(JITTERS):
        Errors.generator = torch.Generator().manual_seed(seed)
        noise = torch.maximum(noise, (logits_of(model, ids[:-1], scales)[N_PROMPT - 1:] - whole).abs().amax(1))
    Errors.generator = None
    if noise[0] > FIRST_NOISE or sum(gap > 2 * each for gap, each in zip(gaps, noise.tolist())) < N_DECISIVE:
        return None
    return {**made, "margin": Errors.margin, "noise": [round(each, 5) for each in noise.tolist()]}


def build(case, seed):
    """The checkpoint's tensors, the layers by name, and the float32 model that they stand for."""
    config, dtype = config_of(case), case.get("dtype", BF16)
    model = random_model(config, dtype, seed)
    seen, largest = calibrate(model, config)
    random, layers, tensors = np.random.default_rng(seed), {}, {}
    names = [f"model.layers.{i}.{each}" for i in range(config["num_hidden_layers"]) for each in LAYERS]
    for name in names + (["lm_head"] if case.get("lm_head") else []):
        make = case["layer"](name) if case.get("by_name") else case["layer"]
        if make is not None:
            layers[name] = make(model.get_submodule(name).weight.detach().clone(), seen[name], random)
    for name, p in model.state_dict().items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        layer, _, end = name.rpartition(".")
        if layer not in layers or end != "weight":
            tensors[name] = p.to(dtype).contiguous()
    for name, layer in layers.items():
        model.get_submodule(name).weight.data = layer.weight
        tensors.update({f"{name}.{end}": each.contiguous() for end, each in layer.tensors.items()})
    scales = None
    if "kv" in case:
        *ends, shape, kept = case["kv"]
        scales = [[torch.tensor(0.9 * each / FP8_MAX).to(kept) for each in pair] for pair in largest]
        for i, pair in enumerate(scales):
            tensors.update({f"model.layers.{i}.{end}": each.reshape(shape) for end, each in zip(ends, pair)})
    return config, model, layers, tensors, scales


def readings(model, layers, scales, prompt):
    """None as soon as one of them is None, or an input of the prompt is too close to another value."""
    Errors.margin = MARGIN if scales is None and model.config.hidden_size < 100 else SMALL_MARGIN
    plain = {name: model.get_submodule(name) for name, layer in layers.items() if layer.inputs is not None}
    round_inputs = {name: RoundedLinear(layers[name], module.bias) for name, module in plain.items()}
    ways = [("weights", plain, None)] + ([("weights_fp8_kv", plain, scales)] if scales else [])
    if plain:
        ways += [("inputs", round_inputs, None)] + ([("inputs_fp8_kv", round_inputs, scales)] if scales else [])
    of_integers = {name: each for name, each in round_inputs.items() if not layers[name].inputs.is_fp8}
    if 0 < len(of_integers) < len(plain):
        ways.append(("int8_inputs", of_integers, None))
    made = {}
    for only_prompt in (True, False):
        for name, modules, kv in ways:
            for layer, module in modules.items():
                model.set_submodule(layer, module)
            Errors.is_close = False
            if only_prompt:
                logits_of(model, prompt, kv)
            else:
                made[name] = read(model, prompt, kv, name != "weights")
            for layer, module in plain.items():
                model.set_submodule(layer, module)
            if only_prompt and Errors.is_close or not only_prompt and made[name] is None:
                return None
    return made


@torch.no_grad()
def mistakes(model, layers, prompt, right):
    """By how much each mistake moves a logit."""
    moved = {}
    for mistake in sorted({each for layer in layers.values() for each in layer.misread}):
        for name, layer in layers.items():
            if mistake in layer.misread:
                model.get_submodule(name).weight.data = layer.misread[mistake]
        moved[mistake] = float((logits_of(model, prompt)[-1] - torch.tensor(right["logits"])).abs().max())
        for name, layer in layers.items():
            model.get_submodule(name).weight.data = layer.weight
    return moved


def check_with_transformers(folder, prompt, expected):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=F32, attn_implementation="eager").eval()
    off = float((logits_of(model, prompt)[-1] - torch.tensor(expected["logits"])).abs().max())
    assert off < 5e-4, (folder, off)


def main():
    out = sys.argv[1]
    torch.set_num_threads(1)
    path = os.path.join(out, "quantized_goldens.json")
    goldens = {"made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, "
                          f"compressed-tensors {compressed_tensors.__version__}, float32", "models": {}}
    if len(sys.argv) > 2:
        goldens["models"] = json.load(open(path))["models"]
    for name, case in cases():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        case["name"] = name
        prompt = torch.randint(0, 256, (N_PROMPT,), generator=torch.Generator().manual_seed(5)).tolist()
        first_seed = zlib.crc32(name.encode()) % 1000 * 100000
        for seed in range(first_seed, first_seed + 100000):
            config, model, layers, tensors, scales = build(case, seed)
            made = readings(model, layers, scales, prompt)
            if made is not None:
                break
        else:
            raise SystemExit(f"{name}: no seed")
        moved = mistakes(model, layers, prompt, made["weights"])
        for i, j in itertools.combinations(made, 2):
            moved[f"{i} for {j}"] = max(abs(a - b) for a, b in zip(made[i]["logits"], made[j]["logits"]))
        assert all(each > MISREAD for each in moved.values()), (name, moved)
        folder = os.path.join(out, "quantized", name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        if "quantization" in case:
            config[case.get("key", "quantization_config")] = case["quantization"]
        for file, content in {"config.json": config, **case.get("files", {})}.items():
            with open(os.path.join(folder, file), "w") as to:
                json.dump(content, to, indent=1, sort_keys=True)
                to.write("\n")
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        if case.get("transformers"):
            check_with_transformers(folder, prompt, made[case["transformers"]])
        goldens["models"][name] = {"prompt": prompt, "readings": made}
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
        print(f"{name}: seed {seed}, {size} bytes, mistakes {moved}")
        for reading, each in made.items():
            noise = each.get("noise", [0.0] * N_GREEDY)
            decisive = sum(gap > 2 * n for gap, n in zip(each["gaps"], noise))
            print(f"  {reading}: smallest gap {min(each['gaps'])}, noise {noise[0]} to {max(noise)}, "
                  f"{decisive} tokens decisive", flush=True)
        with open(path, "w") as file:
            json.dump(dict(goldens, models=dict(sorted(goldens["models"].items()))), file, separators=(",", ":"))
            file.write("\n")


main()
