#!/usr/bin/env python3
"""Pickled weights become safetensors bit for bit, and hostile files are refused in one line.

Usage: pickle_test.py SCRIPT, the path of pickle_to_safetensors.py. The files are built here, opcode
by opcode, but for RECORDED, which torch 2.15 wrote.
"""
import base64
import contextlib
import importlib.util
import io
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile
import zlib

SCRIPT = os.path.abspath(sys.argv.pop(1))
spec = importlib.util.spec_from_file_location("pickle_to_safetensors", SCRIPT)
converter = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(converter)
# Hundreds of fsync() take seconds beside other tests; test_as_a_program has the real one.
converter.sync = lambda file: file.flush()

# state_dict() of a module with one parameter, `w`, and buffers; then w.t(), w[1], and, as `p`, a
# Parameter of a transposed and cut tensor. zlib, base64.
RECORDED = (
    "eNqtl11sFFUUgGd3223ZFigt0GIRUBRbCsvO7nZ/QCgMdQUGpR1+XCu6zO5OuwvT3Z7Z25aiSPlpETUR0TcT4oNPGmOM"
    "MRpJSiTxwfgTQDQafcBogjyo8cEHEmO8d+50e++0ZdPWSaeb7s73nXNP556z0yG7ygShslKYdMwXlgiGpuob0ipSvX1H"
    "9Ji0SOiyH8POVCqv61oKZfO5gmePkdYMLd2eTSEPCM0KOJriDiwbBGcK5Y1UxpvoR1m94EkYWrI/q6cTSMsV8kZiwO8B"
    "V1NTvAJfXMBXqj0alFHEI8X0vIrE0F76vgfKTacP3HEXfk319UOF7EZQ2SkLslN2jcI82SU7RsFzLkNyqEJQrcB8091N"
    "VKEgLMjgaJnxCO35/qSuFf0LTb8INZkK2YlgkekdgVrZMQJ11LkYwRIFlk44A36o55xm0kVlg6n0wzKqvMdSNhLlcqq8"
    "F8EKBVZOKMUQrOKUO1S9u2i8zzQG4H5qXG0ZHyDGB6lxDYKHFGiKl+MLszmy7GbOtzuf6yn61pq+ILRQ3zrLt574vNS3"
    "AYFPAXHch5fs53w7cxMLDpi6VghSXaulCxFdmOoiCKIKbBzX4eVu4nR7M3ljQviwKQzBZircYgnbiHArFW5DICmwPV5G"
    "hRFo53zbM6pR1D1i6sIQo7pHLd0OottJdbsQyArsNvPrN32PcT5pCE3cM4+bvgjsob4Oy9dJfAr17UWwT4H9ZnrJfF6H"
    "A7wOv1XUPWHqohCnuictXRfRPUV1BxE8rcAzcTfZMilVVw1IUGGmIe4kN7APDmHcgUDFeHMzxZIIUgqkzVVpvX1oCDSe"
    "EqEbUwKCHhJUIPspQ/dTlhoOIziigG5uvkEvgl6LL8+4M+ZGzBHQJTtHIS87CN9HQUBgKFAwQSM/CMgO9ndizDUCA2SZ"
    "gxQ6imBIgWNmPfrg2WnaSJ9qqL0a0gwPPMcvxw/Hqfz5TtwcnCSrEzgr/DJMA5xEcEqB0y+Yf5w5CyMKjPYfh7PxeRhP"
    "YKlKOiDQz8/FSW+EF4/DS+ZGHdCMAu588LLsKBQKSW+HXFH5eWdrsgaXl5wd0/bXxYKX9ldvd97oVVHCUsWktZPb7LSH"
    "SAJ+9OdPp0l5yDl9wHphoxXQarAJVc/25Hq1HIpJoRnEZI9QkCTQNgi3SbGdd01ggSDRBJJ44+TJpIhJW2YZd/zQswjp"
    "GslhZPMvy8hWcN81hyph28RU2+CLSZvnlsCdscbLCy+3tO0au9NGsvjrh9t/VOM41SWy2MRkIcak8GyzeKPv4tWKL1+B"
    "D291NK776ottJIfd7+y4VIOj1JTIIczk4I9Jgdnk8N6KGweOX/h3iMT95+OBH0mgyhJx25i4gZi0aS7/gXOHm2+T2Pq7"
    "n2VJXy0rEXs7EzsYk9rmePt1jZ283nP+6/KNwtUzubeyHzSSXD69mnx7pvVvnWX9Vzrb12S/ea2WxM382vX7TOsfmmP9"
    "4e+zaRK7zvntiZnWP/w/1F/vJdHfb7lwqXT/qRLKmeiRmOQQui6OEf5my5VTM+WjJu8QCD+2+kq8NF+Nq8Psetx8yLur"
    "thKD95PlV/j6CVMaJNYgzr1/3i3bpWws3CBqp4hFrx1uw7+24h98DuPzTXNN9edvvdqAP2goURVrDs5q/gU8JNK1iz37"
    "S9e/UWi1BqC5pIJmZPEEPKaSR5dENh2TxJkX0xeK+gLBqC8aDUcCYjAYCLf6fCFf2B8RfZFoUIxGfWIkGg6TLNem7/zW"
    "hPNoMrN0kGSLebLfGeZPypx7DrOj7PRfzGGHyoUpv2LYDez4rucM14qGSd8Z7BJ2/i7gJIpbsM19O8tOzSqO/c4tsPPa"
    "DrKjjgcPVrCgaAfZWcWDNznQbwfZQcOD8UoWDNhBdirw4A0ODNpBtq3z4KF5LNhqB9mezIPfc2DIDrLtlAf3eVgwbAfZ"
    "PsqD1zkwYgfZBsqDtVUsGLWDbN+s5u86DhSLt87UfZU9XufJSfcO29eqJ4nYnmkn2T7Fk5lxcpotyvaORr6y4+TUXa1D"
    "drvXWZeucK0vYnW2V/OmxsdRq/tgjjzfCD8von/TZ4tyN2XqzOvptf8B5+IaWw=="
)
# What torch.load() made of it: type, shape, the bytes of contiguous().
RECORDED_VALUES = {
    "w": ("BF16", [2, 3], "f9be1bbf0fbf2b3f4abef93f"),
    "float64": ("F64", [2], "9b709ed007cc8f71b5e7501b2ccdcb41"),
    "float32": ("F32", [2], "af1ed4567d92fe79"),
    "float16": ("F16", [2], "896a29e9"),
    "int64": ("I64", [2], "be81d26790ce053a00d0846ea469b31b"),
    "int32": ("I32", [2], "1f02442669d39312"),
    "int16": ("I16", [2], "71f58764"),
    "int8": ("I8", [2], "6c6d"),
    "uint8": ("U8", [2], "9ebe"),
    "bool": ("BOOL", [2], "0100"),
    "scalar": ("F32", [], "00002040"),
    "empty": ("F32", [0, 3], ""),
    "w.t": ("BF16", [3, 2], "f9be2b3f1bbf4abe0fbff93f"),
    "row": ("BF16", [3], "2b3f4abef93f"),
    "p": ("F32", [2, 2], "0000004000008040000040400000a040"),
}

