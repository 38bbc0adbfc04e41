#!/usr/bin/env python3
"""Quantized folders hold what their formats say, close to the model, and hostile folders are refused.

Usage: quantize_test.py SCRIPT, the path of quantize.py. What is written is read here by a decoder of its
own, value by value, from the published layouts. PACKED and E4M3 are recorded: compressed-tensors 0.17.1
and torch 2.15 made them.
"""
import contextlib
import importlib.util
import io
import json
import os
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

SCRIPT = os.path.abspath(sys.argv.pop(1))
REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../reference/quantized")
spec = importlib.util.spec_from_file_location("quantize", SCRIPT)
quantizer = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(quantizer)
quantizer.sync = lambda file: file.flush()  # test_as_a_program has the real one

# compressed-tensors' pack_to_int32() of codes() and asymmetric codes(), and of zero_points().
PACKED = [[1793327489, 517856787, -2119177629, -783756399], [591793174, 1640588338, 2084509995, 1718066147],
          [-2042428602, 1836029179, 326095758, -1775108369], [-1796602847, 362905215, 1414485916, 1906646167],
          [1548488614, 1738339486, 1338996309, -154876439], [-1085733162, 1681077352, -687910984, 916273382],
          [-840890447, 460594908, 668972230, 286410397], [-2042428602, 1836029179, 326095758, -1775108369],
          [-380696202, 1794557125, -1449153310, -956669204], [-135853487, 306687561, -360766977, -1585545324]]
PACKED_ASYMMETRIC = [
    [1794376065, 517856787, -2119177629, -783756400], [603327510, 1640588338, 2084509995, 1718066144],
    [-2030894266, 1836029179, 326095758, -1775108384], [-1795554271, 362905215, 1414485916, 1906646160],
    [1560022950, 1738339486, 1338996309, -154876448], [-1074198826, 1681077352, -687910984, 916273376],
    [-839841871, 460594908, 668972230, 286410384], [-2030894266, 1836029179, 326095758, -1775108384],
    [-369161866, 1794557125, -1449153310, -956669216], [-134804911, 306687561, -360766977, -1585545328]]
PACKED_ZEROS = [[1392285232, -1488852091], [184, 13]]

# torch's codes of the middles between neighbors, 0 to 448, as float32.
E4M3_MIDDLES = (
    "0002020404060608080a0a0c0c0e0e101012121414161618181a1a1c1c1e1e20202222242426262828"
    "2a2a2c2c2e2e303032323434363638383a3a3c3c3e3e404042424444464648484a4a4c4c4e4e505052"
    "525454565658585a5a5c5c5e5e606062626464666668686a6a6c6c6e6e707072727474767678787a7a"
    "7c7c7e")


