"""How each quantization format holds one linear layer, and what its makers' code reads from it.

A function here takes a weight [out, in] in float32 and the range of the layer's inputs, and returns a
Layer: the tensors of the checkpoint, the weight that they stand for, and how the layer rounds its
inputs. The weight is computed by the makers' code wherever that runs on a CPU. Scales are widened to
float32 first: the rounding of a product to the scale's type is a matter of kernels, not of the file.
"""
import importlib.util
import os
from dataclasses import dataclass, field

import numpy as np
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams, maybe_pad_tensor_for_block_quant
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

FP8_MAX = 448.0
TINY = 3e-4  # steps below this share of a row's largest element move logits by less than the tests allow
FP8_SCALE_MIN = 1 / (FP8_MAX * 512)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass
class Layer:
    tensors: dict  # the part of the name behind the layer's: tensor
    weight: torch.Tensor  # float32 [out, in]
    inputs: object = None  # a Rounding; None: not rounded
    misread: dict = field(default_factory=dict)  # a mistake: the weight that a reader would get by it


@dataclass
class Range:
    """Of a layer's inputs, as calibration has seen them."""
    low: float
    high: float


def authors_file(package, path):
    """One file of an installed package, without the package's own imports."""
    folder = importlib.util.find_spec(package).submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location(package + "_file", os.path.join(folder, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Inputs. The rules are vLLM's: input_quant_fp8.py, and int8/scaled_quant.cu of its CUDA sources.

class Rounding:
    """scale: of rows, a scale that broadcasts. values: of rows and scales, whole multiples of them."""

    def __init__(self, scale, values):
        self.scale, self.values = scale, values
        self.is_fp8 = values is fp8_values

    def __call__(self, x):
        scale = self.scale(x)
        return self.values(x, scale).double() * scale.double()

    def is_close(self, x, margin):
        """Whether an element is so near to the middle between two values that errors of `margin` of
        each element and of its row's largest one, which move scales too, may take it to the other. Steps
        that are tiny beside the largest one do not count."""
        largest = x.abs().amax(-1, keepdim=True)
        scale, error = self.scale(x), 2 * margin * (x.abs() + largest)
        steps = (self.values(x + error, scale) - self.values(x - error, scale)).abs() * scale
        return bool((steps > TINY * largest).any())


def to_fp8(x, scale):
    return (x / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def fp8_values(x, scale):
    return to_fp8(x, scale).float()


def fp8_token(bound=None):
    def scale(x):
        largest = x.abs().amax(-1, keepdim=True)
        if bound is not None:
            largest = largest.clamp(max=bound)
        return (largest / FP8_MAX).clamp(min=FP8_SCALE_MIN)
    return Rounding(scale, fp8_values)


def fp8_tensor(scale):
    scale = scale.float().reshape(())
    return Rounding(lambda x: scale, fp8_values)


def fp8_group(size):
    def scale(x):
        parts = [fp8_token().scale(part).expand(part.shape) for part in x.split(size, -1)]
        return torch.cat(parts, -1)
    return Rounding(scale, fp8_values)


def int8_token():
    return Rounding(lambda x: x.abs().amax(-1, keepdim=True) / 127,
                    lambda x, scale: torch.round(x / scale).clamp(-128, 127))


def int8_tensor(scale, zero=0):
    scale, zero = scale.float().reshape(()), int(zero)
    return Rounding(lambda x: scale, lambda x, scale: (torch.round(x / scale) + zero).clamp(-128, 127) - zero)


# compressed-tensors

def ranges(weight, args, g_idx):
    """Lowest and highest value of whatever shares a scale."""
    if args.strategy == "tensor":
        low, high = torch.aminmax(weight)
        return low.reshape(1), high.reshape(1)
    if args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if args.strategy == "block":
        rows, columns = args.block_structure
        padded = maybe_pad_tensor_for_block_quant(weight, (rows, columns))
        blocks = padded.unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).transpose(1, 2)
        return blocks.amin((2, 3)), blocks.amax((2, 3))
    if g_idx is not None:
        weight = weight[:, torch.argsort(g_idx, stable=True)]
    groups = weight.unflatten(1, (-1, args.group_size))
    return groups.amin(2), groups.amax(2)


def static_inputs(args, seen, dtype):
    """What calibration leaves in the checkpoint. A tenth of the range is cut off, so that inputs saturate."""
    low, high = 0.9 * seen.low, 0.9 * seen.high
    if args.type == "float":
        scale = torch.tensor([max(-low, high) / FP8_MAX]).to(dtype)
        return {"input_scale": scale}, fp8_tensor(scale)
    if args.symmetric:
        scale = torch.tensor([max(-low, high) / 127]).to(dtype)
        return {"input_scale": scale}, int8_tensor(scale)
    scale = torch.tensor([(high - low) / 255]).to(dtype)
    zero = torch.tensor([max(-128, min(127, round(-128 - low / float(scale))))], dtype=torch.int8)
    return {"input_scale": scale, "input_zero_point": zero}, int8_tensor(scale, zero)


def inputs_of(args, seen, dtype):
    if args is None:
        return {}, None
    if not args.dynamic:
        return static_inputs(args, seen, dtype)
    if args.type == "int":
        return {}, int8_token()
    return {}, fp8_group(args.group_size) if args.strategy == "group" else fp8_token()


def compressed(weights, inputs=None, layout="int-quantized", dtype=torch.bfloat16):
    weights = QuantizationArgs(**weights)
    inputs = None if inputs is None else QuantizationArgs(**inputs)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    compressor = BaseCompressor.get_value_from_registry(layout)

    def make(weight, seen, random):
        state, g_idx = {"weight": weight}, None
        if weights.actorder == "group":
            g_idx = torch.from_numpy(random.permutation(weight.shape[1]) // weights.group_size).int()
            state["weight_g_idx"] = g_idx
        scale, zero = calculate_qparams(*ranges(weight, weights, g_idx), weights)
        state["weight_scale"] = scale.to(dtype)
        if not weights.symmetric:
            state["weight_zero_point"] = zero
        state = compressor.compress(state, scheme)
        scale, zero, packed = state["weight_scale"].float(), state.get("weight_zero_point"), "weight_packed" in state
        if packed:
            values = unpack_from_int32(state["weight_packed"], weights.num_bits, weight.shape)
            if zero is not None:
                zero = unpack_from_int32(zero, weights.num_bits, (weight.shape[0], scale.shape[1]), packed_dim=0)
        else:
            values = state["weight"]
        read = dequantize(values, scale, zero, weights, g_idx=g_idx)
        misread = {}
        if zero is not None:
            misread["no zero points"] = dequantize(values, scale, None, weights)
        if g_idx is not None:
            misread["no g_idx"] = dequantize(values, scale, None, weights)
        if weights.strategy == "block":
            rows, columns = -(-weight.shape[0] // scale.shape[0]), -(-weight.shape[1] // scale.shape[1])
            even = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:weight.shape[0], :weight.shape[1]]
            misread["blocks of equal size"] = values.float() * even
        tensors, rounded = inputs_of(inputs, seen, dtype)
        return Layer({**state, **tensors}, read, rounded, misread)
    return make


# FP8 in other layouts

def fp8_scalar(shape, static=True):
    """One scale for the weight and one for the inputs, of `shape`: ModelOpt, and fp8 without blocks."""
    def make(weight, seen, random):
        scale = (weight.abs().max() / FP8_MAX).reshape(shape)
        values = to_fp8(weight, scale.reshape(()))
        tensors, rounded = {"weight": values, "weight_scale": scale}, fp8_token()
        if static:
            tensors["input_scale"] = torch.tensor(0.9 * max(-seen.low, seen.high) / FP8_MAX).reshape(shape)
            rounded = fp8_tensor(tensors["input_scale"])
        return Layer(tensors, values.float() * scale.reshape(()), rounded)
    return make


def fp8_rows(scale_shape, bound=None):
    """A scale for every output: FBGEMM, and ModelOpt's FP8_PER_CHANNEL_PER_TOKEN."""
    def make(weight, seen, random):
        scale = weight.abs().amax(1, keepdim=True) / FP8_MAX
        values = to_fp8(weight, scale)
        return Layer({"weight": values, "weight_scale": scale.reshape(scale_shape)}, values.float() * scale,
                     fp8_token(bound))
    return make


def fp8_blocks(rows, columns, dtype=torch.float32, modelopt=False, four_dimensions=False):
    """modelopt: its FP8_PB_WO has another name for the scales, in older files [out, 1, in, 1] of them."""
    def make(weight, seen, random):
        args = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[rows, columns])
        low, high = ranges(weight, args, None)
        scale = (torch.maximum(-low, high) / FP8_MAX).to(dtype)
        spread = scale.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        values = to_fp8(weight, spread[:weight.shape[0], :weight.shape[1]])
        read = _dequantize_fp8_weight(values, scale.float(), [rows, columns], torch.float32)
        flipped = spread.flip(0)[:weight.shape[0], :weight.shape[1]]
        kept = scale[:, None, :, None] if four_dimensions else scale
        return Layer({"weight": values, "weight_scale" if modelopt else "weight_scale_inv": kept}, read,
                     None if modelopt else fp8_group(columns), {"blocks from the end": values.float() * flipped})
    return make


# Integers packed along another side

def pack(values, bits, order):
    """Words [rows, n]: value i of a word is column order[i] of its 32 / bits."""
    per_word = 32 // bits
    parts = values.astype(np.uint32).reshape(values.shape[0], -1, per_word)[:, :, order]
    words = np.bitwise_or.reduce(parts << (np.arange(per_word, dtype=np.uint32) * bits), axis=2)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32).copy())