# --- A pickle by hand

ORDERED_DICT = b"ccollections\nOrderedDict\n)R"


def text(value):
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def number(value):
    if -2**31 <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def call(name, *arguments):
    return b"c" + name.encode().replace(b" ", b"\n") + b"\n" + several(*arguments) + b"R"


def several(*values):
    return b"(" + b"".join(values) + b"t"


def numbers(values):
    return several(*map(number, values))


def storage(kind="FloatStorage", key="0", count=6, device=text("cpu"), first=text("storage")):
    return several(first, f"ctorch\n{kind}\n".encode(), text(key), device, number(count)) + b"Q"


def tensor(of, offset=0, shape=(2, 3), strides=(3, 1), hooks=ORDERED_DICT, more=b""):
    return call("torch._utils _rebuild_tensor_v2", of, number(offset), numbers(shape),
                numbers(strides), b"\x89", hooks, more)


def dict_of(entries, start=b"}"):
    return start + b"(" + b"".join((text(key) if isinstance(key, str) else key) + value
                                   for key, value in entries.items()) + b"u"


def pickled(entries):
    return b"\x80\x02" + (dict_of(entries) if isinstance(entries, dict) else entries) + b"."


SIX = struct.pack("<6f", *range(6))
ONE = {"a": tensor(storage())}


