#!/usr/bin/env python3
"""What ptxas says of the kernels, without a GPU:

    ptxas.py            compares with ptxas.txt
    ptxas.py --update   writes ptxas.txt

For sm_80, sm_90 and sm_100: registers of a thread, bytes that spill, shared memory of a block, and the blocks and the share of the warps that fit on a multiprocessor at a time. The table
belongs to one version of nvcc; with another one there is nothing to compare (exit status 77). Registers that spill are
refused. For sm_100 the library ships PTX, which the driver compiles; its figures may differ from these.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "tests", "gpu", "ptxas.txt")
SKIPPED = 77
# CUDA C++ programming guide, "Technical Specifications per Compute Capability": shared memory of a
# multiprocessor. The rest is the same for all three.
SHARED = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
REGISTERS, WARPS, BLOCKS, RESERVED = 65536, 64, 32, 1 << 10
# Threads of a block, as launched.
THREADS = {
    "tiles_parts": 256, "tiles_rows": 256, "attention_rows": 128, "attention_parts": 128, "attention_join": 128, "draw_kernel": 1024,
    "penalize_kernel": 256, "draw_noise_kernel": 256, "uniform_kernel": 256, "top_k_kernel": 1024, "log_prob_kernel": 1024,
    "embed_kernel": 256, "map_kernel": 256, "copy_rows_kernel": 256,
    "pack_bf16": 256, "pack_columns": 256, "split_x": 256, "matmul_few": 256, "matmul_many": 256,
    "join_parts": 256, "matmul_chain": 128, "to_bfloat16": 256, "rmsnorm_kernel": 256, "head_norm_kernel": 256,
    "rope_table_kernel": 64, "rope_append_kernel": 256, "kv_move_kernel": 128, "pick_tokens_kernel": 128,
    "clamp_nodes_kernel": 128, "walk_tree_kernel": 128,
    "pack_words": 256, "pack_scales": 256, "round_runs<8>": 1024, "round_runs<16>": 256, "gather_rows": 256, "multiply": 256,
    "multiply_e4m3": 256,
}
# Dynamic shared memory, as staged_bytes() of attention.cu and shared_bytes() of attention_tiles.cu, for heads of 128
# or 256, kFewBytes and kManyBytes of matmul.cu, and Shared of codes_multiply.cu and codes_fast.cu for 8 warps. A launch of
# matmul_few, multiply or multiply_e4m3 may ask for more.
TILES = {1: 17792 + 128 * (128 + 256 + 272), 2: 17792 + 256 * 128 + 128 * (512 + 528)}
DYNAMIC = {
    **{f"attention_parts<{dtype}, true>": 128 * 257 * size for dtype, size in ((0, 4), (1, 2), (2, 2))},
    **{f"tiles_parts<{d}, {own}>": TILES[d] for d in (1, 2) for own in (1, 4)},
    **{f"tiles_rows<{d}, {own}, {shared}>": TILES[d] for d in (1, 2) for own in (1, 4) for shared in ("false", "true")},
    **{f"matmul_few<{m}, {n}, {stages}, {apart}>": stages * 8 * 32 * (m + n) * 16
       for m, n, stages in ((1, 1, 8), (2, 1, 8), (2, 2, 6), (2, 4, 4)) for apart in ("false", "true")},
    **{f"matmul_many<{j}, {depth}, {parts}>": 2 * depth * 24 * 32 * 16
       for j in (2, 4) for depth in (4, 8) for parts in ("false", "true")},
    **{f"multiply_e4m3<{tiles}>": 8 * stages * (32 + tiles * 8 * 2) * 16 for tiles, stages in ((1, 8), (2, 8), (4, 4))},
    **{f"multiply<{form}, {rows}>": 8 * stages * (32 + rows * pieces) * 16 + rows * 32 * (64 // rows * 8 + 4)
       for rows in (1, 2, 4, 8)
       for form, pieces, stages in (("Integers<8, 8>", 1, 8), ("Integers<4, 8>", 2, 8), ("Integers<8, 16>", 2, 8),
                                    ("Integers<4, 16>", 4, 8), ("Float8", 4, 16 if rows <= 2 else 8))},
}


def up(n, to):
    return (n + to - 1) // to * to


def fits(architecture, threads, registers, shared):
    """Blocks on a multiprocessor."""
    warps = threads // 32
    by_registers = REGISTERS // (up(registers * 32, 256) * warps)
    by_shared = SHARED[architecture] // up(shared + RESERVED, 128)
    return min(by_registers, by_shared, WARPS // warps, BLOCKS)


def short(name):
    """'void specd::kernels::cuda::(anonymous namespace)::f<(specd::kernels::DType)1>(..)' -> 'f<1>'."""
    name = re.sub(r"\(anonymous namespace\)::|specd::kernels::(?:cuda::)?", "", name).replace("(DType)", "")
    return re.sub(r"^void ", "", name[:name.rindex("(")])


def lines_of(source, architecture):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["nvcc", "-std=c++20", "-O3", "--fmad=false", "-I", ROOT, "-I", f"{ROOT}/kernels/include", "-cubin",
             f"-arch=sm_{architecture}", "-Xptxas=-v", f"{ROOT}/kernels/cuda/{source}", "-o", f"{folder}/out"],
            capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{source}, sm_{architecture}: {done.stderr}")
    names = re.findall(r"Compiling entry function '(\w+)'", done.stderr)
    plain = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True).stdout.splitlines()
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    used = re.findall(r"Used (\d+) registers[^\n]*", done.stderr)
    whole = re.findall(r"Used \d+ registers[^\n]*", done.stderr)
    lines = []
    for name, (stores, loads), registers, text in zip(plain, spills, used, whole):
        shared = re.search(r"(\d+) bytes smem", text)
        shared = int(shared.group(1)) if shared else 0
        kernel = short(name)
        shared += DYNAMIC.get(kernel, 0)
        threads = THREADS.get(kernel, THREADS.get(kernel.split("<")[0]))
        if threads is None:
            if kernel.startswith("probe"):
                continue
            sys.exit(f"{source}: {kernel} is not in THREADS of ptxas.py; add the threads of its block")
        blocks = fits(architecture, threads, int(registers), shared)
        occupancy = blocks * threads * 100 // (WARPS * 32)
        lines.append(f"sm_{architecture:<4} {kernel:40} {registers:>4} {int(stores) + int(loads):>6} {shared:>7} "
                     f"{blocks:>7} {occupancy:>5} %")
    return lines


def main():
    update = sys.argv[1:] == ["--update"]
    if sys.argv[1:] and not update:
        sys.exit(__doc__)
    try:
        version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        print("there is no nvcc")
        sys.exit(SKIPPED)
    version = re.search(r"release [\d.]+, V([\d.]+)", version).group(1)
    if not update:
        with open(TABLE, encoding="utf-8") as file:
            expected = file.read()
        if f"nvcc {version}\n" not in expected:
            print(f"{TABLE} is of another nvcc than {version}")
            sys.exit(SKIPPED)
    sources = sorted(name for name in os.listdir(f"{ROOT}/kernels/cuda") if name.endswith(".cu"))
    jobs = [(source, architecture) for architecture in sorted(SHARED) for source in sources]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        lines = [line for each in pool.map(lambda job: sorted(lines_of(*job)), jobs) for line in each]
    spilled = [line for line in lines if line.split("%")[0].split()[-4] != "0"]
    text = (f"# By tests/gpu/ptxas.py, nvcc {version}\n"
            f"# {'':4} {'kernel':40} {'reg.':>4} {'spills':>6} {'shared':>7} {'blocks':>7} {'warps':>7}\n"
            + "\n".join(lines) + "\n")
    if update:
        with open(TABLE, "w", encoding="utf-8") as file:
            file.write(text)
    elif text != expected:
        before, now = set(expected.splitlines()), set(text.splitlines())
        print("".join(f"was {line}\n" for line in sorted(before - now)) +
              "".join(f"is  {line}\n" for line in sorted(now - before)) +
              "check that this is intended, then run tests/gpu/ptxas.py --update")
        sys.exit(1)
    if spilled:
        sys.exit("registers spill:\n" + "\n".join(spilled))
    print(f"{len(lines)} kernels, none spills")


if __name__ == "__main__":
    main()
