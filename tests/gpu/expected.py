#!/usr/bin/env python3
"""What a step should take on a GPU that has not been seen, by counting:

    expected.py             compares with EXPECTED.md
    expected.py --update    writes EXPECTED.md

For a model of the shape of Llama 3.1 8B in bfloat16: launches of a step, the bytes that each kernel has to
read and write, and the time that an H200's memory needs for them. The shapes of grids and what a thread has on
its way are read off the kernels by hand (kernels/cuda); change them here when a kernel changes.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "EXPECTED.md")

LAYERS, HIDDEN, INTER, HEADS, GROUPS, DIM, VOCAB = 32, 4096, 14336, 32, 8, 128, 128256
MEMORY = 4.8e12         # bytes/s, NVIDIA's H200 data sheet
LATENCY = 600e-9        # of a read from memory, s
SMS = 132
PART = 128              # positions of a part of attention
QKV = (HEADS + 2 * GROUPS) * DIM


def matmul(name, n_out, n_in, rows):
    return name, 1, n_out * n_in * 2 + rows * (n_in + n_out) * 4, matmul_flight(n_out, rows)


def matmul_flight(n_out, rows):
    """(blocks, bytes of weights that a block has on its way): matmul_few, launch_few()."""
    del rows
    tiles = (n_out + 15) // 16
    one_tile = tiles // 2 < SMS
    return (tiles if one_tile else (tiles + 1) // 2), 8 * 32 * 16 * 8


def step(rows, context):
    """[(kernel, launches, bytes of one launch, (blocks, bytes on their way) or None)] for up to 8 rows of one sequence."""
    parts = (context + PART - 1) // PART
    f32 = rows * HIDDEN * 4
    cache = context * GROUPS * DIM * 2 * 2
    layer = [
        ("rmsnorm with residual", 2, 4 * f32, None),
        matmul("matmul qkv", QKV, HIDDEN, rows),
        ("rope_append", 1, rows * QKV * 4 * 2, None),
        ("attention_parts", 1, cache + rows * HEADS * parts * (DIM + 2) * 4,
         (rows * GROUPS * parts, PART * 32 * 2)),
        ("attention_join", 1, rows * HEADS * parts * (DIM + 2) * 4 + f32, None),
        matmul("matmul o", HIDDEN, HIDDEN, rows),
        matmul("matmul gate and up", 2 * INTER, HIDDEN, rows),
        ("silu_mul", 1, rows * INTER * 4 * 3, None),
        matmul("matmul down", HIDDEN, INTER, rows),
    ]
    once = [
        ("embed, rope_table, last rmsnorm, gather_rows", 4, 4 * f32, None),
        matmul("matmul lm_head", VOCAB, HIDDEN, rows),
        ("draw, greedy", 1, rows * VOCAB * 4, None),
    ]
    return [(name, n * LAYERS, size, flight) for name, n, size, flight in layer] + once


def table(rows, context):
    out = [f"### {rows} {'row' if rows == 1 else 'rows'}, context {context}", "",
           "| kernel | launches | MB each | us each, at least | blocks | KiB on their way per SM |",
           "| --- | --- | --- | --- | --- | --- |"]
    launches = total = 0
    for name, n, size, flight in step(rows, context):
        launches += n
        total += n * size
        blocks = per_sm = ""
        if flight:
            blocks, each = flight
            per_sm = f"{each * max(1, min(4, blocks / SMS)) / 1024:.0f}" if blocks >= SMS else \
                     f"{each * blocks / SMS / 1024:.0f}"
        out.append(f"| {name} | {n} | {size / 1e6:.3f} | {size / MEMORY * 1e6:.2f} | {blocks} | {per_sm} |")
    out += ["", f"{launches} launches, {total / 1e9:.2f} GB: at least **{total / MEMORY * 1e3:.2f} ms**.", ""]
    return out


def text():
    need = MEMORY * LATENCY / SMS / 1024
    out = ["# What the first run on a GPU should show", "",
           "Made by `python3 tests/gpu/expected.py --update`; nothing here is measured. The shape is that of Llama 3.1 8B in",
           "bfloat16, one sequence, on an H200: 4.8 TB/s, 132 SMs. To keep that memory busy at 600 ns a read, each SM must",
           f"have {need:.0f} KiB on its way. Times leave out launches, barriers and latency, so they are lower bounds; what is",
           "far above one has another reason than bytes.", ""]
    for rows, context in ((1, 1024), (8, 1024), (1, 8192)):
        out += table(rows, context)
    one = sum(n * size for _, n, size, _ in step(1, 1024))
    eight = sum(n * size for _, n, size, _ in step(8, 1024))
    out += ["## To compare with", "",
            f"- V(8), context 1024: at least {eight / one:.3f} by bytes; the goal is at most 1.05.",
            "- `kernel_check` prints the rate of the matmuls of a layer for 1 to 512 rows, `engine_check` whole forwards.",
            "- Host time between forwards: not counted here; the goal is at most 20 us.", ""]
    return "\n".join(out)


def main():
    if sys.argv[1:] == ["--update"]:
        with open(OUT, "w", encoding="utf-8") as file:
            file.write(text())
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    with open(OUT, encoding="utf-8") as file:
        if file.read() != text():
            sys.exit(f"{OUT} is not what expected.py says; run it with --update")


if __name__ == "__main__":
    main()
