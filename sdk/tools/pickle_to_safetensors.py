#!/usr/bin/env python3
"""Pickled weights of PyTorch (.bin, .pt) to safetensors; needs only Python's standard library.

  pickle_to_safetensors.py FILE [OUT]      OUT: default FILE with the ending .safetensors
  pickle_to_safetensors.py FOLDER [OUT]    OUT: a folder, default FOLDER
  --force      replace files that are there
  --key NAME   take the tensors of this entry, where a file has several that hold tensors
  --verbose    a line per tensor

In a folder, the shards that pytorch_model.bin.index.json names become
model-00001-of-0000N.safetensors with model.safetensors.index.json. Without an index,
pytorch_model.bin, medusa_lm_head.pt or the only .bin, .pt or .pth file becomes model.safetensors.
Another folder also gets a copy of config.json.

A file is a zip that torch.save() of PyTorch 1.6 or later wrote: a dict of tensors, or one with a
dict of tensors inside. Nothing of it is executed. The pickle is not loaded but read, opcode by
opcode, by the class Reader below, which knows tensors, dicts and plain values, and refuses every
other global, opcode and call. What does not fit ends the program with exit code 1 and a line that
names the file, what was found and what was expected. Values are copied bit for bit, from a map of
the file, so memory does not grow with it. Results appear under their name only when complete.
"""
import argparse
import array
import contextlib
import json
import mmap
import os
import pickletools
import re
import stat
import struct
import sys
import zipfile
import zlib

# torch.NAME -> type in safetensors, bytes; in the order in which its reference implementation
# writes them, so that all values are aligned
STORAGES = {"LongStorage": ("I64", 8), "DoubleStorage": ("F64", 8), "FloatStorage": ("F32", 4),
            "IntStorage": ("I32", 4), "BFloat16Storage": ("BF16", 2), "HalfStorage": ("F16", 2),
            "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1), "ByteStorage": ("U8", 1),
            "BoolStorage": ("BOOL", 1)}
RANKS = {dtype: rank for rank, (dtype, _) in enumerate(STORAGES.values())}
ORDERED_DICT = "collections OrderedDict"
TENSOR = "torch._utils _rebuild_tensor_v2"
PARAMETER = "torch._utils _rebuild_parameter"
ALLOWED = {ORDERED_DICT, TENSOR, PARAMETER, *(f"torch {name}" for name in STORAGES)}

INDEX = "pytorch_model.bin.index.json"
KNOWN = (INDEX, "pytorch_model.bin", "medusa_lm_head.pt")
ENDINGS = (".bin", ".pt", ".pth")
SINGLE_OUT = "model.safetensors"
INDEX_OUT = "model.safetensors.index.json"
CONFIG = "config.json"
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")

DIRECTORY_BYTES_MAX = 32 << 20  # of a zip
PICKLE_BYTES_MAX = 64 << 20
OPCODES_MAX = 4_000_000
INDEX_BYTES_MAX = 64 << 20
SHARDS_MAX = 1024
HEADER_BYTES_MAX = 100_000_000  # that readers of safetensors allow
DIMENSIONS_MAX = 64
INT_MAX = 2**63 - 1
# Tied weights are written once per name. More than this much is an attack on the disk.
GROWTH_MAX = 64
GROWTH_BYTES = 16 << 20
CHUNK = 1 << 20


class Refused(Exception):
    """Its text is the line that the user reads."""


def refuse(where, found, expected):
    raise Refused(f"{where}: found {found}, expected {expected}")


def quote(value, limit=80):
    """In one line, and not longer than about `limit` characters."""
    text = ascii(value)
    return text if len(text) <= limit else text[:limit - 3] + "..."


def kind_of(value):
    if isinstance(value, str):
        return f"the text {quote(value, 40)}"
    if isinstance(value, (dict, list, tuple)):
        kind = {list: "list", tuple: "tuple"}.get(type(value), "dict")
        return f"a {kind} of {len(value)}"
    if value is None or isinstance(value, (bool, int, float)):
        return f"the value {quote(value, 30)}"
    return {Tensor: "a tensor", Storage: "a storage", Global: "a global"}[type(value)]


