#!/usr/bin/env python3
"""A model's linear layers in 8 or 4 bits, in formats that people publish; needs numpy.

  quantize.py MODEL OUT --format w8a8                INT8, a scale per output
  quantize.py MODEL OUT --format w4a16 --group 64    INT4, a scale per 64 inputs of an output
  quantize.py MODEL OUT --format fp8                 FP8 E4M3, a scale per output
  quantize.py MODEL OUT --format fp8 --block 128     FP8 E4M3, a scale per block of 128 by 128
  --zeros         w4a16: a zero point beside every scale (asymmetric)
  --ignore NAME   leave these modules as they are, default lm_head: "model.layers.0.mlp.down_proj"
                  or "re:PATTERN" for names that begin so; several may follow
  --modules NAME  quantize these, named likewise, instead of the decoder's layers: for the heads of
                  EAGLE, Medusa and others, such as --modules 're:.*'

MODEL is a folder as Hugging Face lays it out: config.json, and model.safetensors or shards with
model.safetensors.index.json, in BF16, F16 or F32. OUT must not exist or be empty; it appears when
all of it is written. It gets the quantized weights in files of the same names, config.json with
quantization_config, and a copy of the other files, except weights in other formats.

Quantized are the matrices of the decoder's layers, "....layers.N.MODULE.weight", and lm_head, or
those that --modules names, unless --ignore names them. Embeddings, norms and biases stay, and so does
every other matrix, which is then listed as ignored. The formats are compressed-tensors' int-quantized,
pack-quantized and float-quantized, with inputs rounded per token in w8a8 and fp8; with --block it is
quant_method fp8.

How values are rounded, w to q * scale:
- 8 bits: the largest |w| that shares a scale becomes the largest code, 127 or 448. With so many codes
  nothing is gained by cutting off large values.
- 4 bits: the scale that makes the sum of squared errors of its group smallest, of 21 between the one
  that the largest |w| asks for and half of it. A few large weights then saturate and the others get
  finer steps. This needs no calibration text, and in groups of 64 of the zoo's model it takes away 22 %
  of the squared error, with --zeros 8 %. One of the 21 maps the largest |w| to -8, the code that 7
  leaves unused.
- A scale is first rounded to the type in which it is stored, BF16 for a model in BF16 and otherwise F32
  (always F32 with --block), and q belongs to the rounded one. All roundings are to nearest, ties to even.
- Where everything that shares a scale is zero, or so small that a normal number cannot scale it, the
  scale is 1.

Memory does not grow with the model: weights pass through it a few rows at a time.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import stat
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
from pickle_to_safetensors import (CHUNK, DIMENSIONS_MAX, FILE_NAME, HEADER_BYTES_MAX,  # noqa: E402
                                   INDEX_BYTES_MAX, INDEX_OUT, INT_MAX, SHARDS_MAX, SINGLE_OUT, Refused,
                                   is_count, kind_of, no_key_twice, open_regular, quote, refuse, sync)

CONFIG = "config.json"
ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
              "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1}
NUMPY = {"I64": "<i8", "I32": "<i4", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "F8_E4M3": "u1"}
FLOATS = ("BF16", "F16", "F32")
QUANTIZATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx",
              ".index.json")
IN_LAYER = re.compile(r"(?:.+\.)?layers\.[0-9]+\..+")
PIECE_VALUES = 1 << 21  # of a matrix that are in memory at once

INT8_MAX, FP8_MAX = 127, 448
SHRINK = np.arange(40, 19, -1, dtype=np.float32) / np.float32(40)  # 1 to 0.5; 35 / 40 = 7 / 8
SMALLEST_NORMAL = np.float32(2.0**-126)


# --- Reading


class Stored:
    """A tensor in a file."""

    def __init__(self, dtype, shape, begin, end):
        self.dtype, self.shape, self.begin, self.end = dtype, shape, begin, end


def stored(entry, where):
    """One entry of a header, checked by itself."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        refuse(where, kind_of(entry), "dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        refuse(f"{where}, dtype", quote(dtype), f"one of {', '.join(ITEM_BYTES)}")
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX or not all(map(is_count, shape)):
        refuse(f"{where}, shape", quote(shape), f"a list of at most {DIMENSIONS_MAX} counts")
    size = ITEM_BYTES[dtype]
    for n in shape:
        size *= n
    if (not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)) or
            offsets[1] - offsets[0] != size or size > INT_MAX):
        refuse(f"{where}, data_offsets", quote(offsets), f"[begin, begin + {size}]: {dtype} {shape}")
    return Stored(dtype, shape, *offsets)


