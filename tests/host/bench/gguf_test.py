#!/usr/bin/env python3
"""GGUF files hold the model's values and what llama.cpp needs to know, and hostile folders are refused.

Usage: gguf_test.py SCRIPT ZOO, the paths of gguf.py and of the zoo's models. Files are read here by a reader of its
own, and blocks are compared with those of a slow rounding, one number at a time, by ggml's published rules. SHA_256
is recorded: llama-quantize --pure of llama.cpp made these blocks of the layers of the zoo's model.
"""
import contextlib
import errno
import hashlib
import importlib.util
import json
import math
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import unittest
import unittest.mock

try:
    import numpy as np
except ImportError:
    sys.exit("python3-numpy is missing")

ZOO = os.path.abspath(sys.argv.pop(2))
SCRIPT = os.path.abspath(sys.argv.pop(1))
spec = importlib.util.spec_from_file_location("gguf", SCRIPT)
gguf = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(gguf)

SHA_256 = {"q8_0": "9612b753b5601503b31b76125ee088eda6b844b4fc2c69e2df6f403253985ac7",
           "q4_0": "a59f0a393a802ecd09e90a2cec34bd3fad76a67995fb67a501a67ecef4b120c3"}


# --- The reader


class Reader:
    """All of a file: .values {key: value}, .tensors {name: (type, shape, bytes)}."""
    SIMPLE = {4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q"}
    BLOCKS = {0: (1, 4), 2: (32, 18), 8: (32, 34), 30: (1, 2)}  # values and bytes of a block

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.at = 0
        assert self.take(4) == b"GGUF"
        version, n_tensors, n_values = self.unpack("<I"), self.unpack("<Q"), self.unpack("<Q")
        assert version == 3
        self.values = {}
        for _ in range(n_values):
            key = self.text()
            assert key not in self.values
            self.values[key] = self.value(self.unpack("<I"))
        infos = []
        for _ in range(n_tensors):
            name = self.text()
            shape = [self.unpack("<Q") for _ in range(self.unpack("<I"))][::-1]
            infos.append((name, shape, self.unpack("<I"), self.unpack("<Q")))
        self.at += -self.at % 32
        begin, end, self.tensors = self.at, 0, {}
        for name, shape, kind, offset in infos:
            values, size = self.BLOCKS[kind]
            assert offset % 32 == 0 and offset >= end and offset - end < 32, name  # in order, without gaps
            assert shape[-1] % values == 0 and name not in self.tensors, name
            assert not any(self.data[begin + end:begin + offset])
            end = offset + math.prod(shape) // values * size
            self.tensors[name] = (kind, shape, self.data[begin + offset:begin + end])
        assert len(self.data) == begin + end + -end % 32

    def take(self, count):
        assert self.at + count <= len(self.data)
        self.at += count
        return self.data[self.at - count:self.at]

    def unpack(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self):
        return self.take(self.unpack("<Q")).decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, count = self.unpack("<I"), self.unpack("<Q")
            return [self.value(kind) for _ in range(count)]
        return self.unpack(self.SIMPLE[kind])


# --- The slow rounding. Python's numbers have 53 bits, so that one product, quotient or sum of float32 numbers,
# rounded again to 24 bits, is the one that float32 arithmetic gives.


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bfloat16(x):
    bits, = struct.unpack("<I", struct.pack("<f", x))
    low = bits & 0xFFFF
    up = low > 0x8000 or low == 0x8000 and bits >> 16 & 1
    return (bits >> 16) + up


def slow_inverse(d):
    return float32(1 / d) if abs(d) > 2.0**-127 else 0.0


def slow_q8_0(x):
    d = float32(max(abs(each) for each in x) / float32(127))
    inverse, codes = slow_inverse(d), []
    for each in x:
        steps = float32(each * inverse)
        whole = math.floor(abs(steps))
        whole += abs(steps) - whole >= 0.5
        codes.append(-whole if steps < 0 else whole)
    return struct.pack("<e32b", d, *codes)


def slow_q4_0(x):
    largest = 0.0
    for each in x:
        if abs(each) > abs(largest):
            largest = each
    d = float32(largest / -8)
    codes = [min(15, int(float32(float32(each * slow_inverse(d)) + 8.5))) for each in x]
    return struct.pack("<e16B", d, *(codes[i] | codes[i + 16] << 4 for i in range(16)))


SLOW = {"q8_0": slow_q8_0, "q4_0": slow_q4_0}


# --- A model


CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
          "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 40,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "eos_token_id": [1, 7],
          "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "rope_scaling": None}
LAYER = {"input_layernorm": (64,), "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64),
         "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64), "post_attention_layernorm": (64,),
         "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96)}
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def to_bits(x, dtype):
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "BF16":
        return (x.view(np.uint32) >> 16).astype("<u2").tobytes()
    return x.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()


def from_bits(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32).reshape(shape)


def safetensors(tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def model(dtype="BF16", layer=None, tied=False):
    random = np.random.default_rng(1)
    shapes = {"model.embed_tokens": (40, 64), "model.norm": (64,)}
    for n in range(2):
        shapes.update({f"model.layers.{n}.{name}": shape for name, shape in (layer or LAYER).items()})
    if not tied:
        shapes["lm_head"] = (40, 64)
    return {f"{name}.weight": (dtype, list(shape), to_bits(random.standard_normal(shape) * 0.02, dtype))
            for name, shape in shapes.items()}


def name_in_file(name):
    fixed = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    name = name[:-len(".weight")]
    if name not in fixed:
        _, _, n, rest = name.split(".", 3)
        return f"blk.{n}.{NAMES[rest]}.weight"
    return f"{fixed[name]}.weight"


def turned(x, heads):
    """Rows i and i + half of a head, which are rotated together, as neighbors."""
    half = len(x) // heads // 2
    return np.array([x[h * 2 * half + side * half + i] for h in range(heads) for i in range(half)
                     for side in range(2)])


TOKENIZER = {
    "added_tokens": [{"id": 0, "content": "<s>", "special": True}, {"id": 39, "content": "<x>", "special": False}],
    "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "post_processor": None,
    "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3, "\u0120a": 5}, "merges": [["a", "b"]]}}


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="specd_gguf_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.model, self.out = os.path.join(self.folder, "model"), os.path.join(self.folder, "out.gguf")
        os.mkdir(self.model)
        self.write_config()
        patch = unittest.mock.patch.object(gguf, "sync", lambda file: file.flush())
        patch.start()
        self.addCleanup(patch.stop)

    def write(self, name, data):
        with open(os.path.join(self.model, name), "wb") as file:
            file.write(data)

    def write_config(self, **changes):
        config = {key: value for key, value in {**CONFIG, **changes}.items() if value != "none"}
        self.write("config.json", json.dumps(config).encode())

    def write_model(self, *arguments, more=(), without=None, **options):
        tensors = {**model(*arguments, **options), **dict(more)}
        tensors.pop(without, None)
        self.write("model.safetensors", safetensors(tensors))
        return tensors

    def write_tokenizer(self, **changes):
        self.write("tokenizer.json", json.dumps({**TOKENIZER, **changes}).encode())

    def converted(self, kind="bf16", **options):
        size = gguf.convert(self.model, self.out, kind, **options)
        self.assertEqual(os.path.getsize(self.out), size)
        found = Reader(self.out)
        os.unlink(self.out)
        return found

    def refused(self, *words, kind="bf16"):
        """Refuses with these words in one line, and leaves nothing."""
        with self.assertRaises(gguf.Refused) as caught:
            gguf.convert(self.model, self.out, kind)
        text = str(caught.exception)
        self.assertTrue(text.isascii() and text.isprintable() and len(text) < 1500, text)
        for word in words:
            self.assertIn(word, text)
        self.assertEqual(os.listdir(self.folder), ["model"])


class Values(Folders):
    def expected(self, name, x, heads):
        for module, n in heads.items():
            if module in name:
                return turned(x, n)
        return x

    def test_bf16(self):
        for dtype in ("BF16", "F16", "F32"):
            tensors = self.write_model(dtype)
            found = self.converted()
            self.assertEqual(found.values["general.file_type"], 32)
            self.assertEqual(set(found.tensors), {name_in_file(name) for name in tensors})
            for name, tensor in tensors.items():
                x = self.expected(name, from_bits(tensor), {"q_proj": 4, "k_proj": 2})
                kind, shape, data = found.tensors[name_in_file(name)]
                self.assertEqual(shape, list(x.shape))
                if x.ndim == 1:
                    self.assertEqual((kind, data), (0, x.astype("<f4").tobytes()))
                    continue
                self.assertEqual(kind, 30)
                self.assertEqual(data, struct.pack(f"<{x.size}H", *(bfloat16(each) for each in x.ravel().tolist())))

    def test_blocks(self):
        for kind, number, type_of_file in (("q8_0", 8, 7), ("q4_0", 2, 2)):
            for head in (False, True):
                tensors = self.write_model()
                found = self.converted(kind, head=head)
                self.assertEqual(found.values["general.file_type"], type_of_file)
                for name, tensor in tensors.items():
                    x = self.expected(name, from_bits(tensor), {"q_proj": 4, "k_proj": 2})
                    if x.ndim == 1 or "embed" in name or "lm_head" in name and not head:
                        self.assertEqual(found.tensors[name_in_file(name)][0], 0 if x.ndim == 1 else 30)
                        continue
                    blocks = b"".join(SLOW[kind](block) for block in x.reshape(-1, 32).tolist())
                    self.assertEqual(found.tensors[name_in_file(name)], (number, list(x.shape), blocks))

    def test_blocks_at_the_edges(self):
        ramp = np.arange(-16, 16, dtype=np.float32)
        rows = [ramp * 0, ramp * -0.0, ramp, -ramp, ramp / 2 + 0.5, ramp * np.float32(1e-40), ramp * np.float32(1e-7),
                ramp * np.float32(3e-39), np.where(ramp % 2, 4, -4), np.where(ramp % 2, -4, 4), ramp * 4000,
                np.where(ramp == 0, 127, ramp + 0.5), np.where(ramp == 0, -8, ramp % 8 - 0.5),
                np.where(ramp == 3, 1, 0.49999997 / 127), np.where(ramp == 3, -65504 * 7, 0)]
        random = np.random.default_rng(2)
        rows += list(random.standard_t(2, (200, 32)) * 10.0**random.integers(-30, 4, (200, 1)))
        x = np.array(rows, np.float32)
        for kind, slow in SLOW.items():
            found = gguf.ENCODE[kind](x, "here")
            self.assertEqual(found.dtype.itemsize, gguf.bytes_of(kind, 32))
            for block, row in zip(found, x.tolist()):
                self.assertEqual(block.tobytes().hex(), slow(row).hex(), row)

    def test_blocks_are_those_of_llama_cpp(self):
        for kind, number in (("q8_0", 8), ("q4_0", 2)):
            gguf.convert(os.path.join(ZOO, "pico-target"), self.out, kind)
            found, digest = Reader(self.out), hashlib.sha256()
            for name in sorted(found.tensors):
                if found.tensors[name][0] == number:
                    digest.update(name.encode() + found.tensors[name][2])
            self.assertEqual(digest.hexdigest(), SHA_256[kind])
            os.unlink(self.out)

    def test_shards_and_pieces(self):
        tensors = self.write_model()
        whole = {kind: self.converted(kind) for kind in ("bf16", "q8_0", "q4_0")}
        os.unlink(os.path.join(self.model, "model.safetensors"))
        parts = list(tensors.items())
        names = {"a.safetensors": dict(parts[:5]), "b.safetensors": dict(parts[5:])}
        for name, part in names.items():
            self.write(name, safetensors(part))
        self.write("model.safetensors.index.json", json.dumps(
            {"weight_map": {each: name for name, part in names.items() for each in part}}).encode())
        with unittest.mock.patch.object(gguf, "PIECE_VALUES", 100):  # one row; a head where its rows are turned
            for kind, expected in whole.items():
                self.assertEqual(self.converted(kind).tensors, expected.tensors)

    def test_memory_does_not_grow_with_the_model(self):
        self.write_config(vocab_size=2**16, hidden_size=40, head_dim=10, num_hidden_layers=1, intermediate_size=32)
        layer = {"input_layernorm": (40,), "self_attn.q_proj": (40, 40), "self_attn.k_proj": (20, 40),
                 "self_attn.v_proj": (20, 40), "self_attn.o_proj": (40, 40), "post_attention_layernorm": (40,),
                 "mlp.gate_proj": (32, 40), "mlp.up_proj": (32, 40), "mlp.down_proj": (40, 32)}
        shapes = {"model.embed_tokens": (2**16, 40), "model.norm": (40,), "lm_head": (2**16, 40),
                  **{f"model.layers.0.{name}": shape for name, shape in layer.items()}}
        self.write("model.safetensors", safetensors({
            f"{name}.weight": ("BF16", list(shape), bytes(2 * math.prod(shape))) for name, shape in shapes.items()}))
        with unittest.mock.patch.object(gguf, "PIECE_VALUES", 1 << 14):
            tracemalloc.start()
            gguf.convert(self.model, self.out, "bf16")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        self.assertLess(peak, 1 << 20)  # a matrix has 5 MiB

    def test_qwen3_keeps_its_rows(self):
        self.write_config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=True)
        layer = {**LAYER, "self_attn.q_norm": (16,), "self_attn.k_norm": (16,)}
        tensors = self.write_model(layer=layer, tied=True)
        found = self.converted()
        self.assertEqual(found.values["general.architecture"], "qwen3")
        self.assertEqual(found.values["qwen3.attention.head_count_kv"], 2)
        self.assertEqual(set(found.tensors), {name_in_file(name) for name in tensors})
        for name, tensor in tensors.items():
            data = tensor[2] if len(tensor[1]) == 2 else from_bits(tensor).tobytes()
            self.assertEqual(found.tensors[name_in_file(name)][2], data)


class Metadata(Folders):
    def test_sizes(self):
        self.write_model()
        found = self.converted().values
        llama = {key[len("llama."):]: value for key, value in found.items() if key.startswith("llama.")}
        self.assertEqual(llama, {
            "context_length": 512, "embedding_length": 64, "block_count": 2, "feed_forward_length": 96,
            "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
            "attention.value_length": 16, "attention.layer_norm_rms_epsilon": float32(1e-5),
            "rope.dimension_count": 16, "rope.freq_base": 5e5, "vocab_size": 40})
        self.assertEqual({key: value for key, value in found.items() if not key.startswith("llama.")}, {
            "general.architecture": "llama", "general.name": "model", "general.file_type": 32,
            "general.quantization_version": 2, "tokenizer.ggml.model": "no_vocab"})

    def test_sizes_that_config_json_leaves_out(self):
        self.write_config(head_dim="none", num_key_value_heads="none", rope_theta="none", rms_norm_eps="none")
        self.write_model(layer={**LAYER, "self_attn.k_proj": (64, 64), "self_attn.v_proj": (64, 64)})
        found = self.converted().values
        self.assertEqual([found[f"llama.{key}"] for key in (
            "attention.key_length", "attention.head_count_kv", "rope.freq_base", "attention.layer_norm_rms_epsilon")],
            [16, 4, 10000, float32(1e-6)])

    def test_rope(self):
        self.write_model()
        self.write_config(rope_scaling={"type": "linear", "factor": 4.0})
        found = self.converted().values
        self.assertEqual((found["llama.rope.scaling.type"], found["llama.rope.scaling.factor"]), ("linear", 4))
        rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
        self.write_config(rope_scaling="none", rope_parameters=rope)
        found = self.converted()
        self.assertEqual(found.values["llama.rope.freq_base"], 1e4)
        self.assertNotIn("llama.rope.scaling.type", found.values)
        kind, shape, data = found.tensors["rope_freqs.weight"]
        self.assertEqual((kind, shape), (0, [8]))
        divisors = struct.unpack("<8f", data)
        for i, divisor in enumerate(divisors):  # by transformers' modeling_rope_utils.py
            frequency = 1e4**(-2 * i / 16)
            wave = 2 * math.pi / frequency
            if wave < 1024 / 4:
                scaled = frequency
            elif wave > 1024:
                scaled = frequency / 8
            else:
                smooth = (1024 / wave - 1) / (4 - 1)
                scaled = (1 - smooth) * frequency / 8 + smooth * frequency
            self.assertAlmostEqual(frequency / divisor / scaled, 1, places=6)
        self.assertEqual((divisors[0], divisors[7]), (1, 8))
        self.assertTrue(any(1 < each < 8 for each in divisors))

    def test_the_tokenizer(self):
        self.write_model()
        self.write_tokenizer()
        found = self.converted().values
        ours = {key[len("tokenizer.ggml."):]: value for key, value in found.items() if key.startswith("tokenizer.")}
        tokens = [f"[PAD{n}]" for n in range(40)]
        tokens[0], tokens[1], tokens[2], tokens[3], tokens[5], tokens[39] = "<s>", "a", "b", "ab", "\u0120a", "<x>"
        kinds = [5] * 40
        kinds[0], kinds[1], kinds[2], kinds[3], kinds[5], kinds[39] = 3, 1, 1, 1, 1, 4
        self.assertEqual(ours, {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds,
                                "merges": ["a b"], "add_bos_token": False, "eos_token_id": 1, "eot_token_id": 7})

    def test_the_zoos_tokenizer(self):
        gguf.convert(os.path.join(ZOO, "pico-draft"), self.out, "bf16")
        found = Reader(self.out).values
        with open(os.path.join(ZOO, "pico-draft", "tokenizer.json"), encoding="utf-8") as file:
            theirs = json.load(file)
        self.assertEqual({text: at for at, text in enumerate(found["tokenizer.ggml.tokens"])}, theirs["model"]["vocab"])
        self.assertEqual(found["tokenizer.ggml.merges"], theirs["model"]["merges"])
        self.assertEqual([found[f"tokenizer.ggml.{key}"] for key in (
            "pre", "add_bos_token", "bos_token_id", "eos_token_id")], ["dbrx", True, 0, 1])

    def test_names_of_pre_tokenizers(self):
        self.write_model()
        words = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                 r"|\s*[\r\n]+|\s+(?!\S)|\s+")
        for pattern, whole, name in ((words, True, "llama-bpe"), (words, False, "dbrx"),
                                     (words.replace("{1,3}", ""), False, "qwen2")):
            split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
            self.write_tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level]},
                                 model={**TOKENIZER["model"], "ignore_merges": whole})
            self.assertEqual(self.converted().values["tokenizer.ggml.pre"], name)
            for change in ({"invert": True}, {"behavior": "Removed"}, {"pattern": {"Regex": words + "|x"}},
                           {"pattern": {"String": " "}}, {"pattern": None}, {"pattern": {"Regex": [1]}}):
                self.write_tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [{**split, **change},
                                                                                         byte_level]})
                self.refused("tokenizer.json', pre_tokenizer: found", "one that llama.cpp has a name for")