def is_count(value):
    return type(value) is int and 0 <= value <= INT_MAX  # a bool is an int for isinstance()


def open_regular(path):
    """Opens what is a file, of whatever size. With O_NONBLOCK, opening a FIFO cannot hang."""
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        refuse(quote(path, 400), "something that is not a regular file", "a file")
    return file


# --- What a pickle may hold, besides None, bool, int, float, str, tuple, list and dict


class Global:
    def __init__(self, name):
        self.name = name


class OrderedDict(dict):
    """Of collections; keeps no attributes."""


class Storage:
    def __init__(self, dtype, item, key, count):
        self.dtype, self.item, self.key, self.count = dtype, item, key, count


class Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides
        self.count = 1
        for n in shape:
            self.count *= n
        self.bytes = self.count * storage.item


class Reader:
    """Reads a pickle by the rules above. Calls nothing that the pickle names."""

    def __init__(self, data, where):
        self.data, self.where = data, where
        self.at = 0        # the opcode's first byte
        self.stack = []
        self.marks = []    # heights of the stack
        self.memo = {}
        self.storages = {}

    def refuse(self, found, expected):
        refuse(f"{self.where}, byte {self.at}", found, expected)

    def read(self):
        """The object that the pickle describes."""
        count = 0
        try:
            for opcode, argument, at in pickletools.genops(self.data):
                self.at = at
                if (count == 0) != (opcode.name == "PROTO"):
                    self.refuse(f"the opcode {opcode.name}",
                                "PROTO, once, at the start of the pickle")
                count += 1
                if count > OPCODES_MAX:
                    self.refuse("one more opcode", f"at most {OPCODES_MAX}")
                if opcode.name == "STOP":
                    break
                step = self.STEPS.get(opcode.name)
                if step is None:
                    self.refuse(f"the opcode {opcode.name}",
                                "only those that torch.save() writes for tensors and plain values")
                step(self, argument)
        except (ValueError, OverflowError, struct.error) as error:
            self.refuse(f"what is no pickle after it ({quote(str(error))})", "a complete pickle")
        if self.at + 1 != len(self.data):
            self.refuse(f"the end of the pickle, and {len(self.data) - self.at - 1} bytes after it",
                        "nothing after it")
        if len(self.stack) != 1 or self.marks:
            self.refuse(f"the end of the pickle with {len(self.stack)} objects", "one object")
        return self.stack[0]

    def pop(self):
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            self.refuse("no object on the stack", "one that this opcode takes")
        return self.stack.pop()

    def pop_to_mark(self):
        if not self.marks:
            self.refuse("no mark on the stack", "one that this opcode takes")
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def top(self, kind, name):
        value = self.pop()
        if not isinstance(value, kind):
            self.refuse(kind_of(value), f"{name} that this opcode changes")
        self.stack.append(value)
        return value

    def push(self, value):
        self.stack.append(value)

    def proto(self, version):
        if not 2 <= version <= 5:
            self.refuse(f"protocol {version}", "2 to 5")

    def tuple_of(self, n):
        items = [self.pop() for _ in range(n)]
        self.stack.append(tuple(reversed(items)))

    def extend(self, items):
        self.top(list, "a list").extend(items)

    def set_items(self, items):
        target = self.top(dict, "a dict")
        if len(items) % 2:
            self.refuse("a key without a value", "pairs")
        for key, value in zip(items[::2], items[1::2]):
            # Not a tuple: Python's hash of a deeply nested one overflows the C stack.
            if not (key is None or isinstance(key, (str, bool, int, float))):
                self.refuse(f"{kind_of(key)} as the key of a dict", "a text or a number")
            if isinstance(key, str) and key in target:
                self.refuse(f"the key {quote(key)} twice", "it once")
            target[key] = value

    def put(self, index):
        if not self.stack:
            self.refuse("no object on the stack", "one to remember")
        self.memo[index] = self.stack[-1]

    def get(self, index):
        if index not in self.memo:
            self.refuse(f"the number {index}", "that of an object met before")
        self.stack.append(self.memo[index])

    def find_global(self, name):
        if name not in ALLOWED:
            self.refuse(f"the global {quote(name.replace(' ', '.'))}",
                        "OrderedDict and what rebuilds tensors; nothing else is loaded")
        self.stack.append(Global(name))

    def stack_global(self):
        name, module = self.pop(), self.pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            self.refuse(f"a global of {kind_of(module)} and {kind_of(name)}", "two texts")
        self.find_global(f"{module} {name}")

    def reduce(self):
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            self.refuse(f"a call of {kind_of(function)} with {kind_of(arguments)}",
                        "a global and a tuple")
        if function.name == ORDERED_DICT:
            if arguments:
                self.refuse(f"OrderedDict of {len(arguments)} arguments", "none")
            self.stack.append(OrderedDict())
        elif function.name == TENSOR:
            self.stack.append(self.tensor(arguments))
        elif function.name == PARAMETER:
            if len(arguments) != 3 or not isinstance(arguments[0], Tensor):
                self.refuse("a parameter of " + ", ".join(map(kind_of, arguments[:4])),
                            "a tensor, requires_grad and hooks")
            self.check_hooks(arguments[2])
            self.stack.append(arguments[0])
        else:
            self.refuse(f"a call of {function.name.replace(' ', '.')}", "no call of it")

    def check_hooks(self, hooks):
        if hooks is not None and not (isinstance(hooks, dict) and not hooks):
            self.refuse(f"{kind_of(hooks)} as a tensor's hooks", "an empty OrderedDict")

    def tensor(self, arguments):
        if len(arguments) not in (6, 7) or not isinstance(arguments[0], Storage):
            self.refuse("a tensor of " + ", ".join(map(kind_of, arguments[:7])),
                        "a storage, an offset, a shape, strides, requires_grad and hooks")
        storage, offset, shape, strides = arguments[:4]
        self.check_hooks(arguments[5])
        if len(arguments) == 7 and arguments[6] not in (None, {}):
            self.refuse(f"{kind_of(arguments[6])} as a tensor's metadata", "none: it can change "
                        "what the values mean")
        if not is_count(offset):
            self.refuse(f"{kind_of(offset)} as a tensor's offset", "an int from 0")
        for what, numbers in (("shape", shape), ("strides", strides)):
            if not isinstance(numbers, tuple) or not len(shape) == len(numbers) <= DIMENSIONS_MAX:
                self.refuse(f"{kind_of(numbers)} as a tensor's {what}",
                            f"a tuple of at most {DIMENSIONS_MAX}, as many as the strides")
            for number in numbers:
                if not is_count(number):
                    self.refuse(f"{kind_of(number)} in a tensor's {what}", "an int from 0")
        nonzero = storage.item
        for number in shape:
            nonzero *= number or 1
        if nonzero > INT_MAX:
            self.refuse(f"a tensor of shape {quote(list(shape))}", "one of less than 2^63 bytes")
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides))
        needed = 0 if 0 in shape else last + 1
        if needed > storage.count:
            self.refuse(f"storage {storage.key} of {storage.count} elements",
                        f"at least {needed}, for shape {quote(list(shape))} at offset {offset} "
                        f"with strides {quote(list(strides))}")
        return Tensor(storage, offset, shape, strides)

    def storage(self):
        identity = self.pop()
        expected = "('storage', a torch storage type, a number as text, a device, a count)"
        if not isinstance(identity, tuple) or len(identity) != 5 or identity[0] != "storage":
            self.refuse(f"the persistent id {kind_of(identity)}", expected)
        _, kind, key, location, count = identity
        if (not isinstance(kind, Global) or not kind.name.startswith("torch ") or
                not isinstance(key, str) or not re.fullmatch("[0-9]{1,9}", key) or
                not isinstance(location, str) or not is_count(count)):
            self.refuse("a persistent id of " + ", ".join(map(kind_of, identity)), expected)
        dtype, item = STORAGES[kind.name[len("torch "):]]
        made = self.storages.setdefault(key, Storage(dtype, item, key, count))
        if (made.dtype, made.count) != (dtype, count):
            self.refuse(f"storage {key} as {dtype} of {count} elements",
                        f"{made.dtype} of {made.count}, as before")
        self.stack.append(made)

    def build(self):
        # state_dict() of a module has an attribute _metadata: versions, that loading does not need.
        state = self.pop()
        self.top(OrderedDict, "an OrderedDict")
        if not isinstance(state, dict):
            self.refuse(f"{kind_of(state)} as attributes of an OrderedDict", "a dict")

    STEPS = {
        "PROTO": proto,
        "FRAME": lambda self, _: None,
        "MARK": lambda self, _: self.marks.append(len(self.stack)),
        "NONE": push, "BINFLOAT": push, "LONG1": push,
        "BININT": push, "BININT1": push, "BININT2": push,
        "BINUNICODE": push, "SHORT_BINUNICODE": push,
        "NEWTRUE": lambda self, _: self.push(True),
        "NEWFALSE": lambda self, _: self.push(False),
        "EMPTY_TUPLE": lambda self, _: self.push(()),
        "EMPTY_LIST": lambda self, _: self.push([]),
        "EMPTY_DICT": lambda self, _: self.push({}),
        "TUPLE": lambda self, _: self.push(tuple(self.pop_to_mark())),
        "TUPLE1": lambda self, _: self.tuple_of(1),
        "TUPLE2": lambda self, _: self.tuple_of(2),
        "TUPLE3": lambda self, _: self.tuple_of(3),
        "APPEND": lambda self, _: self.extend([self.pop()]),
        "APPENDS": lambda self, _: self.extend(self.pop_to_mark()),
        "SETITEM": lambda self, _: self.set_items([self.pop(), self.pop()][::-1]),
        "SETITEMS": lambda self, _: self.set_items(self.pop_to_mark()),
        "BINPUT": put, "LONG_BINPUT": put,
        "MEMOIZE": lambda self, _: self.put(len(self.memo)),
        "BINGET": get, "LONG_BINGET": get,
        "GLOBAL": find_global,
        "STACK_GLOBAL": lambda self, _: self.stack_global(),
        "REDUCE": lambda self, _: self.reduce(),
        "BINPERSID": lambda self, _: self.storage(),
        "BUILD": lambda self, _: self.build(),
    }