def parse_object(data, where):
    try:
        found = json.loads(data, object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError) as error:
        refuse(where, f"what is no JSON ({quote(str(error))})", "a JSON object")
    if not isinstance(found, dict):
        refuse(where, kind_of(found), "a JSON object")
    return found


def read_object(path):
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > INDEX_BYTES_MAX:
            refuse(quote(path, 400), f"{size} bytes", f"at most {INDEX_BYTES_MAX}")
        return parse_object(file.read(size), quote(path, 400))


def read_header(path):
    """The tensors of a file by name, in the order of their values, which fill the file."""
    where = quote(path, 400)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length > min(HEADER_BYTES_MAX, size - 8):
            refuse(where, f"{size} bytes, and a header of {length}",
                   f"safetensors: a header of at most {HEADER_BYTES_MAX} bytes that the file holds")
        header = parse_object(file.read(length), f"{where}, header")
    header.pop("__metadata__", None)
    found = {name: stored(entry, f"{where}, tensor {quote(name)}") for name, entry in header.items()}
    at = 0
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != at:
            refuse(f"{where}, tensor {quote(name)}, data_offsets", f"a begin at {tensor.begin}",
                   f"{at}, where the values before it end")
        at = tensor.end
    if 8 + length + at != size:
        refuse(where, f"{size} bytes", f"{8 + length + at}, as its header says; is it truncated?")
    for tensor in found.values():
        tensor.begin += 8 + length
        tensor.end += 8 + length
    return dict(sorted(found.items(), key=lambda item: item[1].begin))


def read_shards(path):
    """The names of the tensors by file, of an index."""
    where = f"{quote(path, 400)}, weight_map"
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        refuse(where, kind_of(weight_map), "{tensor: file, ...}")
    shards = {}
    for tensor, name in weight_map.items():
        if not (isinstance(name, str) and FILE_NAME.fullmatch(name) and name.endswith(".safetensors")):
            refuse(f"{where}, {quote(tensor)}", kind_of(name),
                   "the name of a file of this folder that ends with .safetensors")
        shards.setdefault(name, set()).add(tensor)
    if len(shards) > SHARDS_MAX:
        refuse(where, f"{len(shards)} files", f"at most {SHARDS_MAX}")
    return shards


def read_folder(folder):
    """The tensors of a model: {file: {name: Stored}}."""
    single, index = os.path.join(folder, SINGLE_OUT), os.path.join(folder, INDEX_OUT)
    if os.path.lexists(single):
        return {SINGLE_OUT: read_header(single)}
    if not os.path.lexists(index):
        pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in os.listdir(folder))
        refuse(quote(folder, 400), f"neither {SINGLE_OUT} nor {INDEX_OUT}", "one of them" + (
            "; sdk/tools/pickle_to_safetensors.py converts the pickled weights" if pickled else ""))
    files = {}
    for name, tensors in sorted(read_shards(index).items()):
        files[name] = read_header(os.path.join(folder, name))
        for tensor in sorted(tensors ^ files[name].keys()):
            where = f"{quote(index, 400)}, weight_map"
            if tensor in tensors:
                refuse(where, f"tensor {quote(tensor)} in {quote(name)}", "one that the file has")
            refuse(where, f"no tensor {quote(tensor)} in {quote(name)}", "it: the file has it")
    return files


def read_config(folder):
    path = os.path.join(folder, CONFIG)
    config = read_object(path)
    for key in ("quantization_config", "compression_config"):
        if config.get(key) is not None:
            refuse(f"{quote(path, 400)}, {key}", kind_of(config[key]),
                   "no such key: the model is quantized already, take the one that it was made from")
    for name in QUANTIZATION_FILES:
        if os.path.lexists(os.path.join(folder, name)):
            refuse(quote(os.path.join(folder, name), 400), "a description of a quantized model",
                   "none: take the model that it was made from")
    return config


