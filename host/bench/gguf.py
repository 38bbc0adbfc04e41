"""A model's folder as a GGUF file, which llama.cpp reads; needs numpy.

The folder is one of Hugging Face: config.json of a LlamaForCausalLM or Qwen3ForCausalLM without biases, weights in
BF16, F16 or F32, and, if the model is to read text, tokenizer.json of the byte-level BPE kind.

config.json -> shapes of all tensors, metadata    every tensor must be there with its shape, and no other
tokenizer.json -> metadata
*.safetensors -> rows, a few at a time -> BF16, blocks of Q8_0 or Q4_0, or F32 for norms

The matrices of the layers get the type that is asked for. Embeddings and the output head stay BF16, as in quantized
checkpoints that people publish; `head` includes an output head that is not the embedding. Blocks are rounded as ggml's
reference functions round them.

Sources: ggml, docs/gguf.md (the layout), src/ggml-quants.c (quantize_row_q8_0_ref, quantize_row_q4_0_ref); llama.cpp,
conversion/llama.py (the order of q and k), src/llama-vocab.cpp (the names of pre-tokenizers).
"""
import contextlib
import math
import os
import struct
import sys

import numpy as np

SDK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../sdk")
sys.path[:0] = [os.path.join(SDK, "zoo/recipe"), os.path.join(SDK, "tools")]
from pickle_to_safetensors import Refused, is_count, kind_of, open_regular, quote, refuse, sync  # noqa: E402,F401
from quantize import (CONFIG, FLOATS, read_config, read_exactly, read_folder, read_object,  # noqa: E402
                      to_bfloat16, to_float32)

ALIGNMENT = 32
BLOCK = 32  # inputs that share a scale
PIECE_VALUES = 1 << 20  # of a matrix that are in memory at once
INT_MAX = 2**31 - 1
# Numbers of ggml: of a tensor's type, and of a file's (llama_ftype).
TYPES = {"f32": (0, 0), "q4_0": (2, 2), "q8_0": (8, 7), "bf16": (30, 32)}
UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
FORMAT = {UINT32: "<I", FLOAT32: "<f", BOOL: "<?", INT32: "<i"}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # kinds of tokens


# --- Rounding


def inverse(d):
    """1 / d; 0 where d is 0, or so small that this would be infinite: as float16 d is 0 there."""
    with np.errstate(divide="ignore", over="ignore"):
        found = np.float32(1) / d
    return np.where(np.isfinite(found), found, np.float32(0))


def scales_as_stored(d, where):
    with np.errstate(over="ignore"):
        stored = d.astype("<f2")
    if not np.isfinite(stored).all():
        refuse(where, f"a weight for which a scale of {d[~np.isfinite(stored)][0]:g} is needed",
               "scales of at most 65504: float16 holds no larger ones")
    return stored


def to_q8_0(rows, where):
    """Blocks of 32: d as float16, 32 codes from -127 to 127."""
    x = rows.reshape(-1, BLOCK)
    d = np.abs(x).max(1) / np.float32(127)
    blocks = np.empty(len(x), np.dtype([("d", "<f2"), ("codes", "i1", BLOCK)]))
    blocks["d"] = scales_as_stored(d, where)
    steps = (x * inverse(d)[:, None]).astype(np.float64)  # the sum with 0.5 is exact, as roundf() demands
    blocks["codes"] = np.copysign(np.floor(np.abs(steps) + 0.5), steps)
    return blocks