# --- The zip


class Limited:
    """A file from which no large part is read at once: zipfile reads a directory in one go."""

    def __init__(self, file):
        self.file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, n=-1):
        if n > DIRECTORY_BYTES_MAX:
            raise zipfile.BadZipFile(f"a directory of {n} bytes, more than {DIRECTORY_BYTES_MAX}")
        return self.file.read(n)


def refuse_if_not_zip(where, head):
    if head.startswith(b"PK\3\4"):
        return
    expected = "a zip that torch.save() wrote"
    if head.startswith(b"version https://git-lfs"):
        refuse(where, "a Git LFS pointer", "the file that it stands for: git lfs pull")
    if head[8:9] == b"{":
        refuse(where, "what looks like safetensors already", expected)
    if head.startswith(b"\x80") or head[257:262] == b"ustar":
        refuse(where, "a pickle that is not in a zip, as torch.save() wrote before PyTorch 1.6",
               "a zip: load the file and save it again with a recent torch")
    refuse(where, f"{quote(head[:4])} at byte 0", expected)


class Archive:
    """A file of torch.save(): the members of its zip, of which none is compressed."""

    def __init__(self, path):
        self.path, self.where = path, quote(path, 400)
        with open_regular(path) as file:
            refuse_if_not_zip(self.where, file.read(512))
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.bytes = len(self.map)
            self.view = memoryview(self.map)
            try:
                with zipfile.ZipFile(Limited(file)) as listing:
                    self.end = listing.start_dir
                    self.members = self.check(listing.infolist())
            except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError,
                    struct.error, OSError) as error:  # OSError: Python 3.9 seeks to before 0
                refuse(self.where, f"a broken zip ({quote(str(error))})",
                       "a complete one; is the file truncated?")
        if f"{self.root}/constants.pkl" in self.members:
            refuse(self.where, "a TorchScript archive", "weights that torch.save() wrote")
        for name in ("version", "data.pkl"):
            if f"{self.root}/{name}" not in self.members:
                refuse(self.where, f"no member {quote(f'{self.root}/{name}')}",
                       "it in a zip that torch.save() wrote")
        self.is_big_endian = False
        if f"{self.root}/byteorder" in self.members:
            order = self.small("byteorder", 16)
            if order not in (b"little", b"big"):
                refuse(f"{self.where}, byteorder", quote(order), "little or big")
            self.is_big_endian = order == b"big"

    def check(self, infos):
        """name -> (first byte, bytes, CRC)"""
        members, total = {}, 0
        for info in infos:
            name = info.orig_filename
            where = f"{self.where}, member {quote(name)}"
            parts = name.split("/")
            if (len(parts) < 2 or not name.isprintable() or "\\" in name or name != info.filename
                    or any(part in ("", ".", "..") for part in parts)):
                refuse(where, "this name", "FOLDER/FILE without '..'")
            if name in members:
                refuse(where, "the name twice", "it once")
            if members and parts[0] != self.root:
                refuse(where, f"the folder {quote(parts[0])}", f"one for all, {quote(self.root)}")
            self.root = parts[0]
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                refuse(where, f"method {info.compress_type}, {info.compress_size} bytes for "
                       f"{info.file_size}", "a member that is not compressed")
            if info.flag_bits & 0x2041:
                refuse(where, "an encrypted member", "a plain one")
            begin = self.first_byte(info, where)
            if begin + info.file_size > self.end:
                refuse(where, f"{info.file_size} bytes from byte {begin}",
                       f"an end before the directory at byte {self.end}; is the file truncated?")
            total += info.file_size
            if total > self.bytes:
                refuse(where, f"members of more than {self.bytes} bytes together",
                       "not more than the file")
            members[name] = (begin, info.file_size, info.CRC)
        if not members:
            refuse(self.where, "an empty zip", "one that torch.save() wrote")
        return members

    def first_byte(self, info, where):
        at = info.header_offset
        if not 0 <= at <= self.bytes - 30:
            refuse(where, f"a header at byte {at}", f"one in the file of {self.bytes} bytes")
        header = struct.unpack_from("<4s5H3L2H", self.view, at)
        name_bytes, extra_bytes = header[9:]
        name = bytes(self.view[at + 30:at + 30 + name_bytes])
        if header[0] != b"PK\3\4" or name.decode("utf-8", "replace") != info.orig_filename:
            refuse(where, f"{quote(header[0])}, {quote(name)} at byte {at}",
                   "the member's header, with the name of the directory")
        return at + 30 + name_bytes + extra_bytes

    def part(self, name):
        """A member's bytes, in the map."""
        begin, count, crc = self.members[name]
        view = self.view[begin:begin + count]
        found = 0
        for at in range(0, count if crc else 0, CHUNK):  # 0: torch was told not to compute it
            found = zlib.crc32(view[at:at + CHUNK], found)
        if found != crc:
            refuse(f"{self.where}, member {quote(name)}", f"bytes of CRC {found:08x}",
                   f"{crc:08x}; is the file damaged?")
        return view

    def small(self, name, limit):
        name = f"{self.root}/{name}"
        if self.members[name][1] > limit:
            refuse(f"{self.where}, member {quote(name)}", f"{self.members[name][1]} bytes",
                   f"at most {limit}")
        return bytes(self.part(name))

    def forget(self):
        """What was read of the map no longer counts as this program's memory."""
        self.map.madvise(mmap.MADV_DONTNEED)

    def values(self, storage):
        """A storage's values, in the map: one item each, in the byte order of the file."""
        name = f"{self.root}/data/{storage.key}"
        if name not in self.members:
            refuse(self.where, f"no member {quote(name)}", "it: tensors use this storage")
        count, needed = self.members[name][1], storage.count * storage.item
        if count < needed:
            refuse(f"{self.where}, member {quote(name)}", f"{count} bytes",
                   f"{needed}: {storage.count} elements of type {storage.dtype}")
        return self.part(name)[:needed].cast({1: "B", 2: "H", 4: "I", 8: "Q"}[storage.item])