class Hostile(Folders):
    def test_tensors_that_do_not_fit(self):
        self.write_model(without="model.layers.1.mlp.up_proj.weight")
        self.refused("model': found no tensor 'model.layers.1.mlp.up_proj.weight', expected it, of shape [96, 64]")
        name = "model.layers.1.mlp.up_proj.weight"
        for tensor, words in ((("BF16", [64, 96], bytes(2 * 96 * 64)), "shape: found [64, 96], expected [96, 64]"),
                              (("BF16", [96 * 64], bytes(2 * 96 * 64)), "shape: found [6144], expected [96, 64]"),
                              (("I8", [96, 64], bytes(96 * 64)), "dtype: found I8, expected one of BF16, F16, F32")):
            self.write_model(more={name: tensor})
            self.refused(f"tensor '{name}', {words}")
        for more in ("model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"):
            self.write_model(more={more: ("BF16", [64], bytes(128))})
            self.refused(f"tensor '{more}': found it, expected no tensor of this name")
        self.write_model(more={"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", [8], bytes(32))})
        self.converted()
        self.write_config(num_hidden_layers=2**31 - 1)
        self.refused("found no tensor 'model.layers.2.input_layernorm.weight'")

    def test_rows_that_are_no_whole_blocks(self):
        self.write_config(intermediate_size=80)
        self.write_model(layer={**LAYER, "mlp.gate_proj": (80, 64), "mlp.up_proj": (80, 64),
                                "mlp.down_proj": (64, 80)})
        for kind in ("q8_0", "q4_0"):
            self.refused("tensor 'model.layers.0.mlp.down_proj.weight': found 80 inputs (shape [64, 80]), "
                         f"expected whole blocks of 32 for {kind}", kind=kind)
        self.converted("bf16")

    def test_values_that_are_no_numbers(self):
        for dtype, value, name in (("BF16", np.nan, "nan"), ("F16", np.inf, "inf"), ("F32", -np.inf, "-inf")):
            x = np.zeros((96, 64), np.float32)
            x[70, 5] = value
            self.write_model(more={"model.layers.1.mlp.up_proj.weight": (dtype, [96, 64], to_bits(x, dtype))})
            with unittest.mock.patch.object(gguf, "PIECE_VALUES", 640):
                self.refused("tensor 'model.layers.1.mlp.up_proj.weight', row 70, column 5: found "
                             f"{name}, expected a finite number")
        x = np.full((96, 64), 1e9, np.float32)
        self.write_model(more={"model.layers.1.mlp.up_proj.weight": ("F32", [96, 64], to_bits(x, "F32"))})
        self.refused("found a weight for which a scale of 7.87402e+06 is needed, expected scales of at most 65504",
                     kind="q8_0")
        self.refused("a scale of -1.25e+08", kind="q4_0")

    def test_configurations(self):
        self.write_model()
        for change, words in (
                ({"architectures": ["GPT2LMHeadModel"]}, "architectures: found ['GPT2LMHeadModel'], expected a list"),
                ({"architectures": [[]]}, "architectures: found [[]]"), ({"architectures": "none"}, "found None"),
                ({"hidden_act": "gelu"}, "hidden_act: found 'gelu', expected silu"),
                ({"attention_bias": True}, "attention_bias: found True, expected False"),
                ({"use_sliding_window": True}, "use_sliding_window: found True"),
                ({"hidden_size": 0}, "hidden_size: found the value 0, expected a whole number from 1"),
                ({"hidden_size": "none"}, "hidden_size: found the value None"),
                ({"num_hidden_layers": True}, "num_hidden_layers: found the value True"),
                ({"num_hidden_layers": 2**31}, "num_hidden_layers: found the value 2147483648"),
                ({"vocab_size": 40.0}, "vocab_size: found the value 40.0"),
                ({"head_dim": 15}, "head_dim: found 15, expected an even number"),
                ({"rms_norm_eps": -1}, "rms_norm_eps: found the value -1, expected a number above 0"),
                ({"rms_norm_eps": float("nan")}, "rms_norm_eps: found the value nan"),
                ({"rope_theta": 10**400}, "rope_theta: found the value 1000"),
                ({"tie_word_embeddings": 1}, "tie_word_embeddings: found the value 1, expected true or false"),
                ({"rope_scaling": [1]}, "rope_scaling: found a list of 1, expected null or an object"),
                ({"rope_scaling": {"type": "yarn", "factor": 2}}, "rope_type: found 'yarn', expected default, linear"),
                ({"rope_scaling": {"type": ["linear"]}}, "rope_type: found ['linear']"),
                ({"rope_scaling": {"type": "linear"}}, "factor: found the value None, expected a number above 0"),
                ({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                                   "original_max_position_embeddings": 64}},
                 "high_freq_factor: found 4, expected more than low_freq_factor 4"),
                ({"quantization_config": {}}, "quantization_config: found a dict of 0, expected no such key")):
            self.write_config(**change)
            self.refused("config.json', ", words)
        self.write("config.json", b"[" * 100000)
        self.refused("config.json': found what is no JSON")

    def test_tokenizers(self):
        self.write_model()
        bpe = TOKENIZER["model"]
        for change, words in (
                ({"model": {"type": "Unigram"}}, "model: found 'Unigram', expected an object with \"type\": \"BPE\""),
                ({"model": None}, "model: found the value None"),
                ({"model": {**bpe, "byte_fallback": True}}, "model.byte_fallback: found True, expected none"),
                ({"model": {**bpe, "vocab": []}}, "model.vocab: found a list of 0"),
                ({"model": {**bpe, "vocab": {"a": 40}}}, "model.vocab, 'a': found the value 40, expected a number"),
                ({"model": {**bpe, "vocab": {"a": True}}}, "found the value True"),
                ({"model": {**bpe, "vocab": {"a": -1}}}, "found the value -1"),
                ({"model": {**bpe, "vocab": {"a": 1, "b": 1}}}, "'b': found 'b', expected another number: 1 is 'a'"),
                ({"model": {**bpe, "vocab": {"\ud800": 1}}}, "tokenizer.ggml.tokens: found '\\ud800', expected a text"),
                ({"model": {**bpe, "merges": {}}}, "model.merges: found a dict of 0"),
                ({"model": {**bpe, "merges": ["a b", "a b c"]}}, "model.merges[1]: found 'a b c', expected"),
                ({"model": {**bpe, "merges": [["a"]]}}, "model.merges[0]: found ['a']"),
                ({"model": {**bpe, "merges": [["a", "b c"]]}}, "model.merges[0]: found ['a', 'b c']"),
                ({"model": {**bpe, "merges": [["a", 1]]}}, "model.merges[0]: found ['a', 1]"),
                ({"added_tokens": [1]}, "added_tokens: found a list of 1, expected a list of objects"),
                ({"added_tokens": [{"id": 1, "content": "x"}]}, "added_tokens[0]: found 'x', expected another number"),
                ({"added_tokens": [{"id": 4}]}, "added_tokens[0]: found None"),
                ({"normalizer": {"type": "Lowercase"}}, "normalizer: found 'Lowercase'"),
                ({"pre_tokenizer": None}, "pre_tokenizer: found None"),
                ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [1]}}, "pre_tokenizer.pretokenizers: found a"),
                ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "pre_tokenizer: found"),
                ({"post_processor": 1}, "post_processor: found 1, expected ByteLevel, or a TemplateProcessing"),
                ({"post_processor": {"type": "BertProcessing"}}, "post_processor: found {'type': 'BertProcessing'}"),
                ({"post_processor": {"type": "TemplateProcessing", "single": [
                    {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}]}}, "post_processor: found"),
                ({"post_processor": {"type": "TemplateProcessing", "single": [
                    {"SpecialToken": {"id": "none"}}, {"Sequence": {"id": "A"}}]}}, "post_processor: found")):
            self.write_tokenizer(**change)
            self.refused(words)
        self.write_tokenizer()
        for ends in ([40], "1", [1, True]):
            self.write_config(eos_token_id=ends)
            self.refused("config.json', eos_token_id: found", "expected numbers below 40")

    def test_names_that_are_taken(self):
        self.write_model()
        with open(self.out, "wb") as file:
            file.write(b"mine")
        with self.assertRaises(gguf.Refused) as caught:
            gguf.convert(self.model, self.out, "bf16")
        self.assertIn("out.gguf': found something of this name, expected a name that is not taken",
                      str(caught.exception))
        os.unlink(self.out)

        def meanwhile(file):
            file.flush()
            os.symlink("nowhere", self.out)
        with unittest.mock.patch.object(gguf, "sync", meanwhile), self.assertRaises(gguf.Refused):
            gguf.convert(self.model, self.out, "bf16")
        self.assertEqual(sorted(os.listdir(self.folder)), ["model", "out.gguf"])
        self.assertTrue(os.path.islink(self.out))

    def test_a_disk_that_is_full(self):
        self.write_model()
        size = gguf.convert(self.model, self.out, "bf16")
        os.unlink(self.out)
        program = (f"import sys; sys.dont_write_bytecode = True; sys.path.insert(0, {os.path.dirname(SCRIPT)!r}); "
                   f"import gguf; gguf.convert({self.model!r}, {self.out!r}, 'bf16')")
        for limit in (size - 1, 4096):
            done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            self.assertEqual(done.returncode, 1)
            self.assertIn("File too large", done.stderr)
            self.assertEqual(os.listdir(self.folder), ["model"])
        full = OSError(errno.ENOSPC, "No space left on device")
        with unittest.mock.patch.object(gguf.os, "posix_fallocate", side_effect=full), self.assertRaises(OSError), \
                unittest.mock.patch.object(gguf, "to_float32", side_effect=AssertionError):  # nothing is read yet
            gguf.convert(self.model, self.out, "bf16")
        self.assertEqual(os.listdir(self.folder), ["model"])

    def test_ends_in_the_middle(self):
        self.write_model()
        for error in (KeyboardInterrupt, MemoryError):
            with unittest.mock.patch.object(gguf, "to_float32", side_effect=error), self.assertRaises(error):
                gguf.convert(self.model, self.out, "bf16")
            self.assertEqual(os.listdir(self.folder), ["model"])
        whole = os.path.getsize(os.path.join(self.model, "model.safetensors"))
        real = gguf.plan

        def shrinks(*arguments):
            found = real(*arguments)
            os.truncate(os.path.join(self.model, "model.safetensors"), whole - 10)
            return found
        with unittest.mock.patch.object(gguf, "plan", shrinks):
            self.refused("expected the values that its header lists")


if __name__ == "__main__":
    unittest.main()
