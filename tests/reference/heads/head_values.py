"""Values of tests/head_files.h, bit for bit, so that goldens need no weights beside them."""
import numpy as np


def head_values(name, shape, scale=0.125, offset=0.0):
    """The float32 tensor `name`: in [-scale, scale) + offset. Element i depends on the name and on
    i only."""
    code = 0xcbf29ce484222325
    for byte in name.encode():
        code = (code ^ byte) * 0x100000001b3 % 2**64
    x = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
    x += np.uint64(code)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    x ^= x >> np.uint64(31)
    values = ((x >> np.uint64(53)).astype(np.float32) / 1024 - 1) * np.float32(scale)
    return (values + np.float32(offset)).reshape(shape)


def tensors_of(case):
    """The tensors of a case as arrays. A row is [name, "F32", shape, scale, offset], or with an
    integer type [name, type, shape, values]."""
    kinds = {"I64": np.int64, "BOOL": np.bool_}
    return {name: (head_values(name, shape, *rest) if kind == "F32" else
                   np.array(rest[0], kinds[kind]))
            for name, kind, shape, *rest in case["tensors"]}


def target_tables(case):
    """The target's embedding and output head, [vocab, hidden] each."""
    shape = (case["target"]["vocab_size"], case["target"]["hidden_size"])
    return [head_values("target." + name, shape, *case[name]) for name in ("embedding", "head")]


def hidden_rows(case, tap, context, n):
    """The target's state number `tap` at the first n positions of a context. A case's "taps" say
    which states these are, as in specd_drafter_caps; by default the input of the output head."""
    return head_values(f"hidden.{tap}.{context}", (n, case["target"]["hidden_size"]),
                       *case.get("hidden", [1.0]))