# --- Which tensors


def holds_tensors(value):
    seen, open_ends = set(), [value]
    while open_ends:
        value = open_ends.pop()
        if isinstance(value, (Tensor, Storage)):
            return True
        if isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            open_ends.extend(value.values() if isinstance(value, dict) else value)
    return False


def check_tensors(tensors, where):
    if not tensors:
        refuse(where, "an empty dict", "tensors")
    for name, value in tensors.items():
        if not isinstance(name, str):
            refuse(where, f"{kind_of(name)} as a key", "the name of a tensor")
        if not isinstance(value, Tensor):
            refuse(f"{where}, entry {quote(name)}", kind_of(value), "a tensor")
        if name == "__metadata__" or name.encode("utf-8", "replace") != name.encode(
                "utf-8", "surrogatepass"):
            refuse(f"{where}, entry {quote(name)}", "this name",
                   "one that safetensors can have (UTF-8, not __metadata__)")
    return tensors


def choose(top, key, where):
    """The tensors of a pickle by name, and the entries that are left out."""
    if not isinstance(top, dict):
        refuse(where, kind_of(top), "a dict of tensors")
    if key is None and (not top or any(isinstance(value, Tensor) for value in top.values())):
        return check_tensors(top, where), []
    entries = ", ".join(f"{quote(name, 40)} ({kind_of(value)})" for name, value in
                        list(top.items())[:8]) + (", ..." if len(top) > 8 else "")
    holders = [name for name, value in top.items() if holds_tensors(value)]
    if key is None:
        if not holders:
            refuse(where, f"no tensor in {entries}", "a dict of tensors")
        if len(holders) > 1:
            refuse(where, f"tensors in several of {entries}", "one dict of tensors: name it, --key")
        key = holders[0]
    elif key not in top:
        refuse(where, entries, f"an entry {quote(key)}")
    where += f", entry {quote(key)}"
    if not isinstance(top[key], dict):
        refuse(where, kind_of(top[key]), "a dict of tensors")
    return check_tensors(top[key], where), [name for name in top if name != key]