def codes(asymmetric):
    """[10, 32] in groups of 16: of the first groups the largest is -8, of the second ones 7. Asymmetric:
    all groups have both."""
    q = np.array([[(5 * n * n + 3 * n * k + k * k // 3 + 7 * k) % 15 - 7 for k in range(32)]
                  for n in range(10)], np.float32)
    q[:, 3], q[:, 20] = -8, 7
    if asymmetric:
        q[:, 5], q[:, 24] = 7, -8
    return q


def zero_points():
    return np.array([[(3 * n + 5 * g) % 16 - 8 for g in range(2)] for n in range(10)], np.float32)


# --- A model


def to_bits(x, dtype):
    """float32 values as those of a file, rounded down where they do not fit."""
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "BF16":
        return (x.view(np.uint32) >> 16).astype("<u2").tobytes()
    return x.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()


def safetensors(tensors):
    """The bytes of a file of {name: (dtype, shape, bytes)}."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def read_safetensors(path):
    """name -> dtype, shape, bytes; checks that the values follow each other, and are aligned"""
    with open(path, "rb") as file:
        data = file.read()
    length, = struct.unpack_from("<Q", data)
    assert length % 8 == 0
    header = json.loads(data[8:8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    found, at = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        item = {"I64": 8, "I32": 4, "F32": 4, "F16": 2, "BF16": 2, "I8": 1, "F8_E4M3": 1}[entry["dtype"]]
        assert begin == at and begin % item == 0, name
        assert end - begin == item * int(np.prod(entry["shape"])), name
        found[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])
        at = end
    assert 8 + length + at == len(data)
    return found


SHAPES = {"model.layers.0.self_attn.q_proj": (40, 64), "model.layers.0.mlp.down_proj": (16, 96),
          "model.layers.1.self_attn.q_proj": (17, 64)}


def model(dtype="BF16", more=(), seed=1):
    random = np.random.default_rng(seed)
    tensors = {}

    def add(name, shape):
        x = random.standard_t(4, shape).astype(np.float32) * np.float32(0.02)
        tensors[name] = (dtype, list(shape), to_bits(x, dtype))
    add("model.embed_tokens.weight", (32, 64))
    for module, shape in SHAPES.items():
        add(module + ".weight", shape)
    add("model.layers.0.self_attn.q_proj.bias", (40,))
    add("model.layers.0.input_layernorm.weight", (64,))
    add("lm_head.weight", (32, 64))
    tensors.update(more)
    return tensors


# --- The decoder


def e4m3(code):
    size = code & 0x7F
    assert size != 0x7F
    value = (size & 7) * 2.0**-9 if size < 8 else (8 + (size & 7)) * 2.0**((size >> 3) - 10)
    return -value if code & 0x80 else value


def nibble(words, row, at):
    return (words[row][at // 8] >> 4 * (at % 8) & 15) - 8


def values_of(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        x = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype == "F8_E4M3":
        x = np.array([e4m3(code) for code in data])
    else:
        x = np.frombuffer(data, {"I8": "i1", "I32": "<i4", "I64": "<i8", "F32": "<f4", "F16": "<f2"}[dtype])
    return x.reshape(shape).astype(np.int64 if dtype[0] == "I" else np.float64)


def decode(tensors, module, group=None, block=None):
    """-> the weight, and the scale, the code and the zero point of every element"""
    get = lambda end: values_of(tensors[f"{module}.{end}"])
    if group is None:
        q = get("weight")
        scale = get("weight_scale_inv" if block else "weight_scale")
        n, k = q.shape
        step = (block, block) if block else (1, k)
        scale = np.array([[scale[i // step[0]][j // step[1]] for j in range(k)] for i in range(n)])
        return q * scale, scale, q, 0
    words, scale = get("weight_packed"), get("weight_scale")
    n, k = (int(x) for x in get("weight_shape"))
    q = np.array([[nibble(words, i, j) for j in range(k)] for i in range(n)])
    scale = np.array([[scale[i][j // group] for j in range(k)] for i in range(n)])
    zero = np.zeros((n, k))
    if f"{module}.weight_zero_point" in tensors:
        words = get("weight_zero_point")
        zero = np.array([[nibble(words.T, j // group, i) for j in range(k)] for i in range(n)])
    return (q - zero) * scale, scale, q, zero


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="specd_quantize_")
        self.addCleanup(subprocess.run, ["rm", "-r", self.folder], check=True)
        self.model, self.out = os.path.join(self.folder, "model"), os.path.join(self.folder, "out")
        os.mkdir(self.model)
        self.write("config.json", b'{"model_type": "llama", "rms_norm_eps": 1e-05, "name": "\xc3\xa9"}')

    def write(self, name, data):
        with open(os.path.join(self.model, name), "wb") as file:
            file.write(data)

    def write_model(self, *arguments, **options):
        tensors = model(*arguments, **options)
        self.write("model.safetensors", safetensors(tensors))
        return tensors

    def write_shards(self, tensors):
        parts = list(tensors.items())
        parts = {"model-00001-of-00002.safetensors": dict(parts[:3]),
                 "model-00002-of-00002.safetensors": dict(parts[3:])}
        for name, part in parts.items():
            self.write(name, safetensors(part))
        self.write_index({tensor: name for name, part in parts.items() for tensor in part})

    def write_index(self, weight_map):
        self.write("model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())

    def files(self):
        return sorted(os.path.relpath(os.path.join(at, name), self.folder)
                      for at, folders, names in os.walk(self.folder) for name in folders + names)

    def run_script(self, *arguments):
        """-> the exit code, standard output, standard error"""
        out, err, code = io.StringIO(), io.StringIO(), 0
        before, sys.argv = sys.argv, ["quantize.py", self.model, self.out, *map(str, arguments)]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                quantizer.main()
        except SystemExit as end:  # any other exception fails the test
            code = end.code
            if isinstance(code, str):  # as the interpreter does
                code, err = 1, io.StringIO(code + "\n")
        finally:
            sys.argv = before
        return code, out.getvalue(), err.getvalue()

    def quantized(self, *arguments, name="model.safetensors"):
        code, out, err = self.run_script(*arguments)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.count("\n"), 1)
        return read_safetensors(os.path.join(self.out, name))

    def config(self):
        with open(os.path.join(self.out, "config.json"), encoding="utf-8") as file:
            return json.load(file)

    def again(self):
        subprocess.run(["rm", "-r", self.out], check=True)

    def refused(self, words, *arguments):
        """Runs the script, which must refuse with these words in one line, and leave nothing."""
        before = self.files()
        code, out, err = self.run_script(*(arguments or ("--format", "w8a8")))
        self.assertEqual((code, out), (1, ""), err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.isascii() and err[:-1].isprintable() and len(err) < 1500, err)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, err)
        self.assertEqual(self.files(), before)


class Values(Folders):
    def close(self, original, decoded, scale, code, lowest, highest):
        """Within half a step, but for what saturates. -> the squared error"""
        error = np.abs(decoded - original)
        beyond = (((code == highest) & (original > decoded)) | ((code == lowest) & (original < decoded)))
        self.assertTrue((error[~beyond] <= 0.5 * scale[~beyond] * (1 + 1e-6)).all())
        return (error**2).sum()

    def originals(self, tensors):
        return {module: values_of(tensors[module + ".weight"]) for module in SHAPES}

    def test_int8(self):
        for dtype in ("BF16", "F16", "F32"):
            tensors = self.write_model(dtype)
            found = self.quantized("--format", "w8a8")
            for module, original in self.originals(tensors).items():
                n, k = original.shape
                self.assertEqual(found[module + ".weight"][:2], ("I8", [n, k]))
                self.assertEqual(found[module + ".weight_scale"][:2],
                                 ("BF16" if dtype == "BF16" else "F32", [n, 1]))
                decoded, scale, code, _ = decode(found, module)
                self.close(original, decoded, scale, code, -127, 127)
                self.assertTrue((np.abs(code).max(1) == 127).all())
            self.again()

    def test_int4(self):
        for arguments, share in (((), 0.85), (("--zeros",), 0.97)):
            for dtype in ("BF16", "F16"):
                tensors = self.write_model(dtype)
                found = self.quantized("--format", "w4a16", "--group", "16", *arguments)
                total = plain = 0
                for module, original in self.originals(tensors).items():
                    n, k = original.shape
                    self.assertEqual(found[module + ".weight_packed"][:2], ("I32", [n, k // 8]))
                    self.assertEqual(found[module + ".weight_scale"][:2],
                                     ("BF16" if dtype == "BF16" else "F32", [n, k // 16]))
                    self.assertEqual(found[module + ".weight_shape"], ("I64", [2], struct.pack("<2q", n, k)))
                    if arguments:
                        self.assertEqual(found[module + ".weight_zero_point"][:2],
                                         ("I32", [-(-n // 8), k // 16]))
                    decoded, scale, code, zero = decode(found, module, group=16)
                    if arguments:  # half a step more: the zero point is rounded as well
                        self.assertTrue((np.abs(decoded - original) <= scale * 9).all())
                        scale = scale * (1 + 1e-5)
                    total += self.close(original, decoded, scale, code, -8, 7)
                    groups = original.reshape(n, -1, 16)
                    step = np.abs(groups).max(2, keepdims=True) / 7
                    if arguments:
                        low, high = groups.min(2, keepdims=True), groups.max(2, keepdims=True)
                        step = (np.maximum(high, 0) - np.minimum(low, 0)) / 15
                    plain += ((np.rint(groups / step) * step - groups)**2).sum()
                self.assertLess(total, share * plain)  # of the error with scales for the largest
                self.again()

    def test_float8(self):
        for arguments, block in (((), None), (("--block", "16"), 16)):
            tensors = self.write_model()
            found = self.quantized("--format", "fp8", *arguments)
            for module, original in self.originals(tensors).items():
                n, k = original.shape
                self.assertEqual(found[module + ".weight"][:2], ("F8_E4M3", [n, k]))
                if block:
                    self.assertEqual(found[module + ".weight_scale_inv"][:2],
                                     ("F32", [-(-n // block), -(-k // block)]))
                else:
                    self.assertEqual(found[module + ".weight_scale"][:2], ("BF16", [n, 1]))
                decoded, scale, code, _ = decode(found, module, block=block)
                step = 2.0**np.maximum(np.floor(np.log2(np.abs(original / scale) + 1e-30)) - 3, -9)
                self.close(original, decoded, scale * step, code, -448, 448)
            self.again()

    def test_packing_is_that_of_compressed_tensors(self):
        for zeros, words in ((False, PACKED), (True, PACKED_ASYMMETRIC)):
            step = np.array([[2.0**-(n % 4 + 3 * g + 2) for g in range(2)] for n in range(10)])
            zero = zero_points() if zeros else np.zeros((10, 2))
            x = (codes(zeros) - zero.repeat(16, 1)) * step.repeat(16, 1)
            name = "model.layers.0.mlp.up_proj"
            self.write("model.safetensors", safetensors({name + ".weight": ("BF16", [10, 32],
                                                                            to_bits(x, "BF16"))}))
            found = self.quantized("--format", "w4a16", "--group", "16", *(["--zeros"] if zeros else []))
            self.assertEqual(values_of(found[name + ".weight_packed"]).tolist(), words)
            self.assertTrue((values_of(found[name + ".weight_scale"]) == step).all())
            if zeros:
                self.assertEqual(values_of(found[name + ".weight_zero_point"]).tolist(), PACKED_ZEROS)
            self.again()

    def test_float8_rounds_like_torch(self):
        values = np.array([e4m3(code) for code in range(127)])
        middles = ((values[:-1] + values[1:]) / 2).astype(np.float32)
        self.assertTrue((middles == (values[:-1] + values[1:]) / 2).all())
        expected = np.frombuffer(bytes.fromhex(E4M3_MIDDLES), np.uint8)
        np.testing.assert_array_equal(quantizer.to_e4m3(middles), expected)
        np.testing.assert_array_equal(quantizer.to_e4m3(-middles), expected | 0x80)
        np.testing.assert_array_equal(quantizer.to_e4m3(np.nextafter(middles, np.float32(0))), np.arange(126))
        np.testing.assert_array_equal(quantizer.to_e4m3(np.nextafter(middles, np.float32(1e9))),
                                      np.arange(1, 127))
        edges = np.array([0, -0.0, 448, 449, 480, 1e30, -1e30, 2.0**-149, -2.0**-149], np.float32)
        self.assertEqual(quantizer.to_e4m3(edges).tolist(),
                         [0, 0x80, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0, 0x80])

    def test_scales_round_to_even_bfloat16(self):
        x = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-23, 2 - 2.0**-23], np.float32)
        self.assertEqual(quantizer.to_bfloat16(x).tolist(), [0x3F80, 0x3F82, 0x3F81, 0x4000])

    def test_rows_of_zeros_and_of_extremes(self):
        x = np.zeros((5, 16), np.float32)
        x[1, 3] = 1e-40       # no normal scale
        x[2] = 3e38           # squares overflow
        x[2, ::2] = -3e38
        x[3] = 1e-30          # squares vanish
        x[4, 0] = -1
        tensors = {"model.layers.0.mlp.up_proj.weight": ("F32", [5, 16], to_bits(x, "F32"))}
        for arguments in (("w8a8",), ("fp8",), ("fp8", "--block", "8"), ("w4a16", "--group", "8"),
                          ("w4a16", "--group", "16", "--zeros")):
            self.write("model.safetensors", safetensors(tensors))
            with np.errstate(all="raise", under="ignore"):
                found = self.quantized("--format", *arguments)
            group = int(arguments[2]) if "--group" in arguments else None
            decoded = decode(found, "model.layers.0.mlp.up_proj", group, 8 if "--block" in arguments else None)[0]
            if "--block" not in arguments:  # there a row shares its scale with the others
                np.testing.assert_allclose(decoded[2:], x[2:], rtol=0.07, err_msg=str(arguments))
            self.assertTrue((decoded[:2] == 0).all())
            self.again()

    def test_pieces_of_a_matrix_make_the_same_files(self):
        self.write_model()
        for arguments in (("w8a8",), ("fp8",), ("fp8", "--block", "16"), ("w4a16", "--group", "16", "--zeros")):
            whole = self.quantized("--format", *arguments)
            self.again()
            with unittest.mock.patch.object(quantizer, "PIECE_VALUES", 100):
                with unittest.mock.patch.object(quantizer, "CHUNK", 7):
                    self.assertEqual(self.quantized("--format", *arguments), whole)
            self.again()

    def test_memory_does_not_grow_with_the_model(self):
        data = to_bits(np.full((1024, 1024), 0.5, np.float32), "BF16")
        self.write("model.safetensors", safetensors({
            f"model.layers.{layer}.mlp.up_proj.weight": ("BF16", [4096, 1024], data * 4) for layer in range(3)}))
        with unittest.mock.patch.object(quantizer, "PIECE_VALUES", 1 << 16):
            tracemalloc.start()
            code = self.run_script("--format", "w8a8")[0]
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        self.assertEqual(code, 0)
        self.assertLess(peak, 6 << 20)  # of 24 MiB, one matrix has 8


class Folder(Folders):
    def test_the_rest_stays(self):
        tensors = self.write_model()
        self.write("tokenizer.json", b"{}\n")
        self.write("LICENSE", b"terms\n")
        self.write("pytorch_model.bin", b"weights")
        self.write(".gitattributes", b"")
        os.mkdir(os.path.join(self.model, "original"))
        os.mkdir(self.out)  # an empty one may be there
        found = self.quantized("--format", "w8a8")
        self.assertEqual(sorted(os.listdir(self.out)),
                         ["LICENSE", "config.json", "model.safetensors", "tokenizer.json"])
        kept = tensors.keys() - {module + ".weight" for module in SHAPES}
        self.assertEqual({name: found[name] for name in kept}, {name: tensors[name] for name in kept})
        self.assertEqual(found.keys() - kept, {module + end for module in SHAPES
                                               for end in (".weight", ".weight_scale")})
        config = self.config()
        config.pop("quantization_config")
        self.assertEqual(config, {"model_type": "llama", "rms_norm_eps": 1e-05, "name": "\u00e9"})

    def test_the_configuration_is_what_the_makers_write(self):
        self.write_model()
        for name, arguments, group in (
                ("ct_int8_dynamic_llama", ("w8a8",), None), ("ct_int4_llama", ("w4a16", "--group", "16"), 32),
                ("ct_int4_asymmetric_qwen3", ("w4a16", "--group", "16", "--zeros"), 32),
                ("ct_fp8_dynamic_qwen3", ("fp8",), None), ("fp8_block_llama", ("fp8", "--block", "32"), None)):
            with open(os.path.join(REFERENCE, name, "config.json"), encoding="utf-8") as file:
                expected = json.load(file)["quantization_config"]
            if "quantization_status" in expected:
                expected["quantization_status"] = "compressed"
                if expected["config_groups"]["group_0"]["input_activations"]:  # newer versions write null
                    expected["config_groups"]["group_0"]["input_activations"]["observer"] = None
            if group:
                self.assertEqual(expected["config_groups"]["group_0"]["weights"].get("group_size"), group)
                expected["config_groups"]["group_0"]["weights"]["group_size"] = 16
            self.quantized("--format", *arguments)
            self.assertEqual(self.config()["quantization_config"], expected, name)
            self.again()

    def test_shards(self):
        tensors = self.write_model()
        whole = self.quantized("--format", "w4a16", "--group", "16")
        self.again()
        os.unlink(os.path.join(self.model, "model.safetensors"))
        self.write_shards(tensors)
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        first = self.quantized("--format", "w4a16", "--group", "16", name=names[0])
        second = read_safetensors(os.path.join(self.out, names[1]))
        self.assertEqual({**first, **second}, whole)
        self.assertFalse(os.path.exists(os.path.join(self.out, "model.safetensors")))
        with open(os.path.join(self.out, "model.safetensors.index.json"), encoding="utf-8") as file:
            index = json.load(file)
        self.assertEqual(index["weight_map"], {name: file for file, part in zip(names, (first, second))
                                               for name in part})
        self.assertEqual(index["metadata"]["total_size"], sum(len(data) for _, _, data in whole.values()))

    def test_ignored_modules(self):
        self.write_model(more={"vision.patch.weight": ("F32", [2, 3], bytes(24)),
                               "model.layers.0.experts.weight": ("BF16", [2, 2, 2], bytes(16))})
        found = self.quantized("--format", "w8a8", "--ignore", "re:.*layers.0.mlp", "model.layers.0.experts")
        self.assertEqual(self.config()["quantization_config"]["ignore"],
                         ["model.layers.0.mlp.down_proj", "vision.patch", "model.layers.0.experts"])
        self.assertEqual([name for name in found if name.endswith("_scale")],
                         ["lm_head.weight_scale", "model.layers.0.self_attn.q_proj.weight_scale",
                          "model.layers.1.self_attn.q_proj.weight_scale"])

    def test_modules_of_a_head(self):
        matrix = ("BF16", [16, 16], bytes(512))
        self.write("model.safetensors", safetensors({
            "fc.weight": matrix, "midlayer.mlp.up_proj.weight": matrix, "embed_tokens.weight": matrix,
            "norm.weight": ("BF16", [16], bytes(32))}))
        found = self.quantized("--format", "w8a8", "--modules", "re:.*", "--ignore", "fc")
        self.assertEqual([name for name in found if name.endswith("_scale")], ["midlayer.mlp.up_proj.weight_scale"])
        self.assertEqual(self.config()["quantization_config"]["ignore"], ["lm_head", "fc"])
        self.again()
        self.assertIn("fc.weight_scale", self.quantized("--format", "fp8", "--modules", "fc"))
        self.again()
        self.refused("--modules: found 'fd', expected a module", "--format", "w8a8", "--modules", "fc", "fd")

    def test_tied_embeddings(self):
        tensors = model()
        del tensors["lm_head.weight"]
        self.write("model.safetensors", safetensors(tensors))
        self.quantized("--format", "w8a8")
        self.assertEqual(self.config()["quantization_config"]["ignore"], ["lm_head"])

    def test_as_a_program(self):
        self.write_model()
        ran = subprocess.run([sys.executable, "-B", SCRIPT, self.model, self.out, "--format", "fp8"],
                             capture_output=True, text=True, check=True)
        self.assertEqual(ran.stderr, "")
        self.assertRegex(ran.stdout, "^'.*/out': 3 matrices quantized, 18768 bytes are 13730\n$")
        again = subprocess.run([sys.executable, "-B", SCRIPT, self.model, self.out, "--format", "fp8"],
                               capture_output=True, text=True, check=False)
        self.assertEqual((again.returncode, again.stdout), (1, ""))
        self.assertIn("found files, expected a name that is not taken, or an empty folder", again.stderr)


class Refused(Folders):
    def header(self, header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        self.write("model.safetensors", struct.pack("<Q", len(text)) + text + data)

    def test_options_that_do_not_go_together(self):
        self.write_model()
        self.refused("--group: found --format w8a8, expected --format w4a16", "--format", "w8a8", "--group", 64)
        self.refused("--zeros: found --format fp8", "--format", "fp8", "--zeros")
        self.refused("--block: found --format w4a16", "--format", "w4a16", "--group", 16, "--block", 128)
        self.refused("--group: found None, expected a multiple of 8", "--format", "w4a16")
        for group in (0, -8, 12):
            self.refused("expected a multiple of 8", "--format", "w4a16", "--group", group)
        self.refused("--block: found 4, expected 8 to 1024", "--format", "fp8", "--block", 4)
        self.refused("--ignore: found 'lm_heat', expected a module", "--format", "w8a8", "--ignore", "lm_heat")
        self.refused("--ignore: found 're:(', expected a regular expression", "--format", "w8a8",
                     "--ignore", "re:(")
        self.refused("expected it with --block", "--format", "fp8", "--block", 16, "--ignore")

    def test_matrices_that_the_format_cannot_hold(self):
        self.write_model()
        self.refused(["model.safetensors', tensor 'model.layers.0.self_attn.q_proj.weight'",
                      "found 64 inputs (shape [40, 64]), expected whole groups of 48"],
                     "--format", "w4a16", "--group", 48)
        for name, tensor, words in (
                ("model.layers.0.mlp.experts.gate_up_proj", ("BF16", [2, 2, 2], bytes(16)),
                 ["'model.layers.0.mlp.experts.gate_up_proj'", "found shape [2, 2, 2]",
                  "--ignore model.layers.0.mlp.experts.gate_up_proj"]),
                ("model.layers.0.mlp.up_proj.weight", ("I8", [2, 2], bytes(4)), "dtype: found I8"),
                ("model.layers.0.mlp.up_proj.weight", ("F64", [1, 1], bytes(8)), "dtype: found F64")):
            self.write_model(more={name: tensor})
            self.refused(words)
        self.write_model(more={"model.layers.0.mlp.down_proj.weight_scale": ("F32", [1], bytes(4))})
        self.refused(["'model.layers.0.mlp.down_proj.weight'",
                      "found also a tensor 'model.layers.0.mlp.down_proj.weight_scale'"])
        self.write("model.safetensors", safetensors({"transformer.h.0.c_attn.weight": ("F32", [1, 1], bytes(4))}))
        self.refused("found no matrix to quantize")

    def test_values_that_are_no_numbers(self):
        for dtype, value, name in (("BF16", np.nan, "nan"), ("F16", np.inf, "inf"), ("F32", -np.inf, "-inf")):
            x = np.zeros((300, 8), np.float32)
            x[210, 5] = value
            self.write_model(more={"model.layers.2.mlp.up_proj.weight": (dtype, [300, 8], to_bits(x, dtype))})
            with unittest.mock.patch.object(quantizer, "PIECE_VALUES", 800):
                self.refused(f"tensor 'model.layers.2.mlp.up_proj.weight', row 210, column 5: found {name}, "
                             "expected a finite number")

    def test_models_that_are_quantized(self):
        self.write_model()
        for key in ("quantization_config", "compression_config"):
            self.write("config.json", json.dumps({key: {"quant_method": "gptq"}}).encode())
            self.refused(f"config.json', {key}: found a dict of 1, expected no such key")
        self.write("config.json", b"{}")
        self.write("hf_quant_config.json", b"{}")
        self.refused("hf_quant_config.json': found a description of a quantized model")

    def test_folders_that_are_not_models(self):
        self.refused("model': found neither model.safetensors nor model.safetensors.index.json")
        self.write("pytorch_model.bin", b"")
        self.refused("pickle_to_safetensors.py converts the pickled weights")
        self.write_model()
        for config in (b"[]", b"{", b'{"a": 1, "a": 2}', b"[" * 100000):
            self.write("config.json", config)
            self.refused("config.json': found ")
        self.write("config.json", b"{}")
        with unittest.mock.patch.object(quantizer.json, "dumps", side_effect=RecursionError):
            self.refused("config.json': values are nested too deeply")
        os.truncate(os.path.join(self.model, "config.json"), (64 << 20) + 1)
        self.refused("config.json': found 67108865 bytes, expected at most 67108864")
        os.unlink(os.path.join(self.model, "config.json"))
        self.refused("config.json': No such file or directory")
        os.mkfifo(os.path.join(self.model, "config.json"))
        self.refused("config.json': found something that is not a regular file")

    def test_a_folder_that_has_files(self):
        self.write_model()
        os.mkdir(self.out)
        with open(os.path.join(self.out, "notes"), "wb"):
            pass
        self.refused("out': found files, expected a name that is not taken")
        self.out = self.model
        self.refused("model': found files, expected a name that is not taken")
        self.out = os.path.join(self.folder, "no", "out")
        self.refused("No such file or directory")

    def test_broken_headers(self):
        good = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
        name = "model.layers.0.a.weight"
        for data in (b"", b"1234567", struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{}"):
            self.write("model.safetensors", data)
            self.refused("expected safetensors: a header of at most 100000000 bytes that the file holds")
        for header in (b"[]", b"{", b"\xff", b'{"a": 1, "a": 1}', b"[" * 100000):
            self.header(header)
            self.refused("model.safetensors', header: found ")
        for entry, words in (
                (None, "found the value None, expected dtype, shape and data_offsets"),
                ({**good, "more": 1}, "found a dict of 4"),
                ({**good, "dtype": "F4"}, "dtype: found 'F4', expected one of F64"),
                ({**good, "dtype": ["F32"]}, "dtype: found ['F32']"),
                ({**good, "shape": [-2, -2]}, "shape: found [-2, -2]"),
                ({**good, "shape": [2, True]}, "shape: found [2, True]"),
                ({**good, "shape": [1] * 65}, "expected a list of at most 64 counts"),
                ({**good, "shape": [2**62, 2**62]}, "data_offsets: found [0, 16], expected [begin, begin + "),
                ({**good, "data_offsets": [0, 12]}, "data_offsets: found [0, 12], expected [begin, begin + 16]"),
                ({**good, "data_offsets": [16, 0]}, "data_offsets: found [16, 0]"),
                ({**good, "data_offsets": [0]}, "data_offsets: found [0]"),
                ({**good, "data_offsets": [4, 20]}, "found a begin at 4, expected 0")):
            self.header({name: entry}, bytes(20))
            self.refused([f"tensor '{name}'", words])
        self.header({name: good, "b": {**good, "data_offsets": [8, 24]}}, bytes(24))
        self.refused(["tensor 'b', data_offsets: found a begin at 8, expected 16"])
        self.header({name: good}, bytes(15))
        self.refused("as its header says; is it truncated?")
        self.header({name: good}, bytes(17))
        self.refused("as its header says; is it truncated?")

    def test_broken_indexes(self):
        tensors = model()
        self.write_shards(tensors)
        for weight_map, words in (
                ([], "weight_map: found a list of 0"), ({}, "weight_map: found a dict of 0"),
                ({"a": "../model.safetensors"}, "weight_map, 'a': found the text '../model.safetensors'"),
                ({"a": "model.bin"}, "ends with .safetensors"), ({"a": 1}, "found the value 1"),
                ({f"{n}": f"{n}.safetensors" for n in range(1025)}, "found 1025 files, expected at most 1024"),
                ({"a": "no.safetensors"}, "no.safetensors': No such file or directory"),
                ({"a": "model-00001-of-00002.safetensors"},
                 "found tensor 'a' in 'model-00001-of-00002.safetensors', expected one that the file has")):
            self.write_index(weight_map)
            self.refused(words)
        self.write_index({name: f"model-0000{1 + (at > 2)}-of-00002.safetensors"
                          for at, name in enumerate(tensors) if at != 1})
        self.refused("found no tensor 'model.layers.0.self_attn.q_proj.weight' in")

    def test_a_file_that_shrinks_while_it_is_read(self):
        self.write_model()
        real = os.pread
        with unittest.mock.patch.object(os, "pread", lambda handle, count, at: real(handle, count, at)[:5]
                                        if at < 9000 else b""):
            self.refused("expected the values that its header lists")


if __name__ == "__main__":
    unittest.main()