def archive(pickle, storages=None, root="weights", order=b"little", more=(), without=(),
            method=zipfile.ZIP_STORED):
    """The bytes of a file of torch.save()."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        members = {"data.pkl": pickle, "byteorder": order}
        members.update({f"data/{key}": value
                        for key, value in ({"0": SIX} if storages is None else storages).items()})
        members["version"] = b"3\n"
        for name, data in members.items():
            if name not in without:
                file.writestr(f"{root}/{name}", data, method)
        for name, data in more:
            with contextlib.suppress(UserWarning):
                file.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def read_safetensors(path):
    """name -> type, shape, bytes; checks that the values follow each other, and are aligned"""
    with open(path, "rb") as file:
        data = file.read()
    header_bytes, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + header_bytes])
    assert header.pop("__metadata__") == {"format": "pt"}
    values, at, found = data[8 + header_bytes:], 0, {}
    assert header_bytes % 8 == 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        item = {"64": 8, "32": 4, "16": 2, "8": 1, "OOL": 1}[entry["dtype"].lstrip("BFIU")]
        assert begin == at and begin % item == 0, (name, begin, at)
        assert end - begin == math.prod(entry["shape"]) * item, (name, entry)
        found[name] = (entry["dtype"], entry["shape"], values[begin:end])
        at = end
    assert at == len(values)
    return found


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="specd_pickle_")
        self.addCleanup(subprocess.run, ["rm", "-r", self.folder], check=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, data):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def files(self):
        return sorted(os.path.relpath(os.path.join(at, name), self.folder)
                      for at, _, names in os.walk(self.folder) for name in names)

    def run_script(self, *arguments):
        """-> the exit code, standard output, standard error"""
        out, err, code = io.StringIO(), io.StringIO(), 0
        before, sys.argv = sys.argv, ["pickle_to_safetensors.py", *arguments]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                converter.main()
        except SystemExit as end:  # any other exception fails the test
            code = end.code
            if isinstance(code, str):  # as the interpreter does
                code, err = 1, io.StringIO(code + "\n")
        finally:
            sys.argv = before
        return code, out.getvalue(), err.getvalue()

    def converted(self, data, *arguments):
        path = self.write("in.pt", data)
        code, out, err = self.run_script(path, "--force", *arguments)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.count("\n"), 1)
        return read_safetensors(self.path("in.safetensors"))

    def refused(self, words, *arguments, where=None):
        """Runs the script, which must refuse `where`, for these words, and leave nothing."""
        before = self.files()
        code, out, err = self.run_script(*arguments)
        self.assertEqual((code, out), (1, ""), err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.isascii() and err[:-1].isprintable() and len(err) < 1500, err)
        self.assertIn(ascii(where or arguments[0]), err)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, err)
        self.assertEqual(self.files(), before)

    def refused_file(self, words, data, *arguments):
        self.refused(words, self.write("in.pt", data), *arguments)


class Values(Files):
    def test_what_torch_wrote(self):
        data = zlib.decompress(base64.b64decode(RECORDED))
        found = self.converted(data)
        self.assertEqual({name: (dtype, shape, values.hex())
                          for name, (dtype, shape, values) in found.items()}, RECORDED_VALUES)

    def test_types_and_their_bytes(self):
        kinds = {"Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16", "Long": "I64",
                 "Int": "I32", "Short": "I16", "Char": "I8", "Byte": "U8", "Bool": "BOOL"}
        numbers_ = random.Random(7)
        entries, storages = {}, {}
        for key, kind in enumerate(kinds):
            item = int({"F64": 8, "F32": 4, "I64": 8, "I32": 4, "F16": 2, "BF16": 2,
                        "I16": 2}.get(kinds[kind], 1))
            storages[str(key)] = bytes(numbers_.randrange(256) for _ in range(3 * item))
            entries[kind] = tensor(storage(f"{kind}Storage", str(key), 3), 0, (3,), (1,))
        found = self.converted(archive(pickled(entries), storages))
        self.assertEqual(found, {kind: (kinds[kind], [3], storages[str(key)])
                                 for key, kind in enumerate(kinds)})
        # From a machine of the other byte order.
        found = self.converted(archive(pickled(entries), storages, order=b"big"))
        for key, kind in enumerate(kinds):
            data = storages[str(key)]
            item = len(data) // 3
            swapped = b"".join(data[at:at + item][::-1] for at in range(0, len(data), item))
            self.assertEqual(found[kind], (kinds[kind], [3], swapped))

    def test_strides_and_offsets_of_a_shared_storage(self):
        count = 5000
        data = struct.pack(f"<{count}h", *range(count))
        cases = {
            "all": (0, (50, 100), (100, 1)), "transposed": (0, (100, 50), (1, 100)),
            "offset": (17, (3, 4), (4, 1)), "every third": (2, (20,), (3,)),
            "last": (count - 1, (1,), (1,)), "0-d": (9, (), ()), "empty": (count, (0, 4), (4, 1)),
            "empty, far": (10**9, (3, 0), (9, 9)), "ones": (5, (1, 1, 3, 1), (77, 0, 1, 5000)),
            "expanded": (4, (3, 2, 5), (0, 10, 1)), "one value": (8, (40,), (0,)),
            "permuted": (0, (4, 5, 6, 7), (1, 4 * 6, 4, 4 * 5 * 6)),
            "cut": (111, (3, 5, 2), (1000, 10, 2)), "overlap": (0, (9, 9), (1, 1)),
        }
        of = storage("ShortStorage", "0", count)
        entries = {name: tensor(of, *case) for name, case in cases.items()}
        with unittest.mock.patch.object(converter, "CHUNK", 7):  # so that rows come in pieces
            found = self.converted(archive(pickled(entries), {"0": data}))

        def elements(offset, shape, strides):
            if not shape:
                return [offset]
            return [value for i in range(shape[0])
                    for value in elements(offset + i * strides[0], shape[1:], strides[1:])]
        for name, (offset, shape, strides) in cases.items():
            values = elements(offset, shape, strides)
            self.assertEqual(found[name],
                             ("I16", list(shape), struct.pack(f"<{len(values)}h", *values)), name)

    def test_parameters_protocols_and_attributes(self):
        parameter = call("torch._utils _rebuild_parameter", tensor(storage()), b"\x88",
                         ORDERED_DICT)
        versions = dict_of({"": dict_of({"version": number(1)})}, ORDERED_DICT)
        body = (dict_of({"a": parameter}, ORDERED_DICT) + dict_of({"_metadata": versions}) + b"b")
        expected = {"a": ("F32", [2, 3], SIX)}
        self.assertEqual(self.converted(archive(pickled(body))), expected)
        # Protocol 4 has frames, and globals from the stack.
        def short(value):
            return b"\x8c" + bytes([len(value)]) + value.encode() + b"\x94"
        of = several(short("storage"), short("torch") + short("FloatStorage") + b"\x93",
                     short("0"), short("cpu"), b"K\x06") + b"Q"
        hooks = short("collections") + short("OrderedDict") + b"\x93)R"
        made = (short("torch._utils") + short("_rebuild_tensor_v2") + b"\x93" +
                several(of, b"K\x00", b"K\x02K\x03\x86", b"K\x03K\x01\x86", b"\x89", hooks) + b"R")
        body = b"}\x94" + short("a") + made + b"\x94s" + short("b") + b"h\x0bs."  # 11: the tensor
        self.assertEqual(
            self.converted(archive(b"\x80\x04\x95" + struct.pack("<Q", len(body)) + body)),
            {"a": ("F32", [2, 3], SIX), "b": ("F32", [2, 3], SIX)})

    def test_tensors_inside_a_dict(self):
        inner = dict_of(ONE)
        expected = {"a": ("F32", [2, 3], SIX)}
        plain = several(number(1), b"N", b"\x88", b"]", dict_of({"x": text("y")}))
        self.assertEqual(self.converted(archive(pickled({"state_dict": inner}))), expected)
        path = self.write("in.pt", archive(pickled({"epoch": number(3), "state_dict": inner,
                                                    "more": plain})))
        code, out, err = self.run_script(path, "--force")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("1 tensors, 24 bytes; left out: 'epoch', 'more'\n", out)
        both = archive(pickled({"model": inner, "optimizer": dict_of({"state": dict_of({
            number(0): several(dict_of(ONE))})})}))
        self.refused_file(["'model' (a dict of 1), 'optimizer' (a dict of 1)", "--key"], both)
        self.assertEqual(self.converted(both, "--key", "model"), expected)
        self.refused_file("expected an entry 'mode'", both, "--key", "mode")
        self.refused_file("entry 'optimizer', entry 'state': found a dict of 1", both, "--key",
                          "optimizer")
        self.refused_file("entry 'state_dict', entry 'b': found the value 3, expected a tensor",
                          archive(pickled({"state_dict": dict_of({**ONE, "b": number(3)})})))
        self.refused_file("entry 'm', entry 'n': found a dict of 1, expected a tensor",
                          archive(pickled({"m": dict_of({"n": inner})})))

    def test_names_and_lines(self):
        name = 'w\u00e9 "1"\n'
        path = self.write("in.pt", archive(pickled({name: tensor(storage())})))
        code, out, err = self.run_script(path, self.path("out"), "--verbose")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out, f"{ascii(name)} F32 [2, 3]\n{ascii(self.path('out'))}: 1 tensors, "
                         "24 bytes\n")
        self.assertEqual(read_safetensors(self.path("out")), {name: ("F32", [2, 3], SIX)})

    def test_a_file_is_not_replaced_unless_asked(self):
        path = self.write("in.pt", archive(pickled(ONE)))
        self.write("in.safetensors", b"old")
        os.mkdir(self.path("folder"))
        self.refused("--force", path, where=self.path("in.safetensors"))
        self.refused("a folder", path, self.path("folder"), "--force", where=self.path("folder"))
        self.refused("the file that is read", path, path, "--force")
        self.refused("No such file", path, self.path("nowhere/out"),
                     where=self.path(f"nowhere/.out.{os.getpid()}.part"))
        self.assertEqual(self.run_script(path, "--force")[0], 0)
        self.assertEqual(self.files(), ["in.pt", "in.safetensors"])
        mode = os.stat(self.path("in.safetensors")).st_mode
        self.assertEqual(mode, os.stat(self.path("in.pt")).st_mode, "as any other new file")


class Folders(Files):
    def shards(self, index=None):
        """Two shards and their index, in the folder `model`."""
        for number_, name in (1, "a"), (2, "b"):
            self.write(f"model/pytorch_model-0000{number_}-of-00002.bin",
                       archive(pickled({name: tensor(storage())}), root="pytorch_model"))
        good = {"metadata": {"total_size": 48},
                "weight_map": {"b": "pytorch_model-00002-of-00002.bin",
                               "a": "pytorch_model-00001-of-00002.bin"}}
        data = json.dumps(good if index is None else index).encode()
        self.write("model/pytorch_model.bin.index.json", data)
        return good

    def test_shards(self):
        self.shards()
        code, out, err = self.run_script(self.path("model"), self.path("out"))
        self.assertEqual((code, err), (0, ""))
        self.assertTrue(out.endswith("2 tensors, 48 bytes, 2 files\n"), out)
        with open(self.path("out/model.safetensors.index.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file), {
                "metadata": {"total_size": 48},
                "weight_map": {"a": "model-00001-of-00002.safetensors",
                               "b": "model-00002-of-00002.safetensors"}})
        for shard, name in (1, "a"), (2, "b"):
            self.assertEqual(
                read_safetensors(self.path(f"out/model-0000{shard}-of-00002.safetensors")),
                {name: ("F32", [2, 3], SIX)})
        self.assertEqual(len(self.files()), 6)
        # In the same folder.
        self.assertEqual(self.run_script(self.path("model"))[0], 0)
        self.assertEqual(len(self.files()), 9)
        shard = self.path("model/model-00001-of-00002.safetensors")
        self.refused("--force", self.path("model"), where=shard)
        self.assertEqual(self.run_script(self.path("model"), "--force")[0], 0)
        single = self.write("model/model.safetensors", b"")
        self.refused("read instead of shards", self.path("model"), "--force", where=single)

    def test_an_index_that_lies(self):
        good = self.shards()
        index = self.path("model/pytorch_model.bin.index.json")
        shard = self.path("model/pytorch_model-00002-of-00002.bin")

        def refused(words, where=index, **weight_map):
            self.shards({"weight_map": {**good["weight_map"], **weight_map}})
            self.refused(words, self.path("model"), where=where)
        first = "pytorch_model-00001-of-00002.bin"
        refused(f"found tensor 'c' in {first!r}, expected one that the file has", c=first)
        refused(f"found tensor 'b' in {first!r}", b=first)
        self.shards()
        self.write(f"model/{first}", archive(pickled({**ONE, "c": tensor(storage())})))
        self.refused(f"found no tensor 'c' in {first!r}", self.path("model"), where=index)
        refused("No such file", self.path("model/gone.bin"), c="gone.bin")
        for name in ("../model/x.bin", "/etc/passwd", "a/b.bin", ".x.bin", "x.txt", "", "\0.bin",
                     "x\n.bin", 3, None, [[]], {"a": 1}, "a" * 300 + ".bin"):
            refused(["weight_map, 'c'", "the name of a file of this folder"], c=name)
        for wrong in ([], 3, "x", {}, {"weight_map": 3}, {"weight_map": {}}):
            self.shards(wrong)
            self.refused("{tensor: file, ...}", self.path("model"), where=index)
        for data in (b"", b"{", b"\xff", b"[" * 100000, b'{"weight_map": {"a": "b", "a": "c"}}'):
            self.write("model/pytorch_model.bin.index.json", data)
            self.refused("found what is no JSON", self.path("model"), where=index)
        # The second shard fails: the first one does not stay.
        self.shards()
        os.truncate(shard, 100)
        self.refused("a broken zip", self.path("model"), where=shard)
        os.remove(shard)
        os.mkfifo(shard)
        self.refused("not a regular file", self.path("model"), where=shard)

    def test_a_folder_with_one_file(self):
        for name in "pytorch_model.bin", "medusa_lm_head.pt", "other.pth":
            self.write(f"{name}.d/{name}", archive(pickled(ONE)))
            if name != "other.pth":
                self.write(f"{name}.d/training_args.bin", b"")
            self.assertEqual(self.run_script(self.path(f"{name}.d"))[0], 0)
            self.assertEqual(read_safetensors(self.path(f"{name}.d/model.safetensors")),
                             {"a": ("F32", [2, 3], SIX)})
        # Another folder gets config.json, unless it has one.
        self.write("head/pytorch_model.bin", archive(pickled(ONE)))
        self.write("head/config.json", b"{}")
        for config in b"{}", b'{"mine": 1}':
            self.assertEqual(self.run_script(self.path("head"), self.path("out"), "--force")[0], 0)
            with open(self.path("out/config.json"), "rb") as file:
                self.assertEqual(file.read(), config)
            self.write("out/config.json", b'{"mine": 1}')
        os.mkdir(self.path("empty"))
        self.refused("no pickled file", self.path("empty"))
        self.write("two/a.bin", b"")
        self.write("two/b.pt", b"")
        self.refused(["found 'a.bin', 'b.pt'", "name the file"], self.path("two"))
        self.write("known/pytorch_model.bin", b"")
        self.write("known/medusa_lm_head.pt", b"")
        self.refused("found 'pytorch_model.bin', 'medusa_lm_head.pt'", self.path("known"))


class Hostile(Files):
    def test_globals_and_calls(self):
        marker = self.path("marker")
        shell = text(f"touch {marker}")
        base = len(pickled({"a": b""})) - 2  # the first byte of the entry's value
        for name in ("os system", "posix system", "builtins eval", "builtins getattr",
                     "torch.storage _load_from_bytes", "torch._utils _rebuild_tensor_v3",
                     "torch.storage UntypedStorage", "torch ComplexFloatStorage",
                     "torch._utils _rebuild_parameter_with_state", "torch.FloatStorage x",
                     "numpy.core.multiarray _reconstruct", "torch load", "collections Counter",
                     "\x1b[31m x", "x" * 3000 + " y"):
            data = archive(pickled({"a": call(name, shell)}))
            shown = name if len(name) < 99 else "x" * 70
            self.refused_file([f"data.pkl, byte {base}: found the global",
                               ascii(shown.replace(" ", "."))[1:-1]], data)
        stack_global = text("os") + text("system") + b"\x93" + several(shell) + b"R"
        self.refused_file("found the global 'os.system'",
                          archive(b"\x80\x04" + dict_of({"a": stack_global}) + b"."))
        self.refused_file("a global of the value 3 and", archive(pickled(number(3) + text("x") +
                                                                         b"\x93")))
        for body, words in (
                (call("torch FloatStorage", number(3)), "a call of torch.FloatStorage"),
                (call("collections OrderedDict", b"]"), "OrderedDict of 1 arguments"),
                (text("x") + b")R", "a call of the text 'x'"),
                (tensor(storage()) + b")R", "a call of a tensor"),
                (b"ccollections\nOrderedDict\nNR", "with the value None"),
                (b"cos\nsystem\n" + several(shell) + b"\x81", "global 'os.system'"),
                (b"ccollections\nOrderedDict\n)\x81", "opcode NEWOBJ"),
                (b"ccollections\nOrderedDict\n)}\x92", "opcode NEWOBJ_EX"),
                (b"\x82\x01", "opcode EXT1"), (b"\x83\x01\x00", "opcode EXT2"),
                (b"\x84\x01\x00\x00\x00", "opcode EXT4"),
                (b"(" + shell + b"ios\nsystem\n", "opcode INST"),
                (b"(cos\nsystem\n" + shell + b"o", "global 'os.system'"),
                (b"(ccollections\nOrderedDict\no", "opcode OBJ"),
                (b"P0\n", "opcode PERSID"), (b"\x97", "opcode NEXT_BUFFER"),
                (b"C\x01a", "opcode SHORT_BINBYTES"), (b"\x8b\x01\x00\x00\x00\x01", "opcode LONG4"),
                (b"I3\n", "opcode INT"), (b"V" + b"9" * 99 + b"\n", "opcode UNICODE"),
                (b"}}b", "expected an OrderedDict that this opcode changes"),
                (tensor(storage()) + b"}b", "found a tensor, expected an OrderedDict"),
                (ORDERED_DICT + b"Nb", "the value None as attributes"),
                (b"N.", "bytes after it"), (b"\x80\x02N", "found the opcode PROTO"),
                (b"NN", "2 objects"), (b"(N", "with 1 objects"), (b"", "with 0 objects"),
                (b"R", "no object on the stack"), (b"t", "no mark"), (b"(R", "no object"),
                (b"q\x00", "no object"), (b"h\x07", "the number 7"),
                (b"j\xff\xff\xff\xff", "the number 4294967295"),
                (b"NNa", "found the value None, expected a list"),
                (b"}(Nu", "a key without a value"), (b"}NNNs", "expected a dict"),
                (b"})Ns", "a tuple of 0 as the key"), (b"}]Ns", "a list of 0 as the key"),
                (b"})" + b"\x85" * 20000 + b"Ns", "a tuple of 1 as the key"),
                (dict_of({"a": b"N"}) + text("a") + b"Ns", "the key 'a' twice"),
                (b"X\xff\xff\xff\x7fabc", "what is no pickle"),
                (b"\x8d" + b"\xff" * 8, "no pickle"), (b"\x8e" + b"\xff" * 8, "no pickle"),
                (b"X\x02\x00\x00\x00\xff\xff", "no pickle"),
                (b"\x95\xff", "no pickle"), (b"\xff", "no pickle"), (b"cos", "no pickle"),
                (b"c\xff\n\xff\n", "no pickle"), (b"I" + b"9" * 9999 + b"\n", "no pickle"),
        ):
            self.refused_file([words, "data.pkl, byte "], archive(pickled(body)))
        for data, words in ((b"", "no pickle"), (b"}.", "PROTO, once, at the start"),
                            (b"\x80\x00}.", "protocol 0"), (b"\x80\x09}.", "protocol 9"),
                            (b"\x80\x02}", "no pickle")):
            self.refused_file([words, "data.pkl, byte "], archive(data))
        self.assertFalse(os.path.exists(marker))

    def test_what_is_no_dict_of_tensors(self):
        deep = b"]" * 20000 + b"a" * 19999
        loop = b"}q\x00" + text("a") + b"h\x00s"
        for body, words in (
                (tensor(storage()), "found a tensor, expected a dict"), (b"N", "the value None"),
                (b"]", "a list of 0"), (b"}", "an empty dict"), (text("x" * 999), "the text 'xxx"),
                (dict_of({"a": number(3)}), "no tensor in 'a' (the value 3)"),
                (dict_of({**ONE, "b": number(3)}), "entry 'b': found the value 3"),
                (dict_of({**ONE, "b": b"N"}), "entry 'b': found the value None"),
                (dict_of({**ONE, "b\x1b\n": text("c\n")}),
                 "entry 'b\\x1b\\n': found the text 'c\\n'"),
                (dict_of({**ONE, "b": b"]"}), "entry 'b': found a list of 0"),
                (dict_of({**ONE, "b": dict_of(ONE)}), "entry 'b': found a dict of 1"),
                (dict_of({**ONE, "b": b"ctorch\nFloatStorage\n"}), "entry 'b': found a global"),
                (dict_of({**ONE, "b": storage()}), "entry 'b': found a storage"),
                (dict_of({**ONE, number(7): tensor(storage())}), "found the value 7 as a key"),
                (dict_of({**ONE, b"N": tensor(storage())}), "found the value None as a key"),
                (dict_of({"m": dict_of({**ONE, number(7): tensor(storage())})}),
                 "the value 7 as a key"),
                (dict_of({"__metadata__": tensor(storage())}),
                 "entry '__metadata__': found this name"),
                (dict_of({"\ud800": tensor(storage())}), "entry '\\ud800': found this name"),
                (dict_of({"a": deep}), "no tensor in 'a' (a list of 1)"),
                (dict_of({**ONE, "b": deep}), "entry 'b': found a list of 1"),
                (b")" + b"\x85" * 20000, "found a tuple of 1"),
                (loop, "no tensor in 'a' (a dict of 1)"),
                (dict_of({"a": several(tensor(storage()))}), "entry 'a': found a tuple of 1"),
        ):
            self.refused_file(words, archive(pickled(body)))

    def test_tensors_that_do_not_fit(self):
        of = storage()
        huge = 2**62
        for value, words in (
                (tensor(of, 1), ["storage 0 of 6 elements", "at least 7"]),
                (tensor(of, 0, (3, 3)), "at least 9"),
                (tensor(of, 0, (2, 3), (4, 1)), "at least 7"),
                (tensor(of, 6, (), ()), "at least 7"), (tensor(of, 2**62, (1,), (1,)), "at least"),
                (tensor(of, 0, (2, 3), (huge, huge)), "at least"),
                (tensor(of, -1), "the value -1 as a tensor's offset"),
                (tensor(of, 0, (2, -3)), "the value -3 in a tensor's shape"),
                (tensor(of, 0, (2, 3), (-3, 1)), "the value -3 in a tensor's strides"),
                (tensor(of, 0, (2, 2**63)), "in a tensor's shape"),
                (tensor(of, 0, (2, 2**1000)), "in a tensor's shape"),
                (tensor(of, 2**1000), "a tensor's offset"),
                (tensor(of, 0, (2,), (3, 1)), "a tuple of at most 64, as many as the strides"),
                (tensor(of, 0, (1,) * 65, (1,) * 65), "a tuple of at most 64"),
                (tensor(of, 0, (0, huge, huge), (0, 0, 0)), "less than 2^63 bytes"),
                (tensor(of, 0, (huge, huge), (0, 0)), "less than 2^63 bytes"),
                (tensor(of, 0, (2**40,), (0,)),
                 ["tensors of 4398046511104 bytes", "share a storage"]),
                (tensor(of, hooks=dict_of({"x": b"N"})), "as a tensor's hooks"),
                (tensor(of, hooks=number(1)), "as a tensor's hooks"),
                (tensor(of, more=dict_of({"neg": b"\x88"})), "a dict of 1 as a tensor's metadata"),
                (tensor(of, more=b"NN"), "a tensor of a storage, the value 0"),
                (tensor(b"N"), "a tensor of the value None"),
                (call("torch._utils _rebuild_tensor_v2"), "a tensor of "),
                (tensor(of, 0, (2, 3), (3,)), "as many as the strides"),
                (call("torch._utils _rebuild_tensor_v2", of, b"\x88", numbers((1,)), numbers((1,)),
                      b"\x89", ORDERED_DICT), "the value True as a tensor's offset"),
                (call("torch._utils _rebuild_tensor_v2", of, number(0), number(1), numbers((1,)),
                      b"\x89", ORDERED_DICT), "the value 1 as a tensor's shape"),
                (call("torch._utils _rebuild_tensor_v2", of, number(0), numbers((1,)), b"N",
                      b"\x89", ORDERED_DICT), "the value None as a tensor's strides"),
                (call("torch._utils _rebuild_parameter", of, b"\x88", ORDERED_DICT),
                 "a parameter of a storage"),
                (call("torch._utils _rebuild_parameter", tensor(of)), "a parameter of a tensor"),
                (call("torch._utils _rebuild_parameter", tensor(of), b"\x88", b"]"), "hooks"),
                (tensor(storage(count=7)), "member 'weights/data/0': found 24 bytes, expected 28"),
                (tensor(storage("DoubleStorage")), "found 24 bytes, expected 48"),
                (tensor(storage(count=2**62)), "found 24 bytes"),
                (tensor(storage(key="1")), "no member 'weights/data/1'"),
                (tensor(storage(key="../data/0")),
                 "a persistent id of the text 'storage', a global, the text '../data/0'"),
                (tensor(storage(key="")), "a persistent id of"),
                (tensor(storage(count=-1)), "a persistent id of"),
                (tensor(storage(device=b"N")), "a persistent id of"),
                (tensor(storage(first=text("module"))), "the persistent id a tuple of 5"),
                (text("0") + b"Q", "the persistent id the text '0'"),
                (several(text("storage")) + b"Q", "the persistent id a tuple of 1"),
                (b"]Q", "the persistent id a list of 0"),
                (several(text("storage"), b"ccollections\nOrderedDict\n", text("0"), text("cpu"),
                         number(6)) + b"Q", "a persistent id of"),
                (several(of, storage("IntStorage")), "found storage 0 as I32"),
                (several(of, storage(count=5)),
                 "storage 0 as F32 of 5 elements, expected F32 of 6"),
        ):
            self.refused_file(words, archive(pickled({"a": value})))
        # The offset of an empty tensor does not matter, nor do its strides.
        empty = {"a": tensor(of, 99, (0, 2), (77, 88))}
        self.assertEqual(self.converted(archive(pickled(empty))), {"a": ("F32", [0, 2], b"")})

    def test_limits(self):
        for name, words in (("OPCODES_MAX", "at most 80"), ("PICKLE_BYTES_MAX", "at most 80"),
                            ("DIRECTORY_BYTES_MAX", "more than 80"),
                            ("HEADER_BYTES_MAX", "at most 80")):
            data = archive(pickled({**ONE, "b": b"]" + b"Na" * 40 if name == "OPCODES_MAX" else
                                    tensor(storage())}))
            with unittest.mock.patch.object(converter, name, 80):
                self.refused_file(words, data)

    def test_files_that_are_not_those_of_torch_save(self):
        whole = archive(pickled(ONE))
        legacy = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
        for data, words in (
                (legacy, ["not in a zip", "save it again with a recent torch"]),
                (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
                (struct.pack("<Q", 16) + b'{"a":1}         ', "safetensors already"),
                (b"", "found b'' at byte 0"), (b"\n" * 99, "at byte 0"),
                (b"PK\3\4", "a broken zip"),
                (b"\0" * 257 + b"ustar", "not in a zip"), (b"PK\5\6" + b"\0" * 18, "at byte 0"),
                (b"PK\3\4" + b"\0" * 30 + b"PK\5\6" + b"\0" * 18, "an empty zip"),
                (archive(pickled(ONE), without=["version"]), "no member 'weights/version'"),
                (archive(pickled(ONE), without=["data.pkl"]), "no member 'weights/data.pkl'"),
                (archive(pickled(ONE), order=b"middle"), "byteorder: found b'middle'"),
                (archive(pickled(ONE), order=b"l" * 99), "99 bytes, expected at most 16"),
                (archive(pickled(ONE), {"0": bytes(99999)}, method=zipfile.ZIP_DEFLATED),
                 "not compressed"),
                (archive(pickled(ONE), method=zipfile.ZIP_BZIP2), "not compressed"),
                (archive(pickled(ONE), more=[("weights/constants.pkl", b"")]), "TorchScript"),
                (whole + b"x" * 70000, "a broken zip"),
        ):
            self.refused_file(words, data)
        for name in ("/etc/passwd", "../x", "weights/../x", "weights//x", "weights/./x", "x",
                     "weights\\x/y", "weights/x\n", "weights/", "C:/../x", "other/x"):
            self.refused_file(["member '"], archive(pickled(ONE), more=[(name, b"x")]))
        with self.assertWarns(UserWarning):
            twice = archive(pickled(ONE), more=[("weights/data/0", b"x" * 24)])
        self.refused_file("the name twice", twice)
        for path in self.path("gone.pt"), self.path("gone/"):
            self.refused("No such file", path)
        os.mkfifo(self.path("fifo.pt"))
        self.refused("not a regular file", self.path("fifo.pt"))

    def test_a_zip_that_lies(self):
        whole = archive(pickled(ONE), {"0": SIX})
        path = self.write("in.pt", whole)
        with zipfile.ZipFile(path) as file:
            info = file.getinfo("weights/data/0")
            central = whole.index(b"PK\1\2", file.start_dir)
        while whole[central + 46:central + 46 + 14] != b"weights/data/0":
            central = whole.index(b"PK\1\2", central + 4)

        def patched(at, form, *values):
            data = bytearray(whole)
            struct.pack_into(form, data, at, *values)
            return bytes(data)
        local = info.header_offset
        for data, words in (
                (patched(central + 20, "<2L", 23, 24), "method 0, 23 bytes for 24"),
                (patched(central + 20, "<2L", 2**31, 2**31), "is the file truncated?"),
                (patched(central + 10, "<H", 8), "not compressed"),
                (patched(central + 10, "<H", 77), "not compressed"),
                (patched(central + 8, "<H", 1), "encrypted"),
                (patched(central + 42, "<L", 2**31), "a header at byte 2147483648"),
                (patched(central + 42, "<L", local + 1), "the member's header"),
                (patched(central + 42, "<L", 0), "with the name of the directory"),
                (patched(local, "<L", 7), "the member's header"),
                (patched(local + 28, "<H", 65535), "is the file truncated?"),
                (patched(local + 30, "<B", 65), "with the name of the directory"),
                (patched(local + 44, "<B", 65), "found bytes of CRC"),
                (patched(central + 16, "<L", 77), "expected 0000004d; is the file damaged?"),
                (patched(len(whole) - 22 + 12, "<L", 2**31), "a broken zip"),
        ):
            self.refused_file(words, data)
        # Torch can leave the CRC out.
        self.assertEqual(self.converted(patched(central + 16, "<L", 0))["a"], ("F32", [2, 3], SIX))
        # Members that lie over each other.
        more = archive(pickled(ONE), {"0": SIX * 100, "1": b"", "2": b""})
        data = bytearray(more)
        at, seen = more.index(b"PK\1\2"), None
        while at >= 0 and more[at:at + 4] == b"PK\1\2":
            name = more[at + 46:at + 46 + struct.unpack_from("<H", more, at + 28)[0]]
            if name in (b"weights/data/0", b"weights/byteorder"):
                struct.pack_into("<2L", data, at + 20, 2400, 2400)
            at = more.find(b"PK\1\2", at + 4)
            seen = name
        self.assertIsNotNone(seen)
        self.refused_file("bytes together, expected not more than the file", bytes(data))

    def test_what_is_cut_or_changed_anywhere(self):
        """Whatever the bytes are, the end is a result or one line."""
        inner = dict_of({"a": tensor(storage()), "b": tensor(storage(), 1, (2, 2), (1, 2))})
        pickle = pickled({"epoch": number(3), "state_dict": inner, "x": several(b"N", b"]")})
        whole = archive(pickle)
        for cut in range(0, len(whole), 17):
            self.refused_file("", whole[:cut])
        changes = random.Random(3)
        accepted = 0
        for turn in range(300):
            of = pickle if turn % 2 else whole
            data = bytearray(of)
            for _ in range(changes.randint(1, 3)):
                at = changes.randrange(len(data))
                data[at] = changes.choice([0, 1, 255, changes.randrange(256), data[at] ^ 1])
            path = self.write("in.pt", archive(bytes(data)) if of is pickle else bytes(data))
            code, _, err = self.run_script(path, "--force")
            self.assertIn((code, err.count("\n")), ((0, 0), (1, 1)), err)
            accepted += code == 0
        self.assertGreater(accepted, 0)
        self.assertLess(accepted, 150)

    def test_as_a_program(self):
        path = self.write("in.pt", archive(pickled({"a": call("os system", text("true"))})))
        ended = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True,
                               check=False)
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertEqual(ended.stderr.count("\n"), 1)
        self.assertIn("found the global 'os.system'", ended.stderr)
        self.write("in.pt", archive(pickled(ONE)))
        ended = subprocess.run([SCRIPT, path], capture_output=True, text=True, check=False)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
