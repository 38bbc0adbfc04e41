#!/usr/bin/env python3
"""What a quantized folder of quantize.py costs in quality: bits per byte of a text, beside the original's.

  bits_per_byte.py TEXT MODEL QUANTIZED [QUANTIZED ...]

TEXT holds UTF-8 documents, each followed by a NUL byte, as corpus.py writes them (val.bin). MODEL is a
folder of the zoo in BF16, and runs in the zoo's numpy model in float32, over windows as in the zoo's
evaluate.py. The layers are then replaced by those of each QUANTIZED, with inputs as servers round them:
  w8a8          per token, scale = max|x| / 127, half to even
  fp8           per token, scale = max|x| / 448; with blocks per 128 inputs of a token
  w4a16         not rounded
For the first two a second line has the weights alone. Needs numpy and regex, and runs in the source tree.
"""
import math
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../configs/zoo/recipe")]
import quantize  # noqa: E402
from bpe import Tokenizer  # noqa: E402
from evaluate import validation_loss  # noqa: E402
from reference import Llama  # noqa: E402

FP8_SCALE_MIN = 1 / (448 * 512)


def e4m3_values():
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    size = np.where(exponent > 0, (1 + mantissa / 8) * 2.0**(exponent - 7), mantissa / 8 * 2.0**-6)
    size[127] = np.nan
    return np.concatenate([size, -size]).astype(np.float32)


E4M3 = e4m3_values()


def int8_tokens(x):
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    return np.rint(x / scale) * scale


def fp8_tokens(x):
    scale = np.maximum(np.abs(x).max(-1, keepdims=True) / np.float32(448), np.float32(FP8_SCALE_MIN))
    return E4M3[quantize.to_e4m3(x / scale)] * scale


def fp8_groups(size):
    return lambda x: np.concatenate([fp8_tokens(x[..., at:at + size]) for at in range(0, x.shape[-1], size)], -1)


class Layer:
    """Stands for a matrix w of the numpy model where it computes x @ w.T, and rounds x."""
    __array_ufunc__ = None  # so that numpy leaves @ to __rmatmul__

    def __init__(self, weight, round_inputs):
        self.T, self.weight, self.round_inputs = self, weight, round_inputs

    def __rmatmul__(self, x):
        return self.round_inputs(x) @ self.weight.T


class Folder:
    def __init__(self, folder):
        self.config = quantize.read_object(os.path.join(folder, quantize.CONFIG))["quantization_config"]
        self.tensors = {name: (os.path.join(folder, file), tensor)
                        for file, tensors in quantize.read_folder(folder).items()
                        for name, tensor in tensors.items()}

    def read(self, name):
        path, tensor = self.tensors[name]
        with quantize.open_regular(path) as file:
            data = quantize.read_exactly(file, tensor.begin, tensor.end - tensor.begin, path)
        if tensor.dtype in quantize.FLOATS:
            return quantize.to_float32(data, tensor.dtype).reshape(tensor.shape)
        values = np.frombuffer(data, quantize.NUMPY[tensor.dtype]).reshape(tensor.shape)
        return E4M3[values] if tensor.dtype == "F8_E4M3" else values

    def layers(self):
        """-> the weights by name, and what rounds the inputs, or None"""
        if self.config["quant_method"] == "fp8":
            size = self.config["weight_block_size"][0]
            return {module + ".weight": self.blocks(module, size) for module in self.modules("_inv")
                    }, fp8_groups(size)
        read = {"int-quantized": (self.channels, int8_tokens), "float-quantized": (self.channels, fp8_tokens),
                "pack-quantized": (self.groups, None)}
        decode, round_inputs = read[self.config["format"]]
        return {module + ".weight": decode(module) for module in self.modules("")}, round_inputs

    def modules(self, end):
        return [name.rpartition(".")[0] for name in self.tensors if name.endswith(".weight_scale" + end)]

    def channels(self, module):
        return self.read(module + ".weight") * self.read(module + ".weight_scale")

    def blocks(self, module, size):
        weight = self.read(module + ".weight")
        scale = self.read(module + ".weight_scale_inv").repeat(size, 0).repeat(size, 1)
        return weight * scale[:weight.shape[0], :weight.shape[1]]

    def groups(self, module):
        n, k = self.read(module + ".weight_shape")
        codes = nibbles(self.read(module + ".weight_packed"))
        scale = self.read(module + ".weight_scale")
        if module + ".weight_zero_point" in self.tensors:
            codes = codes - nibbles(self.read(module + ".weight_zero_point").T).T[:n].repeat(k // scale.shape[1], 1)
        return codes * scale.repeat(k // scale.shape[1], 1)


def nibbles(words):
    parts = words[..., None] >> np.arange(0, 32, 4, dtype=np.int32) & 15
    return parts.reshape(len(words), -1).astype(np.float32) - 8


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    text_path, folder, quantized = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(text_path, "rb") as file:
        texts = [text for text in file.read().split(b"\0") if text]
    tokenizer, model = Tokenizer(folder), Llama(folder)
    docs = [tokenizer.encode(text.decode(), bos=True) + [tokenizer.eos] for text in texts]
    size = sum(map(len, texts))
    print(f"{len(docs)} documents, {size} bytes, {sum(map(len, docs)) - len(docs)} tokens")
    print(f"{'folder':24} {'inputs':8} {'bits per byte':>13} {'worse by':>9}")

    def measure(name, inputs):
        bits = validation_loss(model, docs)[1] / math.log(2) / size
        worse = f"{bits / first - 1:9.3%}" if inputs else ""
        print(f"{name:24} {inputs:8} {bits:13.5f} {worse}", flush=True)
        return bits

    first = measure(os.path.basename(os.path.normpath(folder)), "")
    original = dict(model.w)
    for path in quantized:
        name = os.path.basename(os.path.normpath(path))
        weights, round_inputs = Folder(path).layers()
        model.w.update(original)
        if round_inputs:
            model.w.update({key: Layer(weight, round_inputs) for key, weight in weights.items()})
            measure(name, "rounded")
        model.w.update(weights)
        measure(name, "as given")


if __name__ == "__main__":
    main()