# --- Writing


def starts_of(outer, at):
    """The first elements of a tensor's rows, in order."""
    index = [0] * len(outer)
    while True:
        yield at
        for d in reversed(range(len(outer))):
            count, stride = outer[d]
            index[d] += 1
            at += stride
            if index[d] < count:
                break
            index[d] = 0
            at -= count * stride
        else:
            return


def pieces_of(tensor, values):
    """The tensor's values, row by row, in pieces of bounded size."""
    if tensor.count == 0:
        return
    dims = []  # without those of size 1, and with those that are adjacent in memory joined
    for count, stride in zip(tensor.shape, tensor.strides):
        if count == 1:
            continue
        if dims and dims[-1][1] == count * stride:
            dims[-1] = (dims[-1][0] * count, stride)
        else:
            dims.append((count, stride))
    count, stride = dims.pop() if dims else (1, 1)
    for start in starts_of(dims, tensor.offset):
        for first in range(0, count, CHUNK):
            n = min(CHUNK, count - first)
            if stride == 0:
                yield values[start:start + 1].tobytes() * n
            else:
                begin = start + first * stride
                yield values[begin:begin + (n - 1) * stride + 1:stride].tobytes()


class Output:
    """Files that get their names when all of them are complete; nothing stays otherwise."""

    def __init__(self, force):
        self.force = force
        self.names = []  # temporary, final

    def check(self, path):
        if os.path.isdir(path):
            refuse(quote(path, 400), "a folder", "the name of a file to write")
        if os.path.lexists(path) and not self.force:
            refuse(quote(path, 400), "a file of this name", "none (--force replaces it)")

    def open(self, path):
        self.check(path)
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{os.getpid()}.part")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.names.append((temporary, path))
        return open(handle, "wb")

    def finish(self):
        for _, path in self.names:
            self.check(path)
        while self.names:
            os.rename(*self.names[0])
            del self.names[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for temporary, _ in self.names:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def sync(file):
    file.flush()
    os.fsync(file.fileno())


def convert(path, out, path_out, options):
    """Converts one file. -> its tensors by name, and the entries that are left out"""
    archive = Archive(path)
    reader = Reader(archive.small("data.pkl", PICKLE_BYTES_MAX), f"{archive.where}, data.pkl")
    tensors, left_out = choose(reader.read(), options.key, archive.where)
    total = sum(tensor.bytes for tensor in tensors.values())
    if total > GROWTH_MAX * archive.bytes + GROWTH_BYTES:
        refuse(archive.where, f"tensors of {total} bytes in a file of {archive.bytes}",
               f"at most {GROWTH_MAX} times as much: too many share a storage")
    order = sorted(tensors.items(),
                   key=lambda entry: (RANKS[entry[1].storage.dtype], entry[0].encode()))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in order:
        header[name] = {"dtype": tensor.storage.dtype, "shape": list(tensor.shape),
                        "data_offsets": [at, at + tensor.bytes]}
        at += tensor.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES_MAX:
        refuse(archive.where, f"tensors whose names and shapes take {len(text)} bytes",
               f"at most {HEADER_BYTES_MAX}")
    views = {}
    with out.open(path_out) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in order:
            if tensor.storage.key not in views:
                views[tensor.storage.key] = archive.values(tensor.storage)
            view = views[tensor.storage.key]
            for piece in pieces_of(tensor, view):
                if archive.is_big_endian and tensor.storage.item > 1:
                    piece = array.array(view.format, piece)
                    piece.byteswap()
                file.write(piece)
            archive.forget()
            if options.verbose:
                print(f"{quote(name, 400)} {tensor.storage.dtype} {list(tensor.shape)}")
        sync(file)
    return tensors, left_out


def no_key_twice(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def read_index(path):
    """The names of the tensors by shard, in the order of the shards' names."""
    where = quote(path, 400)
    with open_regular(path) as file:
        data = file.read(INDEX_BYTES_MAX + 1)
    if len(data) > INDEX_BYTES_MAX:
        refuse(where, "a larger file", f"at most {INDEX_BYTES_MAX} bytes")
    try:
        index = json.loads(data, object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError) as error:
        refuse(where, f"what is no JSON ({quote(str(error))})", "an index of shards")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        refuse(where, kind_of(index), '{"weight_map": {tensor: file, ...}}')
    shards = {}
    for tensor, name in weight_map.items():
        if not (isinstance(name, str) and FILE_NAME.fullmatch(name) and name.endswith(ENDINGS)):
            refuse(f"{where}, weight_map, {quote(tensor)}", kind_of(name),
                   f"the name of a file of this folder that ends with {' or '.join(ENDINGS)}")
        shards.setdefault(name, set()).add(tensor)
    if len(shards) > SHARDS_MAX:
        refuse(where, f"{len(shards)} files", f"at most {SHARDS_MAX}")
    return dict(sorted(shards.items()))


def convert_shards(folder, folder_out, out, options):
    """-> the path of the index, the number of files, and convert()'s"""
    index_path = os.path.join(folder, INDEX)
    shards = read_index(index_path)
    single = os.path.join(folder_out, SINGLE_OUT)
    if os.path.lexists(single):
        refuse(quote(single, 400), "a file of this name, which is read instead of shards", "none")
    tensors, left_out, weight_map = {}, [], {}
    for number, (name, names) in enumerate(shards.items(), 1):
        name_out = f"model-{number:05}-of-{len(shards):05}.safetensors"
        found, left = convert(os.path.join(folder, name), out, os.path.join(folder_out, name_out),
                              options)
        for tensor in sorted(names ^ found.keys()):
            where = f"{quote(index_path, 400)}, weight_map"
            if tensor in names:
                refuse(where, f"tensor {quote(tensor)} in {quote(name)}", "one that the file has")
            refuse(where, f"no tensor {quote(tensor)} in {quote(name)}", "it: the file has it")
        tensors.update(found)
        left_out += left
        weight_map.update(dict.fromkeys(found, name_out))
    total = sum(tensor.bytes for tensor in tensors.values())
    index_out = os.path.join(folder_out, INDEX_OUT)
    with out.open(index_out) as file:
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2,
                          sort_keys=True)
        file.write(text.encode() + b"\n")
        sync(file)
    return index_out, len(shards), tensors, left_out


def pickled_file(folder):
    """The name of a folder's only file of weights, or of its index."""
    names = os.listdir(folder)
    found = [name for name in KNOWN if name in names] or [
        name for name in sorted(names) if name.endswith(ENDINGS)]
    if len(found) != 1:
        refuse(quote(folder, 400), ", ".join(map(quote, found[:8])) or "no pickled file",
               f"one of {', '.join(KNOWN)}, or only one file of {', '.join(ENDINGS)}"
               + ("; name the file that is meant" if found else ""))
    return found[0]


def copy_config(folder, folder_out, out):
    """Whoever reads the tensors reads the config.json beside them. One that is there is kept."""
    path, path_out = os.path.join(folder, CONFIG), os.path.join(folder_out, CONFIG)
    if os.path.isfile(path) and not os.path.lexists(path_out):
        with open(path, "rb") as config, out.open(path_out) as file:
            file.write(config.read())
            sync(file)


def run(options):
    path, path_out = options.input, options.output
    name = None
    if os.path.isdir(path):
        name = pickled_file(path)
        folder_out = path_out or path
        os.makedirs(folder_out, exist_ok=True)
        path, path_out = os.path.join(path, name), os.path.join(folder_out, SINGLE_OUT)
    elif path_out is None:
        path_out = os.path.splitext(path)[0] + ".safetensors"
    if os.path.exists(path_out) and os.path.samefile(path, path_out):
        refuse(quote(path_out, 400), "the file that is read", "another one to write")
    with Output(options.force) as out:
        if name == INDEX:
            path_out, files, tensors, left_out = convert_shards(options.input, folder_out, out,
                                                                options)
        else:
            files, (tensors, left_out) = 1, convert(path, out, path_out, options)
        if name:
            copy_config(options.input, folder_out, out)
        out.finish()
    total = sum(tensor.bytes for tensor in tensors.values())
    print(f"{quote(path_out, 400)}: {len(tensors)} tensors, {total} bytes"
          + (f", {files} files" if name == INDEX else "")
          + (f"; left out: {', '.join(map(quote, left_out[:8]))}" if left_out else "")
          + (", ..." if len(left_out) > 8 else ""))
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="pickle_to_safetensors.py [--force] [--key NAME] [--verbose] IN [OUT]")
    parser.add_argument("input", metavar="IN", help=argparse.SUPPRESS)
    parser.add_argument("output", metavar="OUT", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--force", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--key", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        run(options)
    except Refused as refused:
        sys.exit(str(refused))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.exit(f"{quote(error.filename or options.input, 400)}: {error.strerror or error}")
    except MemoryError:
        sys.exit(f"{quote(options.input, 400)}: not enough memory")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
