#!/usr/bin/env python3
"""What a step should take on a GPU that has not been seen, by counting:

    expected.py             compares with EXPECTED.md
    expected.py --update    writes EXPECTED.md

For a model of the shape of Llama 3.1 8B in bfloat16 and up to 8192 positions: launches of a step, the bytes that each
kernel has to read and write, the instructions of its inner loops, and the time that an H200 needs for both. Grids, what
a block reads ahead and the lengths of loops are taken from kernels/cuda by hand; change them here when a kernel changes.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "EXPECTED.md")

LAYERS, HIDDEN, INTER, HEADS, GROUPS, DIM, VOCAB = 32, 4096, 14336, 32, 8, 128, 128256
MEMORY = 4.8e12         # bytes/s, NVIDIA's H200 data sheet
LATENCY = 600e-9        # s, of a read from memory: an assumption
SMS = 132
PART = 128              # positions of a part of attention
BURST = 8 * 256 * 16    # bytes of weights that a block of matmul_few reads ahead
STAGED = PART * 2 * DIM * 2     # bytes that a block of attention_parts copies into shared memory
ISSUE = SMS * 4 * 1.83e9    # instructions of a warp per second, at the clock that NVIDIA's 989 TFLOPS imply
# Instructions of a warp, counted in the PTX of nvcc 13.0 for sm_90 (a loop's body by its iterations).
TILE = {1: 287 / 8, 2: 155 / 8}     # matmul_few<kM, 1, WholeX>: for a tile of 16 x 16 weights
SCORE, VALUE = 268 / 32, 77 / 8     # attention_parts: for an element of K or V of 32 positions or dimensions, 4 heads
QKV = (HEADS + 2 * GROUPS) * DIM


def matmul(name, n_out, n_in, rows):
    """matmul_few for up to 8 rows; every block reads all of x, mostly from L2."""
    tiles = (n_out + 15) // 16
    wide = 1 if tiles // 2 < SMS else 2
    blocks = (tiles + wide - 1) // wide
    return (name, 1, n_out * n_in * 2 + rows * n_out * 4, blocks * rows * n_in * 4, tiles * n_in / 16 * TILE[wide],
            blocks, BURST, {1: 4, 2: 3}[wide])


def step(rows, first):
    """[(kernel, launches, bytes from and to memory, bytes read again from L2, instructions of warps, blocks, bytes that
    one reads ahead, blocks that an SM has room for by ptxas.txt)] of each launch, for up to 8 rows of one sequence from
    position `first` on. 0 instructions: not counted."""
    parts = (first + rows - 1) // PART + 1
    seen = first + rows
    f32 = rows * HIDDEN * 4
    cache = seen * GROUPS * DIM * 2 * 2
    partial = rows * HEADS * parts * (DIM + 2) * 4
    small = (0, 0, rows, 0, 1)
    layer = [
        ("rmsnorm with residual", 2, 4 * f32, *small),
        matmul("matmul qkv", QKV, HIDDEN, rows),
        ("rope_append", 1, rows * (QKV * 4 + (HEADS + GROUPS) * DIM * 4 + 2 * GROUPS * DIM * 2), 0, 0,
         rows * (HEADS + 2 * GROUPS), 0, 1),
        ("attention_parts", 1, cache + partial, (rows - 1) * cache, rows * GROUPS * seen * DIM / 32 * (SCORE + VALUE),
         min(rows * GROUPS * parts, 8 * SMS // (rows * GROUPS) * rows * GROUPS), STAGED, 3),
        ("attention_join", 1, partial + f32, 0, 0, rows * HEADS, 0, 1),
        matmul("matmul o", HIDDEN, HIDDEN, rows),
        matmul("matmul gate and up", 2 * INTER, HIDDEN, rows),
        ("map, silu(gate) * up", 1, rows * INTER * 4 * 3, 0, 0, rows * INTER // 256, 0, 1),
        matmul("matmul down", HIDDEN, INTER, rows),
    ]
    once = [
        ("embed, rope_table, last rmsnorm, copy_rows", 4, 4 * f32, *small),
        matmul("matmul lm_head", VOCAB, HIDDEN, rows),
        ("draw, greedy", 1, rows * VOCAB * 4, *small),
    ]
    return [(name, n * LAYERS, *rest) for name, n, *rest in layer] + once


def total_seconds(rows, first):
    return sum(n * max(size / MEMORY, instructions / ISSUE)
               for _, n, size, _, instructions, *_ in step(rows, first))


def table(rows, first):
    out = [f"### {rows} {'row' if rows == 1 else 'rows'} from position {first} on", "",
           "| kernel | launches | MB each | us to read | M instructions | us to issue | MB again from L2 | blocks "
           "| KiB read ahead per SM |",
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    launches = total = 0
    for name, n, size, again, instructions, blocks, ahead, most in step(rows, first):
        launches += n
        total += n * size
        issue = f"{instructions / 1e6:.2f} | {instructions / ISSUE * 1e6:.2f}" if instructions else " | "
        per_sm = f"{ahead * min(most, blocks / SMS) / 1024:.0f}" if ahead else ""
        out.append(f"| {name} | {n} | {size / 1e6:.3f} | {size / MEMORY * 1e6:.2f} | {issue} | {again / 1e6:.1f} | {blocks} "
                   f"| {per_sm} |")
    out += ["", f"{launches} launches, {total / 1e9:.2f} GB: **{total_seconds(rows, first) * 1e3:.2f} ms**.", ""]
    return out


def text():
    need = MEMORY * LATENCY / SMS / 1024
    out = ["# What the first run on a GPU should show", "",
           "Made by `python3 tests/gpu/expected.py --update`; nothing here is measured. The shape is that of Llama 3.1 8B in",
           "bfloat16, one sequence, up to 8192 positions, on an H200: 4.8 TB/s, 132 SMs. To keep that memory busy at an assumed",
           f"600 ns a read, each SM must have {need:.0f} KiB on its way. The last column is what the blocks that find room can ask",
           "for at a time, as a mean over the SMs. Blocks are those that have something to do.", "",
           "A time is the longer of two: reading memory, and issuing the instructions of the inner loops (counted in PTX; a blank",
           "is not counted). Launches, barriers, latency and L2 come on top. What a kernel reads again comes from L2, whose rate",
           "is not published; kernels with few blocks (norms, draw) wait for latency.", ""]
    for rows, first in ((1, 1024), (8, 1024), (1, 8000), (8, 8000)):
        out += table(rows, first)
    ratio = {first: total_seconds(8, first) / total_seconds(1, first) for first in (1024, 8000)}
    out += ["## To compare with", "",
            f"- V(8): {ratio[1024]:.2f} from position 1024 on and {ratio[8000]:.2f} from position 8000 on, if nothing else takes time;",
            "  the goal is at most 1.05. What is above 1 is attention, which computes each row by itself.",
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