def to_q4_0(rows, where):
    """Blocks of 32: d as float16, and codes 0 to 15, of which 8 means 0; code i is in the low half of byte i, and
    code i + 16 in its high half. The first weight of the largest size becomes -8 d, so d may be negative."""
    x = rows.reshape(-1, BLOCK)
    largest = x[np.arange(len(x)), np.abs(x).argmax(1)]
    d = np.where(largest == 0, np.float32(0), largest) / np.float32(-8)
    blocks = np.empty(len(x), np.dtype([("d", "<f2"), ("codes", "u1", BLOCK // 2)]))
    blocks["d"] = scales_as_stored(d, where)
    codes = np.minimum((x * inverse(d)[:, None] + np.float32(8.5)).astype(np.int8), 15).astype(np.uint8)
    blocks["codes"] = codes[:, :BLOCK // 2] | codes[:, BLOCK // 2:] << 4
    return blocks


ENCODE = {"f32": lambda rows, _: rows, "bf16": lambda rows, _: to_bfloat16(rows), "q8_0": to_q8_0, "q4_0": to_q4_0}


def bytes_of(kind, count):
    return count // BLOCK * {"q8_0": 34, "q4_0": 18}[kind] if kind in ("q8_0", "q4_0") else \
        count * {"f32": 4, "bf16": 2}[kind]


# --- What config.json says


class Config:
    def __init__(self, folder):
        self.where = quote(os.path.join(folder, CONFIG), 400)
        self.values = read_config(folder)
        names = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}
        found = self.values.get("architectures")
        if not (isinstance(found, list) and len(found) == 1 and isinstance(found[0], str) and found[0] in names):
            refuse(f"{self.where}, architectures", quote(found), f"a list of one of {', '.join(names)}")
        self.arch = names[found[0]]
        self.is_qwen3 = self.arch == "qwen3"
        # What is not converted because the reader would compute something else.
        for key, expected in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False),
                              ("use_sliding_window", False), ("partial_rotary_factor", 1)):
            if self.values.get(key, expected) not in (expected, None):
                refuse(f"{self.where}, {key}", quote(self.values[key]), f"{expected}: no other is converted")
        self.hidden, self.layers = self.whole("hidden_size"), self.whole("num_hidden_layers")
        self.ffn, self.vocab = self.whole("intermediate_size"), self.whole("vocab_size")
        self.heads = self.whole("num_attention_heads")
        self.kv_heads = self.whole("num_key_value_heads", self.heads)
        self.head_dim = self.whole("head_dim", 128 if self.is_qwen3 else self.hidden // self.heads)
        if self.head_dim % 2:
            refuse(f"{self.where}, head_dim", str(self.head_dim), "an even number")
        self.context = self.whole("max_position_embeddings", 2048)
        self.epsilon = self.number(self.values, "rms_norm_eps", 1e-6, self.where)
        self.tied = self.values.get("tie_word_embeddings", False)
        if not isinstance(self.tied, bool):
            refuse(f"{self.where}, tie_word_embeddings", kind_of(self.tied), "true or false")
        self.read_rope()

    def whole(self, key, default=None):
        found = default if self.values.get(key) is None else self.values[key]
        if type(found) is not int or not 1 <= found <= INT_MAX:
            refuse(f"{self.where}, {key}", kind_of(found), f"a whole number from 1 to {INT_MAX}")
        return found

    def number(self, values, key, default, where):
        found = default if values.get(key) is None else values[key]
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 1e-30 <= found <= 1e30:
            refuse(f"{where}, {key}", kind_of(found), "a number above 0")
        return float(found)

    def read_rope(self):
        key = "rope_parameters" if self.values.get("rope_parameters") else "rope_scaling"
        rope, where = self.values.get(key) or {}, f"{self.where}, {key}"
        if not isinstance(rope, dict):
            refuse(where, kind_of(rope), "null or an object")
        theta = self.number(self.values, "rope_theta", 10000.0, self.where)
        self.theta = self.number(rope, "rope_theta", theta, where)
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "linear", "llama3"):
            refuse(f"{where}, rope_type", quote(kind), "default, linear or llama3: no other is converted")
        self.rope_divisors, self.rope_factor = None, None
        if kind == "linear":
            self.rope_factor = self.number(rope, "factor", None, where)
        elif kind == "llama3":
            self.rope_divisors = self.llama3_divisors(*(self.number(rope, each, None, where) for each in (
                "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")), where)

    def llama3_divisors(self, factor, low, high, original, where):
        """By what the frequency of each pair of a head is divided: 1 for short waves, `factor` for long ones."""
        if not high > low:
            refuse(f"{where}, high_freq_factor", f"{high:g}", f"more than low_freq_factor {low:g}")
        found = []
        for i in range(0, self.head_dim, 2):
            wave = 2 * math.pi * self.theta**(i / self.head_dim)
            smooth = min(max((original / wave - low) / (high - low), 0), 1)
            found.append(1 / ((1 - smooth) / factor + smooth))
        return np.array(found, "<f4")

    def tensors(self):
        """(name in the folder, name in the file, shape, heads whose rows change their order or 0)"""
        yield "model.embed_tokens.weight", "token_embd.weight", [self.vocab, self.hidden], 0
        for n in range(self.layers):
            q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
            # The halves of a head's rotated pairs are neighbors in `llama`; in `qwen3` they stay apart.
            turned_q, turned_k = (0, 0) if self.is_qwen3 else (self.heads, self.kv_heads)
            some = [("input_layernorm", "attn_norm", [self.hidden], 0),
                    ("self_attn.q_proj", "attn_q", [q, self.hidden], turned_q),
                    ("self_attn.k_proj", "attn_k", [kv, self.hidden], turned_k),
                    ("self_attn.v_proj", "attn_v", [kv, self.hidden], 0),
                    ("self_attn.o_proj", "attn_output", [self.hidden, q], 0),
                    ("post_attention_layernorm", "ffn_norm", [self.hidden], 0),
                    ("mlp.gate_proj", "ffn_gate", [self.ffn, self.hidden], 0),
                    ("mlp.up_proj", "ffn_up", [self.ffn, self.hidden], 0),
                    ("mlp.down_proj", "ffn_down", [self.hidden, self.ffn], 0)]
            if self.is_qwen3:
                some += [("self_attn.q_norm", "attn_q_norm", [self.head_dim], 0),
                         ("self_attn.k_norm", "attn_k_norm", [self.head_dim], 0)]
            for name, name_out, shape, heads in some:
                yield f"model.layers.{n}.{name}.weight", f"blk.{n}.{name_out}.weight", shape, heads
        yield "model.norm.weight", "output_norm.weight", [self.hidden], 0
        if not self.tied:
            yield "lm_head.weight", "output.weight", [self.vocab, self.hidden], 0

    def metadata(self):
        yield "context_length", UINT32, self.context
        yield "embedding_length", UINT32, self.hidden
        yield "block_count", UINT32, self.layers
        yield "feed_forward_length", UINT32, self.ffn
        yield "attention.head_count", UINT32, self.heads
        yield "attention.head_count_kv", UINT32, self.kv_heads
        yield "attention.key_length", UINT32, self.head_dim
        yield "attention.value_length", UINT32, self.head_dim
        yield "attention.layer_norm_rms_epsilon", FLOAT32, self.epsilon
        yield "rope.dimension_count", UINT32, self.head_dim
        yield "rope.freq_base", FLOAT32, self.theta
        if self.rope_factor is not None:
            yield "rope.scaling.type", STRING, "linear"
            yield "rope.scaling.factor", FLOAT32, self.rope_factor
        yield "vocab_size", UINT32, self.vocab


# --- The tokenizer

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
# What splits a text, and whether a word that is a token is taken as it is -> the name in llama.cpp.
PRE_TOKENIZERS = {(WORDS % "{1,3}", True): "llama-bpe", (WORDS % "{1,3}", False): "dbrx",
                  (WORDS % "", False): "qwen2", (None, False): "gpt-2"}


class Tokenizer:
    def __init__(self, path, vocab_size, config):
        self.where, self.config = quote(path, 400), config
        self.top = read_object(path)
        self.model = self.part(self.top, "model", "BPE")
        for key in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout"):
            if self.model.get(key):
                refuse(f"{self.where}, model.{key}", quote(self.model[key]), "none: byte-level BPE")
        if self.top.get("normalizer") is not None:
            self.part(self.top, "normalizer", "NFC")  # which changes no text that is in this form already
        self.pre = self.read_pre_tokenizer()
        self.tokens, self.kinds = self.read_tokens(vocab_size)
        self.merges = self.read_merges()
        self.bos = self.read_first_token()

    def part(self, owner, key, kind):
        found = owner.get(key)
        if not isinstance(found, dict) or found.get("type") != kind:
            refuse(f"{self.where}, {key}", quote(found.get("type")) if isinstance(found, dict) else kind_of(found),
                   f'an object with "type": "{kind}"; a folder without tokenizer.json makes a file without text')
        return found

    def list_of(self, owner, key, where=None):
        found = owner.get(key)
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            refuse(f"{self.where}, {where or key}", kind_of(found), "a list of objects")
        return found

    def read_pre_tokenizer(self):
        where, pre = f"{self.where}, pre_tokenizer", self.top.get("pre_tokenizer")
        parts = [pre]
        if isinstance(pre, dict) and pre.get("type") == "Sequence":
            parts = self.list_of(pre, "pretokenizers", "pre_tokenizer.pretokenizers")
        pattern = None
        if len(parts) == 2 and parts[0].get("type") == "Split" and parts[0].get("behavior") == "Isolated":
            found = parts[0].get("pattern")
            pattern = found.get("Regex") if isinstance(found, dict) and not parts[0].get("invert") else False
            parts = parts[1:]
        key = (pattern if isinstance(pattern, (str, type(None))) else False, bool(self.model.get("ignore_merges")))
        last = parts[0] if len(parts) == 1 and isinstance(parts[0], dict) else {}
        if (last.get("type") != "ByteLevel" or last.get("add_prefix_space") is not False or key not in PRE_TOKENIZERS
                or last.get("use_regex", True) is not (pattern is None)):
            refuse(where, quote(pre, 200), "one that llama.cpp has a name for: that of Llama 3, Qwen 2 or GPT-2")
        return PRE_TOKENIZERS[key]

    def read_tokens(self, vocab_size):
        vocab = self.model.get("vocab")
        if not isinstance(vocab, dict):
            refuse(f"{self.where}, model.vocab", kind_of(vocab), "{token: number, ...}")
        tokens, kinds = [None] * vocab_size, [UNUSED] * vocab_size

        def put(where, number, text, kind, is_new):
            if not is_count(number) or number >= vocab_size:
                refuse(where, kind_of(number), f"a number below the model's vocab_size {vocab_size}")
            if not isinstance(text, str) or tokens[number] not in ((None,) if is_new else (None, text)):
                refuse(where, quote(text), f"another number: {number} is {quote(tokens[number])}")
            tokens[number], kinds[number] = text, kind
        for text, number in vocab.items():
            put(f"{self.where}, model.vocab, {quote(text)}", number, text, NORMAL, True)
        added = self.list_of(self.top, "added_tokens") if self.top.get("added_tokens") is not None else []
        for at, each in enumerate(added):
            put(f"{self.where}, added_tokens[{at}]", each.get("id"), each.get("content"),
                CONTROL if each.get("special") is True else USER_DEFINED, False)
        return [f"[PAD{at}]" if text is None else text for at, text in enumerate(tokens)], kinds

    def read_merges(self):
        merges = self.model.get("merges")
        if not isinstance(merges, list):
            refuse(f"{self.where}, model.merges", kind_of(merges), 'a list of "A B" or ["A", "B"]')
        found = []
        for at, merge in enumerate(merges):
            pair = merge.split(" ") if isinstance(merge, str) else merge
            if (not isinstance(pair, list) or len(pair) != 2 or
                    not all(isinstance(each, str) and each and " " not in each for each in pair)):
                refuse(f"{self.where}, model.merges[{at}]", quote(merge), '"A B" or ["A", "B"]')
            found.append(" ".join(pair))
        return found

    def read_first_token(self):
        """The number of the token that begins every text, or None."""
        post = self.top.get("post_processor")
        parts = [post] if post is not None else []
        if isinstance(post, dict) and post.get("type") == "Sequence":
            parts = self.list_of(post, "processors", "post_processor.processors")
        for part in parts:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "ByteLevel":
                continue
            single = part.get("single") if kind == "TemplateProcessing" else None
            names = [next(iter(each), None) if isinstance(each, dict) else None for each in single] \
                if isinstance(single, list) else None
            if names == ["Sequence"]:
                continue
            first = single[0]["SpecialToken"] if names == ["SpecialToken", "Sequence"] else None
            text = first.get("id") if isinstance(first, dict) else None
            if not isinstance(text, str) or text not in self.tokens:
                refuse(f"{self.where}, post_processor", quote(part, 200),
                       "ByteLevel, or a TemplateProcessing that puts at most one token in front of a text")
            return self.tokens.index(text)
        return None

    def metadata(self):
        yield "model", STRING, "gpt2"
        yield "pre", STRING, self.pre
        yield "tokens", (ARRAY, STRING), self.tokens
        yield "token_type", (ARRAY, INT32), self.kinds
        yield "merges", (ARRAY, STRING), self.merges
        yield "add_bos_token", BOOL, self.bos is not None
        if self.bos is not None:
            yield "bos_token_id", UINT32, self.bos
        ends = self.config.values.get("eos_token_id")
        for name, end in zip(("eos", "eot", "eom"), ends if isinstance(ends, list) else [ends]):
            if end is None:
                continue
            if not is_count(end) or end >= len(self.tokens):
                refuse(f"{self.config.where}, eos_token_id", kind_of(end), f"numbers below {len(self.tokens)}")
            yield f"{name}_token_id", UINT32, end


# --- Writing


def text_bytes(text, where):
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        refuse(where, quote(text), "a text without halves of surrogates")
    return struct.pack("<Q", len(data)) + data


def value_bytes(kind, value, where):
    if kind == STRING:
        return text_bytes(value, where)
    if isinstance(kind, tuple):
        items = b"".join(value_bytes(kind[1], each, where) for each in value)
        return struct.pack("<IQ", kind[1], len(value)) + items
    return struct.pack(FORMAT[kind], value)


class Planned:
    """A tensor of the file: where its values are read and how they are written."""

    def __init__(self, name, shape, kind, values=None, file=None, stored=None, heads=0, where=""):
        self.name, self.shape, self.kind, self.values = name, shape, kind, values
        self.file, self.stored, self.heads, self.where = file, stored, heads, where
        self.bytes = bytes_of(kind, math.prod(shape))

    def pieces(self, source):
        if self.values is not None:
            yield self.values
            return
        row = math.prod(self.shape[1:])
        rows_of_head = self.shape[0] // self.heads if self.heads else 1
        some = max(1, PIECE_VALUES // (row * rows_of_head)) * rows_of_head
        item = 4 if self.stored.dtype == "F32" else 2
        for first in range(0, self.shape[0], some):
            count = min(some, self.shape[0] - first)
            data = read_exactly(source, self.stored.begin + first * row * item, count * row * item, self.where)
            rows = to_float32(data, self.stored.dtype).reshape(count, row)
            if not np.isfinite(rows).all():
                at, column = np.argwhere(~np.isfinite(rows))[0]
                refuse(f"{self.where}, row {first + at}, column {column}", str(rows[at, column]), "a finite number")
            if self.heads:
                rows = rows.reshape(-1, 2, rows_of_head // 2, row).swapaxes(1, 2)
            yield ENCODE[self.kind](np.ascontiguousarray(rows), self.where)


def plan(folder, config, kind, head):
    """The tensors in the order of the file, by the files that have them."""
    there = {name: (file, stored) for file, tensors in read_folder(folder).items()
             for name, stored in tensors.items()}
    planned = []
    for name, name_out, shape, heads in config.tensors():
        if name not in there:
            refuse(quote(folder, 400), f"no tensor {quote(name)}", f"it, of shape {shape}: {config.where} asks for it")
        file, stored = there.pop(name)
        where = f"{quote(os.path.join(folder, file), 400)}, tensor {quote(name)}"
        if stored.shape != shape:
            refuse(f"{where}, shape", quote(stored.shape), f"{shape}, by {config.where}")
        if stored.dtype not in FLOATS:
            refuse(f"{where}, dtype", stored.dtype, f"one of {', '.join(FLOATS)}")
        is_quantized = name_out.startswith("blk.") or head and name == "lm_head.weight"
        of_this = "f32" if len(shape) == 1 else kind if is_quantized else "bf16"
        if of_this in ("q8_0", "q4_0") and shape[1] % BLOCK:
            refuse(where, f"{shape[1]} inputs (shape {shape})", f"whole blocks of {BLOCK} for {kind}")
        planned.append(Planned(name_out, shape, of_this, None, file, stored, heads, where))
    for name, (file, _) in there.items():
        # Some folders keep a copy of tied embeddings, and frequencies that follow from config.json.
        if not (config.tied and name == "lm_head.weight") and not name.endswith(".rotary_emb.inv_freq"):
            refuse(f"{quote(os.path.join(folder, file), 400)}, tensor {quote(name)}", "it",
                   "no tensor of this name: it would be left out")
    if config.rope_divisors is not None:
        planned.append(Planned("rope_freqs.weight", [len(config.rope_divisors)], "f32", config.rope_divisors))
    return planned


def head_of_file(folder, config, kind, planned):
    entries = [("general.architecture", STRING, config.arch),
               ("general.name", STRING, os.path.basename(os.path.abspath(folder))),
               ("general.file_type", UINT32, TYPES[kind][1]), ("general.quantization_version", UINT32, 2)]
    entries += [(f"{config.arch}.{key}", *entry) for key, *entry in config.metadata()]
    path = os.path.join(folder, "tokenizer.json")
    tokens = Tokenizer(path, config.vocab, config).metadata() if os.path.lexists(path) else \
        [("model", STRING, "no_vocab")]
    entries += [(f"tokenizer.ggml.{key}", *entry) for key, *entry in tokens]
    data = [b"GGUF", struct.pack("<IQQ", 3, len(planned), len(entries))]
    for key, type_, value in entries:
        number = type_[0] if isinstance(type_, tuple) else type_
        data += [text_bytes(key, key), struct.pack("<I", number),
                 value_bytes(type_, value, f"{quote(folder, 400)}, {key}")]
    at = 0
    for each in planned:
        shape = each.shape[::-1]  # the dimension of neighbors first
        data += [text_bytes(each.name, each.name),
                 struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TYPES[each.kind][0], at)]
        at += -(-each.bytes // ALIGNMENT) * ALIGNMENT
    data = b"".join(data)
    return data + bytes(-len(data) % ALIGNMENT), at


@contextlib.contextmanager
def file_when_complete(path):
    """A new file that gets its name when all is written; nothing stays otherwise."""
    def check():
        if os.path.lexists(path):
            refuse(quote(path, 400), "something of this name", "a name that is not taken")
    check()
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.part")
    with open(temporary, "xb") as file:
        try:
            yield file
            sync(file)
            check()
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def convert(folder, out, kind, head=False):
    """Writes the file `out`, whose layers have the type `kind`: bf16, q8_0 or q4_0. -> its bytes

    Memory does not grow with the model. The disk's space is taken before anything is written.
    """
    config = Config(folder)
    planned = plan(folder, config, kind, head)
    head_bytes, size = head_of_file(folder, config, kind, planned)
    with file_when_complete(out) as file, contextlib.ExitStack() as opened:
        os.posix_fallocate(file.fileno(), 0, len(head_bytes) + size)
        file.write(head_bytes)
        sources = {}
        for each in planned:
            if each.file is not None and each.file not in sources:
                sources[each.file] = opened.enter_context(open_regular(os.path.join(folder, each.file)))
            for piece in each.pieces(sources.get(each.file)):
                file.write(piece.tobytes())
            file.write(bytes(-each.bytes % ALIGNMENT))
    return len(head_bytes) + size