def read_exactly(file, begin, count, where):
    data = os.pread(file.fileno(), count, begin)
    while len(data) < count:
        more = os.pread(file.fileno(), count - len(data), begin + len(data))
        if not more:
            refuse(where, f"an end at byte {begin + len(data)}", "the values that its header lists")
        data += more
    return data


def to_float32(data, dtype):
    values = np.frombuffer(data, NUMPY[dtype])
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


# --- Rounding


def to_bfloat16(x):
    """The bits of finite float32 values in bfloat16."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_e4m3(x):
    """The codes of finite float32 values in FP8 E4M3; what is larger than 448 saturates."""
    size = np.minimum(np.abs(x), np.float32(FP8_MAX))
    # size is in [2^e, 2^(e+1)), where codes are 2^(e-3) apart; below 2^-6 they stay 2^-9 apart.
    exponent = np.frexp(np.maximum(size, np.float32(2.0**-6)))[1] - 1
    code = np.rint(np.ldexp(size, 3 - exponent)).astype(np.int32) + 8 * (exponent + 6)
    return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def round_scale(scale, dtype):
    """Scales as they are stored, in BF16 or F32, and what is read from them."""
    scale = np.where(scale < SMALLEST_NORMAL, np.float32(1), scale)
    if dtype == "F32":
        return scale, scale
    bits = to_bfloat16(scale)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def pack_rows(codes):
    """Words [n, k / 8] of codes -8 to 7 [n, k]: the first in the lowest bits, 8 added."""
    eight = (codes.astype(np.int32) + 8).astype(np.uint32).reshape(len(codes), -1, 8)
    return np.bitwise_or.reduce(eight << np.arange(0, 32, 4, dtype=np.uint32), axis=2)


# --- Formats. Each says
#   tensors(shape, scale_type): types and shapes of what stands for a matrix, by the end of the name
#   encode(rows, scale_type): some rows of it, the next values of each of these tensors. Their number is
#   a multiple of `step` but at the end of the matrix
#   config(ignored): quantization_config


def arguments(bits, kind, strategy, dynamic=False, symmetric=True, group=None):
    return {"actorder": None, "block_structure": None, "dynamic": dynamic, "group_size": group,
            "num_bits": bits, "observer": None if dynamic else "minmax", "observer_kwargs": {},
            "strategy": strategy, "symmetric": symmetric, "type": kind}


def compressed_tensors(layout, weights, inputs, ignored):
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"],
             "weights": weights}
    return {"config_groups": {"group_0": group}, "format": layout, "global_compression_ratio": None,
            "ignore": ignored, "kv_cache_scheme": None, "quant_method": "compressed-tensors",
            "quantization_status": "compressed"}


class Channels:
    """8 bits and a scale per output: w8a8, and fp8 without blocks."""
    step = 1

    def __init__(self, is_float):
        self.is_float = is_float

    def tensors(self, shape, scale_type):
        return {"weight": ("F8_E4M3" if self.is_float else "I8", shape),
                "weight_scale": (scale_type, [shape[0], 1])}

    def encode(self, rows, scale_type):
        largest = np.abs(rows).max(1, keepdims=True, initial=0)
        kept, scale = round_scale(largest / np.float32(FP8_MAX if self.is_float else INT8_MAX), scale_type)
        if self.is_float:
            return {"weight": to_e4m3(rows / scale), "weight_scale": kept}
        codes = np.rint(rows / scale).clip(-INT8_MAX, INT8_MAX)
        return {"weight": codes.astype(np.int8), "weight_scale": kept}

    def config(self, ignored):
        kind = "float" if self.is_float else "int"
        return compressed_tensors(f"{kind}-quantized", arguments(8, kind, "channel"),
                                  arguments(8, kind, "token", dynamic=True), ignored)


class Groups:
    """4 bits and a scale per group of inputs, of an output."""
    step = 8  # outputs whose zero points share a word

    def __init__(self, group, zeros):
        self.group, self.zeros = group, zeros

    def tensors(self, shape, scale_type):
        n, groups = shape[0], shape[1] // self.group
        found = {"weight_packed": ("I32", [n, shape[1] // 8]), "weight_scale": (scale_type, [n, groups]),
                 "weight_shape": ("I64", [2])}
        if self.zeros:
            found["weight_zero_point"] = ("I32", [-(-n // 8), groups])
        return found

    def encode(self, rows, scale_type):
        rows = rows.reshape(len(rows), -1, self.group)
        low, high = rows.min(2, initial=0), rows.max(2, initial=0)
        # Per step of the codes, -8 to 7, or -7 to 7 around the zero point 0.
        full = high / 15 - low / 15 if self.zeros else np.maximum(-low, high) / 7
        unit = np.where(full < SMALLEST_NORMAL, np.float32(1), full)
        best = None
        for shrink in SHRINK:
            kept, scale = round_scale(full * shrink, scale_type)
            zero = np.rint(-8 - low * shrink / scale).clip(-8, 7) if self.zeros else np.zeros_like(scale)
            steps = rows / scale[..., None]
            codes = (np.rint(steps) + zero[..., None]).clip(-8, 7)
            # In units of the group, so that squares of large or tiny weights neither overflow nor vanish.
            error = (((codes - zero[..., None] - steps) * (scale / unit)[..., None])**2).sum(2)
            found = (error, kept, zero.astype(np.int8), codes.astype(np.int8))
            if best is None:
                best = found
                continue
            better = error < best[0]
            for new, old in zip(found, best):
                old[better] = new[better]
        _, kept, zero, codes = best
        made = {"weight_packed": pack_rows(codes.reshape(len(rows), -1)), "weight_scale": kept}
        if self.zeros:
            padded = np.pad(zero, ((0, -len(zero) % 8), (0, 0)), constant_values=-8)  # as bits: 0
            made["weight_zero_point"] = pack_rows(padded.T).T
        return made

    def config(self, ignored):
        return compressed_tensors(
            "pack-quantized", arguments(4, "int", "group", symmetric=not self.zeros, group=self.group), None,
            ignored)


class Blocks:
    """FP8 and a scale per block of outputs and inputs; those at the ends may be smaller."""

    def __init__(self, block):
        self.block = self.step = block

    def tensors(self, shape, scale_type):
        return {"weight": ("F8_E4M3", shape), "weight_scale_inv": ("F32", [-(-n // self.block) for n in shape])}

    def encode(self, rows, scale_type):
        n, k = rows.shape
        padded = np.pad(rows, ((0, -n % self.block), (0, -k % self.block)))
        blocks = padded.reshape(-1, self.block, padded.shape[1] // self.block, self.block)
        kept, scale = round_scale(np.abs(blocks).max((1, 3)) / np.float32(FP8_MAX), "F32")
        codes = to_e4m3(blocks / scale[:, None, :, None])
        return {"weight": codes.reshape(padded.shape)[:n, :k], "weight_scale_inv": kept}

    def config(self, ignored):
        return {"activation_scheme": "dynamic", "fmt": "e4m3", "modules_to_not_convert": ignored,
                "quant_method": "fp8", "weight_block_size": [self.block, self.block]}


# --- Which matrices


def module_of(name):
    return name[:-len(".weight")] if name.endswith(".weight") else name


class Selection:
    """Which tensors are quantized, and the modules that are listed as ignored."""

    def __init__(self, files, names, modules, scheme, folder):
        self.scheme, self.names, self.modules = scheme, names, modules
        self.unused = set(names) - {"lm_head"}  # which a model with tied embeddings does not have
        self.missing = set(modules or ())
        self.quantized, self.ignored = {}, []
        all_names = {name for tensors in files.values() for name in tensors}
        for file, tensors in files.items():
            for name, tensor in tensors.items():
                module, where = module_of(name), f"{quote(os.path.join(folder, file), 400)}, tensor {quote(name)}"
                if self.is_wanted(name, module, tensor, where):
                    self.check(tensor, where)
                    self.quantized[name] = module
                    for end in scheme.tensors(tensor.shape, scale_type(tensor)):
                        if end != "weight" and f"{module}.{end}" in all_names:
                            refuse(where, f"also a tensor {quote(f'{module}.{end}')}",
                                   "none of this name: quantizing adds it")
        for name in sorted(self.unused):
            refuse("--ignore", quote(name), "a module of the model whose weight is a matrix")
        for name in sorted(self.missing):
            refuse("--modules", quote(name), "a module of the model whose weight is a matrix")
        if not self.quantized:
            refuse(quote(folder, 400), "no matrix to quantize",
                   "some called ....layers.N.MODULE.weight, or --modules, that --ignore does not name")
        if "lm_head.weight" not in all_names and "lm_head" not in self.ignored:
            self.ignored.insert(0, "lm_head")  # tied embeddings
        if "lm_head" in self.quantized.values() and isinstance(scheme, Blocks):
            refuse("--ignore", "no lm_head", "it with --block: readers of this format leave lm_head as it is")

    @staticmethod
    def is_named(module, names, unused):
        found = False
        for name in names:
            if re.match(name[3:], module) if name.startswith("re:") else name == module:
                unused.discard(name)
                found = True
        return found

    def is_wanted(self, name, module, tensor, where):
        if len(tensor.shape) < 2:
            return False
        is_embedding = "embed" in module.rpartition(".")[2]
        if self.modules is None:
            is_chosen = IN_LAYER.fullmatch(module) or module == "lm_head"
        else:
            is_chosen = self.is_named(module, self.modules, self.missing) and not is_embedding
        if not is_chosen or self.is_named(module, self.names, self.unused):
            if not is_embedding:
                self.ignored.append(module)
            return False
        if len(tensor.shape) != 2 or not name.endswith(".weight"):
            refuse(where, f"shape {tensor.shape}", f"a matrix called MODULE.weight, or --ignore {module}")
        return True

    def check(self, tensor, where):
        if tensor.dtype not in FLOATS:
            refuse(f"{where}, dtype", tensor.dtype, f"one of {', '.join(FLOATS)}")
        if isinstance(self.scheme, Groups) and tensor.shape[1] % self.scheme.group:
            refuse(where, f"{tensor.shape[1]} inputs (shape {tensor.shape})",
                   f"whole groups of {self.scheme.group}: another --group, or --ignore it")


# --- Writing


def layout_of(tensors, selection):
    """Types and shapes of what a file becomes, and the header that says so, with places of values."""
    out = {}
    for name, tensor in tensors.items():
        if name in selection.quantized:
            made = selection.scheme.tensors(tensor.shape, scale_type(tensor))
            for end, entry in made.items():
                out[f"{selection.quantized[name]}.{end}"] = entry
        else:
            out[name] = (tensor.dtype, tensor.shape)
    # Large items first, so that all values are aligned.
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in sorted(out.items(), key=lambda item: (-ITEM_BYTES[item[1][0]], item[0])):
        size = ITEM_BYTES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    places = {name: 8 + len(text) + header[name]["data_offsets"][0] for name in out}
    return struct.pack("<Q", len(text)) + text, places, at


def scale_type(tensor):
    return "BF16" if tensor.dtype == "BF16" else "F32"


def write_at(file, data, at):
    while data:
        written = os.pwrite(file.fileno(), data, at)
        data, at = data[written:], at + written


def write_quantized(source, tensor, out, places, selection, module, where):
    n, k = tensor.shape
    scheme, dtype = selection.scheme, scale_type(tensor)
    places = {end: places[f"{module}.{end}"] for end in scheme.tensors(tensor.shape, dtype)}
    if "weight_shape" in places:
        write_at(out, struct.pack("<2q", n, k), places["weight_shape"])
    row_bytes = k * ITEM_BYTES[tensor.dtype]
    some = max(1, PIECE_VALUES // (max(k, 1) * scheme.step)) * scheme.step
    for first in range(0, n if k else 0, some):
        count = min(some, n - first)
        data = read_exactly(source, tensor.begin + first * row_bytes, count * row_bytes, where)
        rows = to_float32(data, tensor.dtype).reshape(count, k)
        if not np.isfinite(rows).all():
            row, column = np.argwhere(~np.isfinite(rows))[0]
            refuse(f"{where}, row {first + row}, column {column}", str(rows[row, column]), "a finite number")
        for end, values in scheme.encode(rows, dtype).items():
            data = values.tobytes()
            write_at(out, data, places[end])
            places[end] += len(data)


def write_weights(path, path_out, tensors, selection):
    """One file of weights. -> the names in it, the bytes of their values"""
    header, places, size = layout_of(tensors, selection)
    with open_regular(path) as source, open(path_out, "xb") as out:
        write_at(out, header, 0)
        out.truncate(len(header) + size)
        for name, tensor in tensors.items():
            where = f"{quote(path, 400)}, tensor {quote(name)}"
            if name in selection.quantized:
                write_quantized(source, tensor, out, places, selection, selection.quantized[name], where)
                continue
            for begin in range(tensor.begin, tensor.end, CHUNK):
                count = min(CHUNK, tensor.end - begin)
                write_at(out, read_exactly(source, begin, count, where), places[name] + begin - tensor.begin)
        sync(out)
    return places.keys(), size


def write_json(path, value):
    with open(path, "x", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2) + "\n")
        sync(file)


def copy_others(folder, folder_out):
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if (name == CONFIG or name.startswith(".") or name.endswith(NOT_COPIED) or
                not stat.S_ISREG(os.stat(path).st_mode)):
            continue
        with open_regular(path) as source, open(os.path.join(folder_out, name), "xb") as out:
            shutil.copyfileobj(source, out, CHUNK)
            sync(out)


@contextlib.contextmanager
def folder_when_complete(path):
    """A new folder that gets its name when all is written; nothing stays otherwise."""
    path = os.path.abspath(path)
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        refuse(quote(path, 400), "files", "a name that is not taken, or an empty folder")
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.part")
    os.mkdir(temporary)
    try:
        yield temporary
        os.rename(temporary, path)  # fails where another program has put files there meanwhile
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def scheme_of(options):
    for name, only in (("group", "w4a16"), ("zeros", "w4a16"), ("block", "fp8")):
        if getattr(options, name) and options.format != only:
            refuse(f"--{name}", f"--format {options.format}", f"--format {only}")
    if options.format == "w4a16":
        if options.group is None or not 0 < options.group <= 1 << 20 or options.group % 8:
            refuse("--group", quote(options.group), "a multiple of 8 for --format w4a16, such as 128")
        return Groups(options.group, options.zeros)
    if options.block is not None:
        if not 8 <= options.block <= 1024:
            refuse("--block", quote(options.block), "8 to 1024; readers know 128")
        return Blocks(options.block)
    return Channels(options.format == "fp8")


def check_names(option, names):
    for name in names:
        if name.startswith("re:"):
            try:
                re.compile(name[3:])
            except re.error as error:
                refuse(option, quote(name), f"a regular expression ({error})")
    return names


def run(options):
    scheme, folder = scheme_of(options), options.model
    names = check_names("--ignore", options.ignore)
    modules = None if options.modules is None else check_names("--modules", options.modules)
    config = read_config(folder)
    files = read_folder(folder)
    selection = Selection(files, names, modules, scheme, folder)
    total, weight_map = 0, {}
    with folder_when_complete(options.out) as folder_out:
        for file, tensors in files.items():
            names, size = write_weights(os.path.join(folder, file), os.path.join(folder_out, file), tensors,
                                        selection)
            total += size
            weight_map.update(dict.fromkeys(names, file))
        if list(files) != [SINGLE_OUT]:
            write_json(os.path.join(folder_out, INDEX_OUT),
                       {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})
        write_json(os.path.join(folder_out, CONFIG),
                   {**config, "quantization_config": scheme.config(selection.ignored)})
        copy_others(folder, folder_out)
    before = sum(tensor.end - tensor.begin for tensors in files.values() for tensor in tensors.values())
    print(f"{quote(options.out, 400)}: {len(selection.quantized)} matrices quantized, {before} bytes are {total}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="quantize.py MODEL OUT --format w8a8|w4a16|fp8 [--group N] [--zeros] [--block N] [--ignore NAME ...] "
        "[--modules NAME ...]")
    parser.add_argument("model", help=argparse.SUPPRESS)
    parser.add_argument("out", help=argparse.SUPPRESS)
    parser.add_argument("--format", choices=["w8a8", "w4a16", "fp8"], required=True, help=argparse.SUPPRESS)
    parser.add_argument("--group", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--zeros", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--block", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ignore", nargs="*", default=["lm_head"], help=argparse.SUPPRESS)
    parser.add_argument("--modules", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        run(options)
    except Refused as refused:
        sys.exit(str(refused))
    except OSError as error:
        sys.exit(f"{quote(error.filename or options.model, 400)}: {error.strerror or error}")
    except RecursionError:
        sys.exit(f"{quote(os.path.join(options.model, CONFIG), 400)}: values are nested too deeply")
    except MemoryError:
        sys.exit(f"{quote(options.model, 400)}: not enough memory")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