def round_to_groups(weight, bits, group, symmetric, g_idx, signed_scales=False):
    """Values [in, out], zeros and scales [groups, out] in float16, of the weight [out, in]. signed_scales: the
    largest element of a group is the lowest value, so that its scale may be negative, as AutoRound has it."""
    highest = 2**bits - 1
    columns = weight.numpy().T
    n_groups = columns.shape[0] // group
    scales = np.zeros((n_groups, columns.shape[1]), np.float16)
    zeros = np.zeros(scales.shape, np.int64)
    for g in range(n_groups):
        part = columns[g_idx == g]
        low, high = np.minimum(part.min(0), 0), np.maximum(part.max(0), 0)
        if signed_scales:
            scales[g] = np.where(-low > high, low, high) / -(2 ** (bits - 1))
            zeros[g] = 2 ** (bits - 1)
        elif symmetric:
            scales[g] = 2 * np.maximum(-low, high) / highest
            zeros[g] = 2 ** (bits - 1)
        else:
            scales[g] = (high - low) / highest
            zeros[g] = np.clip(np.rint(-low / scales[g].astype(np.float32)), 0, highest)
    by_row = scales.astype(np.float32)[g_idx]
    values = np.clip(np.rint(columns / by_row) + zeros[g_idx], 0, highest).astype(np.int64)
    return values, zeros, scales


def by_hand(values, zeros, scales, g_idx):
    return torch.from_numpy(((values - zeros[g_idx]) * scales.astype(np.float32)[g_idx]).T.astype(np.float32).copy())


def awq(group, dtype=torch.float16):
    packing = authors_file("awq", "utils/packing_utils.py")

    def make(weight, seen, random):
        size = weight.shape[1] if group == -1 else group
        g_idx = np.arange(weight.shape[1]) // size
        values, zeros, scales = round_to_groups(weight, 4, size, False, g_idx)
        qweight, qzeros = pack(values, 4, AWQ_ORDER), pack(zeros, 4, AWQ_ORDER)
        scales_read = torch.from_numpy(scales).to(dtype)
        scales = scales_read.float().numpy()
        read = packing.dequantize_gemm(qweight, qzeros, scales_read.float(), 4, size).T.contiguous()
        reordered = values.reshape(len(values), -1, 8)[:, :, AWQ_ORDER].reshape(values.shape)
        return Layer({"qweight": qweight, "qzeros": qzeros, "scales": scales_read}, read, None,
                     {"plain order": by_hand(reordered, zeros, scales, g_idx),
                      "zero points plus one": by_hand(values, zeros + 1, scales, g_idx)})
    return make


def gptq(bits, group, symmetric=True, ordered=True, version=1, with_g_idx=True, dtype=torch.float16,
         signed_scales=False):
    """version 1 stores zero points minus one, version 2 as they are. ordered: columns stand by group."""
    linear = authors_file("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py").QuantLinear

    def make(weight, seen, random):
        n_in, n_out = weight.shape[1], weight.shape[0]
        size = n_in if group == -1 else group
        g_idx = np.arange(n_in) // size
        if not ordered:
            g_idx = random.permutation(g_idx)
        values, zeros, scales = round_to_groups(weight, bits, size, symmetric, g_idx, signed_scales)
        if version == 1:
            zeros = np.maximum(zeros, 1)  # 0 - 1 would run into the neighbors, as it did in AutoGPTQ
            values = np.clip(np.rint(weight.numpy().T / scales.astype(np.float32)[g_idx]) + zeros[g_idx], 0,
                             2**bits - 1).astype(np.int64)
        plain = np.arange(32 // bits)
        qweight = pack(values.T, bits, plain).T.contiguous()
        qzeros = pack(zeros - (2 - version), bits, plain)
        tensors = {"qweight": qweight, "qzeros": qzeros, "scales": torch.from_numpy(scales).to(dtype)}
        if with_g_idx:
            tensors["g_idx"] = torch.from_numpy(g_idx).int()
        scales = tensors["scales"].float().numpy()
        module = linear(bits, size, n_in, n_out, False)
        module.qweight, module.qzeros, module.scales = qweight, qzeros, tensors["scales"].float()
        module.g_idx = torch.from_numpy(g_idx).int()
        read = module(torch.eye(n_in)).T.contiguous()  # as version 1
        off = zeros + 1 if version == 2 else zeros - 1
        if version == 2:
            read = by_hand(values, zeros, scales, g_idx)
        else:
            assert torch.equal(read, by_hand(values, zeros, scales, g_idx))
        misread = {"the other version": by_hand(values, off, scales, g_idx)}
        if not ordered:
            misread["no g_idx"] = by_hand(values, zeros, scales, np.arange(n_in) // size)
        return Layer(tensors, read, None, misread)
    return make
