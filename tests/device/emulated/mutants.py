#!/usr/bin/env python3
"""Whether kernel_check, on the emulator, notices when a kernel is wrong:

    mutants.py BUILD [--only WORDS]
    mutants.py --texts

Puts one defect at a time into a copy of a CUDA source, builds libspecd_cuda of it for the emulator, and
runs the checks of the groups that use it, with three seeds. Each defect must be caught, or be listed with
the reason why nobody can notice it; a listed one that is caught fails too. BUILD: a built tree of
the preset cpu. --only: the defects whose description has these words. --texts builds nothing: whether each defect
still has its text in the sources.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading

from translate import blank_comments, translate

KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../kernels/cuda")
SEEDS = (1, 2, 3)
LIMIT_SECONDS = 300
GROUPS = {
    "attention.cu": ["attention"],
    "attention_tiles.cu": ["attention"],
    "codes.cu": ["codes"],
    "codes_fast.cu": ["codes"],
    "codes_multiply.cu": ["codes"],
    "draw.cu": ["logits", "draw", "penalties"],
    "elementwise.cu": ["elementwise"],
    "matmul.cu": ["matmul"],
    "matmul_fast.cu": ["matmul"],
    "rmsnorm.cu": ["norms"],
    "rope.cu": ["cache"],
    "tree.cu": ["tree"],
}

# (file, what, the text once in the file, its replacement).
DEFECTS = [
    ("matmul.cu", "pack_bf16 without its bound on k", "k < n_in ? source[row * n_in + k] : uint16_t{0}",
     "source[row * n_in + k]"),
    ("matmul.cu", "pack_bf16 without its bound on units", "if (unit >= n_rows * width) return;", ""),
    ("matmul.cu", "pack_bf16 swaps the rows of a tile", "j % 16) / 8 * 2", "j % 16) / 8 * 4"),
    ("matmul.cu", "pack_columns with another stride", "packed[k * n_out + column_begin + row]",
     "packed[k * n_rows + column_begin + row]"),
    ("matmul.cu", "pack_columns without its bound", "if (unit >= int64_t{n_rows} * n_in) return;", ""),
    ("matmul.cu", "pack_columns forgets where its columns begin", "packed[k * n_out + column_begin + row]",
     "packed[k * n_out + row]"),
    ("matmul.cu", "split_x without its bound on k", "row < n_rows && k + i < n_in ?", "row < n_rows ?"),
    ("matmul.cu", "split_x with its bound on k one too large", "k + i < n_in ? x[", "k + i <= n_in ? x["),
    ("matmul.cu", "split_x without its bound on rows", "row < n_rows && k + i < n_in ?", "k + i < n_in ?"),
    ("matmul.cu", "split_x without its bound on units", "if (unit >= row_tiles * k_tiles * kWarp) return;", ""),
    ("matmul.cu", "split_x loses the low part", "out[unit] = split_bfloat16(make_float4(value(0), value(1), value(2), value(3)));", "out[unit] = split_bfloat16(make_float4(value(0), value(1), value(2), value(3))), out[unit].z = 0;"),
    ("matmul.cu", "fragments read beyond the last tile",
     "min(first + i, tiles - 1)", "first + i"),
    ("matmul.cu", "store without its bound on outputs", "if (j < n_out && r < n_rows) out[", "if (r < n_rows) out["),
    ("matmul.cu", "store without its bound on rows", "if (j < n_out && r < n_rows) out[", "if (j < n_out) out["),
    ("matmul.cu", "store swaps the halves of a fragment", "lane / 4 + i / 2 * 8", "lane / 4 + i % 2 * 8"),
    ("matmul.cu", "a segment of matmul_few has one tile less", "segment_begin(k_tiles, segment + 1, segments) - begin;",
     "segment_begin(k_tiles, segment + 1, segments) - begin - (segment == 7 ? 1 : 0);"),
    ("matmul.cu", "matmul_few uses tiles that it has not read", "      if (k + i >= n) break;\n", ""),
    ("matmul.cu", "matmul_few copies too few tiles", "copy_weights(free, i, k + i + kStages - 1 < n);",
     "copy_weights(free, i, k + i + kStages < n);"),
    ("matmul.cu", "matmul_few copies too little of x", "copy_x(free, i, k + i + kStages - 1 < n);",
     "copy_x(free, i, k + i + kStages < n);"),
    ("matmul.cu", "matmul_few copies a tile too many", "copy_weights(i, i, i < n);", "copy_weights(i, i, i <= n);"),
    ("matmul.cu", "the share of a block is less than nothing", "std::max((stream.shared_bytes_max + reserved) / each, reserved) - reserved", "(stream.shared_bytes_max + reserved) / each - reserved"),
    ("matmul.cu", "matmul_few waits for one tile less", "wait_for_groups<kStages - 2>();", "wait_for_groups<kStages - 1>();"),
    ("matmul.cu", "matmul_few copies over the tile it reads",
     "const int free = i > 0 ? stage + i - 1 : stage == 0 ? kStages - 1 : stage - 1;", "const int free = stage + i;"),
    ("matmul.cu", "matmul_few begins x before it is there", "copy_weights(i, i, i < n);", "copy_weights(i, i, i < n), copy_x(i, i, i < n);"),
    ("matmul.cu", "x and weights are not in the same order of k", "unit / kWarp % k_tiles * 16 + lane % 4 * 4;",
     "unit / kWarp % k_tiles * 16 + lane % 4 * 4 % 12;"),
    ("matmul.cu", "the last tile of an odd number is left out", "blocks_for(tiles_of(l.n_out), kM);", "tiles_of(l.n_out) / kM;"),
    ("matmul.cu", "matmul_few skips the last segment", "for (int s = 1; s < kSegments; ++s) {\n        sum",
     "for (int s = 1; s < kSegments - 1; ++s) {\n        sum"),
    ("matmul.cu", "matmul_few adds the segments in another order",
     "sum = __fadd_rn(sum, shared[((s * kM", "sum = __fadd_rn(sum, shared[(((s == 1 ? 7 : s == 7 ? 1 : s) * kM"),
    ("matmul.cu", "matmul_few without the low part", "mma(sums[m][r], a[m], v.z, v.w);", ""),
    ("matmul.cu", "matmul_few with the low part first", "mma(sums[m][r], a[m], v.x, v.y);\n          mma(sums[m][r], a[m], v.z, v.w);",
     "mma(sums[m][r], a[m], v.z, v.w);\n          mma(sums[m][r], a[m], v.x, v.y);"),
    ("matmul.cu", "matmul_few computes tiles beyond the end",
     "if (j_tile + m >= j_tiles || n >= r_tiles) continue;", ""),
    ("matmul.cu", "matmul_few leaves tiles out", "for (int tile = segment; tile < kM * kN; tile += kSegments)",
     "for (int tile = segment; tile < kM * kN - 1; tile += kSegments)"),
    ("matmul.cu", "matmul_many skips a segment", "kParts ? first_segment + 1 : kSegments;", "kParts ? first_segment + 1 : kSegments - 1;"),
    ("matmul.cu", "matmul_many starts from what was there", "kParts || segment == 0 ?", "kParts ?"),
    ("matmul.cu", "matmul_many without the low part", "mma(sums[m][n], a[m], b[n].z, b[n].w);", ""),
    ("matmul.cu", "matmul_many copies weights beyond the last", "min(j_first + tile, j_tiles - 1)", "j_first + tile"),
    ("matmul.cu", "matmul_many copies x beyond the last", "min(r_first + tile - kTilesJ, r_tiles - 1)", "r_first + tile - kTilesJ"),
    ("matmul.cu", "matmul_many adds tiles of the next segment", "for (int s = 0; s < left; ++s) add(", "for (int s = 0; s < kDepth; ++s) add("),
    ("matmul.cu", "matmul_many copies tiles of the next segment", "at.n = min(at.left, kDepth);", "at.n = kDepth;"),
    ("matmul.cu", "matmul_many copies the same tiles again", "from[i] += copied * kWarp;", ""),
    ("matmul.cu", "matmul_many begins each segment with the first", "(int64_t{at} * k_tiles + k_first) * kWarp", "int64_t{at} * k_tiles * kWarp"),
    ("matmul.cu", "matmul_many begins x before it is there", "copy(0, first.n, 0, kOfWeights);", "copy(0, first.n, 0, kCopies);"),
    ("matmul.cu", "the parts of a segment lie over each other", "out + first_segment * part_stride : out;", "out : out;"),
    ("matmul.cu", "join_parts leaves a segment out", "if (s < n_parts) total", "if (s < n_parts - 1) total"),
    ("matmul.cu", "join_parts goes beyond the last", "if (i >= n) return;\n  float total", "float total"),
    ("matmul.cu", "segments left apart lie over each other", "float* to = out + segment * part_stride;", "float* to = out;"),
    ("matmul.cu", "segments left apart are cut as eight", "const int segments = threads / kWarp, stage_size", "const int segments = kSegments, stage_size"),
    ("matmul.cu", "a block of few segments has too little shared memory", "kFewBytes<kM, kN, kStages> / kSegments * segments,", "kFewBytes<kM, kN, kStages> / kSegments * segments / 2,"),
    ("matmul.cu", "many rows are cut as eight segments", "kParts ? static_cast<int>(gridDim.z) : kSegments;", "kSegments;"),
    ("matmul.cu", "segments of a chain left apart lie over each other", "(int64_t{s} * a.n_rows + r) * n_out + j] = sum;", "r * n_out + j] = sum;"),
    ("matmul.cu", "segments of pieces of rows lie over each other", ".part_stride = int64_t{a.n_rows} * n_out}", ".part_stride = int64_t{n} * n_out}"),
    ("matmul.cu", "a pack of a part of k reads the first", "source_stride_bytes(a) * done, row_bytes,", "row_bytes * done, row_bytes,"),
    ("matmul.cu", "parts lie over x", "reinterpret_cast<float*>(stream.scratch + l.x_bytes);", "reinterpret_cast<float*>(stream.scratch);"),
    ("matmul.cu", "parts are written although there is no room", " ||\n      l.x_bytes + parts_bytes > stream.scratch_bytes) {", ") {"),
    ("matmul.cu", "a pack is not waited for", "stream.note(cudaStreamSynchronize(stream.handle));", ""),
    ("matmul.cu", "matmul_chain goes beyond the last output", "if (j >= n_out) return;", "if (j > n_out) return;"),
    ("matmul.cu", "matmul_chain loses the last k of a segment", "for (int32_t k = begin; k < end; ++k) {",
     "for (int32_t k = begin; k < end - 1; ++k) {"),
    ("matmul.cu", "matmul_chain is one long chain", "float sum = 0;\n    for (int32_t k",
     "float sum = total;\n    total = 0;\n    for (int32_t k"),
    ("matmul.cu", "a piece of rows begins where the first did", "a.x + int64_t{done} * n_in, n, n_in);",
     "a.x, n, n_in);"),
    ("matmul.cu", "a piece of a pack begins where the first did", "const int32_t begin = a.column_begin + done;",
     "const int32_t begin = a.column_begin;"),

    ("matmul_fast.cu", "to_bfloat16 beyond the last", "if (i < n) out[i]", "out[i]"),
    ("matmul_fast.cu", "a piece of rows begins where the first did", "a.x + int64_t{first} * a.weights.n_in;", "a.x;"),
    ("matmul_fast.cu", "a piece of rows ends where the first did", "a.out + int64_t{first} * a.weights.n_out;", "a.out;"),
    ("matmul_fast.cu", "a pack forgets where its columns begin", "static_cast<size_t>(a.column_begin) * row,", "0,"),
    ("matmul_fast.cu", "the workspace lies over x", "stream.scratch + x_bytes,", "stream.scratch,"),

    ("codes.cu", "pack_words beyond the last", "if (unit >= n_rows * words) return;", ""),
    ("codes.cu", "pack_words beyond the order", "k < depth ? source_k[k] : -1;", "source_k[k];"),
    ("codes.cu", "pack_words loses the high halves", "code(word * 8 + 4 + i) << 4)", "code(word * 8 + 4 + i))"),
    ("codes.cu", "pack_words swaps the halves", "code(word * 8 + i) | code(word * 8 + 4 + i) << 4", "code(word * 8 + 4 + i) | code(word * 8 + i) << 4"),
    ("codes.cu", "pack_words forgets where its columns begin", "word = unit % words, column = column_begin + row;", "word = unit % words, column = row;"),
    ("codes.cu", "pack_scales beyond the last", "if (unit >= int64_t{n_rows} * to.groups) return;", ""),
    ("codes.cu", "pack_scales without the factor of floats", "__fmul_rn(scale[unit], factor)", "scale[unit]"),
    ("codes.cu", "pack_scales of another group", "unit % to.groups) * kWarp", "unit % to.groups / 2) * kWarp"),
    ("codes.cu", "pack_scales forgets the zeros", "if (to.zero != nullptr) to.zero[at] = zero[unit];", ""),
    ("codes.cu", "a pack without the stride of the source", "a.source_stride == 0 ? n_in : static_cast<uint64_t>(a.source_stride);", "n_in;"),
    ("codes.cu", "a piece of a pack has the first codes", "static_cast<const uint8_t*>(a.source) + first * stride", "static_cast<const uint8_t*>(a.source)"),
    ("codes.cu", "a piece of a pack has the first scales", "a.scale + first * groups", "a.scale"),
    ("codes.cu", "a piece of a pack has the first zeros", "a.zero + first * groups", "a.zero"),
    ("codes.cu", "a piece of a pack begins where the first did", "const int32_t column = a.column_begin + done;", "const int32_t column = a.column_begin;"),
    ("codes.cu", "a pack is not waited for", "stream.note(cudaStreamSynchronize(stream.handle));", ""),
    ("codes.cu", "zeros without memory", "(order.has_zeros ? 5 : 4)", "4"),
    ("codes.cu", "x of the padding", "return at < 0 ? 0.0f : x[at];", "return x[at];"),
    ("codes.cu", "x of the first run", "a.source[run.begin + k]", "a.source[k]"),
    ("codes.cu", "the largest of the positive", "__float_as_int(value_at(k + i)) & 0x7fffffff", "__float_as_int(value_at(k + i))"),
    ("codes.cu", "the largest of half a warp", "lanes = kWarp / 2;", "lanes = kWarp / 4;"),
    ("codes.cu", "the largest without the last warp", "w < kTeam / kWarp; ++w) value", "w < kTeam / kWarp - 1; ++w) value"),
    ("codes.cu", "what is nearly zero is divided by", "m < 0x1p-100f", "m == 0"),
    ("codes.cu", "the limit of 8 bits for 16", "kXBits == 8 ? 127.0f", "kXBits > 0 ? 127.0f"),
    ("codes.cu", "a fixed scale without a least", "scaled < -128.0f ? -128.0f : ", ""),
    ("codes.cu", "a fixed scale without a largest", "scaled > 127.0f ? 127.0f : scaled", "scaled"),
    ("codes.cu", "a fixed scale is not the row's", "is_fixed ? a.x_scale : __fdiv_rn(m, kLimit)", "__fdiv_rn(m, kLimit)"),
    ("codes.cu", "lower bytes without signs", "static_cast<int8_t>(static_cast<uint8_t>(q));", "static_cast<uint8_t>(q);"),
    ("codes.cu", "lower bytes where the upper ones are", "(to + a.chunk) = lower;", "(to + 16) = lower;"),
    ("codes.cu", "chunks of bytes lie over each other", "* (a.chunk * kXBits / 8) + at % a.chunk", "* a.chunk + at % a.chunk"),
    ("codes.cu", "a thread takes the k of another", "k < run.n; k += 4 * kTeam) {\n    uint32_t", "k < run.n; k += 2 * kTeam) {\n    uint32_t"),
    ("codes.cu", "runs beyond the last are rounded", "if (unit >= int64_t{a.to.n_rows} * a.n_runs) return;", ""),
    ("codes.cu", "every thread says what its run has", "if (begin != 0) return;", ""),
    ("codes.cu", "gather_rows beyond the last", "if (unit >= a.to.n_rows * units) return;", ""),
    ("codes.cu", "gather_rows of the padding", "return at < 0 ? 0.0f : a.x[row * a.n_in + at];", "return a.x[row * a.n_in + at];"),
    ("codes.cu", "gather_rows reads the order beyond its end", "k < a.depth ? a.source[k + i] : -1;", "a.source[k + i];"),
    ("codes.cu", "gather_rows leaves the end of a chunk", "fast ? (a.depth + a.chunk - 1) / a.chunk * a.chunk : a.depth;", "a.depth;"),
    ("codes.cu", "gather_rows in another order for tensor cores", "bfloat16_pair(value(0), value(2)), bfloat16_pair(value(1), value(3))", "bfloat16_pair(value(0), value(1)), bfloat16_pair(value(2), value(3))"),
    ("codes.cu", "gather_rows of the first row", "a.x[row * a.n_in + at]", "a.x[at]"),
    ("codes.cu", "a piece of rows begins where the first did", ".x = a.x + int64_t{done} * n_in,", ".x = a.x,"),
    ("codes.cu", "a piece of rows ends where the first did", ".out = a.out + int64_t{done} * n_out,", ".out = a.out,"),
    ("codes.cu", "what runs have lies over x", "(stream.scratch + n * row_bytes)", "(stream.scratch)"),

    ("codes_fast.cu", "widen without signs", "(codes << 8 & 0x80008000u) | ", ""),
    ("codes_fast.cu", "widen without the last bit", "codes >> 4 & 0x07f007f0u", "codes >> 4 & 0x07e007e0u"),
    ("codes_fast.cu", "widen to another power", "0x77807780u", "0x78007800u"),
    ("codes_fast.cu", "widen swaps the pairs", "multiply_pairs(even, kTwice2To112), multiply_pairs(odd, kTwice2To112)", "multiply_pairs(odd, kTwice2To112), multiply_pairs(even, kTwice2To112)"),
    ("codes_fast.cu", "a warp has chunks of another", "chunks} * warp / warps),", "chunks} * warp / (warps + 1)),"),
    ("codes_fast.cu", "a warp leaves out its last chunk", "chunks} * (warp + 1) / warps);", "chunks} * (warp + 1) / warps - 1);"),
    ("codes_fast.cu", "weights of the first panel", "a.weights.codes + panel * chunks * kWarp + lane", "a.weights.codes + lane"),
    ("codes_fast.cu", "weights beyond the share are copied", "int64_t{chunk} * kWarp, chunk < end);", "int64_t{chunk} * kWarp);"),
    ("codes_fast.cu", "x beyond the last row", "min(first_row + piece / kXPieces, a.n_rows - 1);", "first_row + piece / kXPieces;"),
    ("codes_fast.cu", "x of the first rows", "min(first_row + piece / kXPieces, a.n_rows - 1);", "min(piece / kXPieces, a.n_rows - 1);"),
    ("codes_fast.cu", "x of one row too few pieces", "chunk < end && piece < Room::kX);", "chunk < end && piece < Room::kX - 1);"),
    ("codes_fast.cu", "x over the next stage", "chunk < end && piece < Room::kX);", "chunk < end);"),
    ("codes_fast.cu", "x is copied before it is there", "copy_weights(i, begin + i);\n", "copy_weights(i, begin + i), copy_x(i, begin + i);\n"),
    ("codes_fast.cu", "the first run for every warp", "int32_t at = run_of(begin * kChunk);", "int32_t at = 0;"),
    ("codes_fast.cu", "the second 32 runs are passed over", "for (int32_t first = 0;; first += kWarp) {", "for (int32_t first = 0;; first += 2 * kWarp) {"),
    ("codes_fast.cu", "a run that ends where the share begins", "run.begin + run.n > k);", "run.begin + run.n >= k);"),
    ("codes_fast.cu", "scales of the first group", "+ run.group) * kWarp + i * 8 + group];", ") * kWarp + i * 8 + group];"),
    ("codes_fast.cu", "scales of the first panel", "(panel * a.weights.groups + run.group)", "(run.group)"),
    ("codes_fast.cu", "scales of other columns", "i * 8 + group];", "i * 8 + quarter];"),
    ("codes_fast.cu", "multiply waits for one chunk less", "wait_for_groups<kStages - 2>();", "wait_for_groups<kStages - 1>();"),
    ("codes_fast.cu", "a warp does not wait for its lanes", "__syncwarp();  // all have what", ";  // all have what"),
    ("codes_fast.cu", "multiply copies over what it reads", "stage == 0 ? kStages - 1 : stage - 1;", "stage;"),
    ("codes_fast.cu", "a chunk adds what is before its run", "own_k >= run.begin && ", ""),
    ("codes_fast.cu", "a chunk adds what is behind its run", " && own_k < run.begin + run.n;", ";"),
    ("codes_fast.cu", "the rows of a tile are swapped", "make_uint4(upper.x, lower.x, upper.y, lower.y)", "make_uint4(lower.x, upper.x, lower.y, upper.y)"),
    ("codes_fast.cu", "x of the first tile", "here + kWarp + t * kRowTile * kXPieces)", "here + kWarp)"),
    ("codes_fast.cu", "a run ends with the share only", "if (!ends_here && chunk + 1 < end) break;", "if (chunk + 1 < end) break;"),
    ("codes_fast.cu", "a share's sum is lost", "if (!ends_here && chunk + 1 < end) break;", "if (!ends_here) break;"),
    ("codes_fast.cu", "totals with another column's scale", "scale[2 * m + i / 2],", "scale[2 * m + i % 2],"),
    ("codes_fast.cu", "sums go on in the next run", "          sums[m][t] = {};\n", ""),
    ("codes_fast.cu", "one run more", "if (!ends_here || at + 1 == a.n_runs) break;", "if (!ends_here) break;"),
    ("codes_fast.cu", "the run after the next", "run = next;\n      next = a.runs[min(at + 1,", "run = next;\n      next = a.runs[min(at + 2,"),
    ("codes_fast.cu", "scales of the run before", "      read_scales();\n      if (run_end", "      if (run_end"),
    ("codes_fast.cu", "the next chunk's run has a part of this", "      if (run_end == k + kChunk) break;\n", ""),
    ("codes_fast.cu", "totals over rings that are read", "  __syncthreads();  // all have read their rings\n", ""),
    ("codes_fast.cu", "totals of a tile's columns are swapped", "i / 2 * 8 + group;\n        all", "i % 2 * 8 + group;\n        all"),
    ("codes_fast.cu", "the last warp is not added", "for (int w = 0; w < warps; ++w) {", "for (int w = 0; w + 1 < warps; ++w) {"),
    ("codes_fast.cu", "rows beyond the last are stored", "if (row >= a.n_rows || column >= a.n_out) continue;", "if (column >= a.n_out) continue;"),
    ("codes_fast.cu", "columns beyond the last are stored", "if (row >= a.n_rows || column >= a.n_out) continue;", "if (row >= a.n_rows) continue;"),
    ("codes_fast.cu", "rows are left out", "for (int r = warp; r < kRows; r += warps) {", "for (int r = warp; r < kRows; r += kWarpsMax) {"),
    ("codes_fast.cu", "the last panel is left out", "blocks_for(a.n_out, kWarp)", "(a.n_out + kWarp - 2) / kWarp"),
    ("codes_fast.cu", "too little shared memory", "static_cast<size_t>(warps) * Room::kBytes,", "static_cast<size_t>(warps) * Room::kBytes / 2,"),
    ("codes_multiply.cu", "a chunk adds what is before its run", "unit >= begin && unit < end;", "unit < end;"),
    ("codes_multiply.cu", "a chunk adds what is behind its run", "unit >= begin && unit < end;", "unit >= begin;"),
    ("codes_multiply.cu", "integers before a run are not hidden", "units.begin > 0 || units.end", "units.end"),
    ("codes_multiply.cu", "integers behind a run are not hidden", "units.begin > 0 || units.end < kChunk / kRunGrain", "units.begin > 0"),
    ("codes_multiply.cu", "low halves with the high ones", "words[i] & 0x0f0f0f0fu;", "words[i];"),
    ("codes_multiply.cu", "high halves with the low ones", "words[i] >> 4 & 0x0f0f0f0fu;", "words[i] >> 4;"),
    ("codes_multiply.cu", "the upper part without its weight", "sum.part[0]) << 8)", "sum.part[0]) << 7)"),
    ("codes_multiply.cu", "x of the first row", "x[r * kXPieces + p];\n        const", "x[p];\n        const"),
    ("codes_multiply.cu", "a zero less", "static_cast<uint32_t>(zero) * static_cast<uint32_t>(x_sum)", "static_cast<uint32_t>(zero - 1) * static_cast<uint32_t>(x_sum)"),
    ("codes_multiply.cu", "floats without their sign", "(words[i] << 8 & 0x80008000u) | ", ""),
    ("codes_multiply.cu", "floats without their last bit", "words[i] >> 1 & 0x3f803f80u", "words[i] >> 1 & 0x3f003f00u"),
    ("codes_multiply.cu", "floats in another order", "codes.value[4 * i + 1] = half(odd & 0xffffu);\n      codes.value[4 * i + 2] = half(even >> 16);", "codes.value[4 * i + 2] = half(odd & 0xffffu);\n      codes.value[4 * i + 1] = half(even >> 16);"),
    ("codes_multiply.cu", "a warp has no more than 32 runs", "if (taken_ == kWarp) read();", "taken_ %= kWarp;"),
    ("codes_multiply.cu", "runs are left out after 32", "next_ = at + kWarp * step_;", "next_ = at + kWarp * step_ + step_;"),
    ("codes_multiply.cu", "a share of the run is left out", "(int64_t{chunks} * (warp + 1) / warps) * kChunk;", "(int64_t{chunks} * (warp + 1) / (warps + 1)) * kChunk;"),
    ("codes_multiply.cu", "a chunk too many is copied", "++at.chunk * kChunk < at.piece.end", "++at.chunk * kChunk <= at.piece.end"),
    ("codes_multiply.cu", "a piece too many is copied", "(n_pieces - warp + warps - 1) / warps);", "(n_pieces - warp + warps - 1) / warps + 1);"),
    ("codes_multiply.cu", "x of other rows is copied", "row_at(lane / Form::kXPieces)", "row_at(lane / Form::kXPieces / 2)"),
    ("codes_multiply.cu", "x is copied over weights", "at.left > 0 && lane < Room::kX", "at.left > 0"),
    ("codes_multiply.cu", "x is copied before it is there", "copy_weights(i, at);", "copy_weights(i, at), copy_x(i, at);"),
    ("codes_multiply.cu", "multiply waits for one chunk less", "wait_for_groups<kStages - 2>();", "wait_for_groups<kStages - 1>();"),
    ("codes_multiply.cu", "a warp does not wait for its lanes", "__syncwarp();", ""),
    ("codes_multiply.cu", "multiply copies over what it reads", "stage == 0 ? kStages - 1 : stage - 1;", "stage;"),
    ("codes_multiply.cu", "the scale of the first group", "+ piece.group) * kWarp + lane;", ") * kWarp + lane;"),
    ("codes_multiply.cu", "what the first row has in a run", "row_at(lane % kRows) * a.n_runs", "row_at(0) * a.n_runs"),
    ("codes_multiply.cu", "what the first run has in a row", "a.n_runs + done + p];", "a.n_runs + p];"),
    ("codes_multiply.cu", "shares of a run are left out", "p < n; ++p) sum +=", "p < n - 1; ++p) sum +="),
    ("codes_multiply.cu", "the zeros of the run that is shared are its default", "Form::kZero : int32_t{a.weights.zero[of_group]};\n        const OfRun", "Form::kZero : Form::kZero;\n        const OfRun"),
    ("codes_multiply.cu", "totals begin anew with the next pieces", "if (done > 0) total", "if (false) total"),
    ("codes_multiply.cu", "totals are kept of the wrong lane", "totals[r * kWarp + lane]", "totals[r * kWarp]"),
    ("codes_multiply.cu", "rows beyond the last are stored", "row < a.n_rows && column", "column"),
    ("codes_multiply.cu", "columns beyond the last are stored", "row < a.n_rows && column < a.n_out", "row < a.n_rows"),
    ("codes_multiply.cu", "the last panel is left out", "blocks_for(a.n_out, kWarp)", "(a.n_out + kWarp - 2) / kWarp"),
    ("codes_multiply.cu", "too little shared memory", "pieces * sizeof(uint2) + sizeof(float)", "pieces * sizeof(uint2)"),
    ("codes_multiply.cu", "rows are left out between warps", "for (int r = warp; r < kRows; r += warps) {", "for (int r = warp; r < kRows; r += kWarpsMax) {"),

    ("attention.cu", "a row does not see itself", "min(last - first + 1, kPart)", "min(last - first, kPart)"),
    ("attention.cu", "a row sees one too many", "min(last - first + 1, kPart)", "min(last - first + 2, kPart)"),
    ("attention.cu", "the window is one too wide", "a.position[row] - a.window + 1, 0)", "a.position[row] - a.window, 0)"),
    ("attention.cu", "the window is not applied within a part", "max(window_begin(a, row) - first, 0)", "0"),
    ("attention.cu", "the first of the tail is read from the pages", "p < span ?", "p <= span ?"),
    ("attention.cu", "the tail is read one further", "a.tail_begin[row] + p - span]", "a.tail_begin[row] + p - span + 1]"),
    ("attention.cu", "the slot of a page is lost", "* kPageTokens + p % kPageTokens\n", "* kPageTokens\n"),
    ("attention.cu", "K without the stride of a page",
     "return slot / kPageTokens * kv.page_stride + static_cast<size_t>(g) * kv.head_dim * kPageTokens +",
     "return static_cast<size_t>(slot / kPageTokens * kv.n_kv_heads + g) * kv.head_dim * kPageTokens +"),
    ("attention.cu", "V of another head", "(static_cast<size_t>(g) * kPageTokens + slot", "(static_cast<size_t>(g ^ 1) * kPageTokens + slot"),
    ("attention.cu", "q of unused heads is read", "h < n_heads ? q[i] : 0.0f;", "q[i];"),
    ("attention.cu", "p beyond sight is not written", "    shared.p[t][h] = kType", "    if (seen) shared.p[t][h] = kType"),
    ("attention.cu", "p beyond sight counts", "const float p = seen ? exp_strict(__fsub_rn(score[h], m[h])) : 0.0f;",
     "const float p = exp_strict(__fsub_rn(score[h], m[h]));"),
    ("attention.cu", "the largest is looked for beyond sight", "shared.sums[h][t] = seen ? score[h] : -INFINITY;", "shared.sums[h][t] = score[h];"),
    ("attention.cu", "the largest is that of one thread less", "    if (t >= stride) continue;", "    if (t >= stride - 1) continue;"),
    ("attention.cu", "V is read beyond the head", "    if (d >= dim) continue;\n", ""),
    ("attention.cu", "acc begins before the window", "for (int j = hidden; j < staged_end; ++j) {", "for (int j = 0; j < staged_end; ++j) {"),
    ("attention.cu", "acc leaves out the last", "for (int j = staged_end; j < visible; ++j) ", "for (int j = staged_end; j < visible - 1; ++j) "),
    ("attention.cu", "acc begins before the window without copies", "max(min(span - first, visible), hidden) : hidden;", "max(min(span - first, visible), hidden) : 0;"),
    ("attention.cu", "pages are copied although there is no room", "bytes + sizeof(Shared) <= stream.shared_bytes_max", "true"),
    ("attention.cu", "more shared memory is asked for than there is", "shared_bytes_max - static_cast<int32_t>(sizeof(Shared)));", "shared_bytes_max);"),
    ("attention.cu", "a page is copied by half", "at < page_bytes;", "at < page_bytes / 2;"),
    ("attention.cu", "a page is named by a position that the window hides", "shared.slot[min(page * kPageTokens + kPageTokens, end) - 1]", "shared.slot[page * kPageTokens]"),
    ("attention.cu", "pages are copied from before the window", "stage, g, hidden, staged_end);", "stage, g, 0, staged_end);"),
    ("attention.cu", "the tail is read from the copies", "max(min(span - first, visible), hidden)", "visible"),
    ("attention.cu", "K is copied without its gap", "stage + page * (page_bytes + kPageTokens * kElement);", "stage + page * page_bytes;"),
    ("attention.cu", "V is read where K was copied to", "add(j, stage, staged_k_elements(dim) + static_cast<size_t>(j) * dim);", "add(j, stage, static_cast<size_t>(j) * dim);"),
    ("attention.cu", "K of the next position is read", "(dim + 1) * kPageTokens + t % kPageTokens);", "(dim + 1) * kPageTokens + (t + 1) % kPageTokens);"),
    ("attention.cu", "pages are copied although they are not aligned", "if (aligned && bytes", "if (bytes"),
    ("attention.cu", "the shared memory for the copies is not asked for", "shared_bytes_max - static_cast<int32_t>(sizeof(Shared)));", "0);"),
    ("attention.cu", "the copies have room for K only", "(staged_k_elements(head_dim) + static_cast<size_t>(kPart) * head_dim)", "staged_k_elements(head_dim)"),
    ("attention.cu", "a part is lost at its boundary", "return (position + kPart) / kPart;", "return (position + kPart - 1) / kPart;"),
    ("attention.cu", "a row that sees nothing has a part", "return (position + kPart) / kPart;", "return position / kPart + 1;"),
    ("attention.cu", "rows divides what sees nothing", "parts > 0 ? mean_of(a.kv, A[h][i], L[h]) : 0;", "mean_of(a.kv, A[h][i], L[h]);"),
    ("attention.cu", "join divides what sees nothing", "parts > 0 ? mean_of(a.kv, acc, l) : 0;", "mean_of(a.kv, acc, l);"),
    ("attention.cu", "rows stores unused heads", "if (h < n_heads && d < dim) {", "if (d < dim) {"),
    ("attention.cu", "rows stores beyond the head", "if (h < n_heads && d < dim) {", "if (h < n_heads) {"),
    ("attention.cu", "parts stores unused heads", "if (h >= n_heads) continue;", ""),
    ("attention.cu", "parts stores beyond the head", "if (d < dim) to[2 + d] = acc[h][i];", "to[2 + d] = acc[h][i];"),
    ("attention.cu", "parts are left out between blocks", "part += gridDim.z", "part += gridDim.z + 1"),
    ("attention.cu", "parts that the window hides are computed for nothing", "const int32_t first = window_begin(a, row) / kPart + blockIdx.z;", "const int32_t first = blockIdx.z;"),
    ("attention.cu", "a piece of rows begins with the first", "a.position += first, a.span += first,", "a.span += first,"),
    ("attention.cu", "parts has room for acc only", "return head_dim + 2;", "return head_dim;"),
    ("attention.cu", "parts are joined from the first although the window hides it",
     "#pragma unroll 8\n    for (int32_t part = window_begin(a, row) / kPart;", "for (int32_t part = 0;"),
    ("attention.cu", "a part joins without its scale", "__fmul_rn(part, factors.part)", "part"),
    ("attention.cu", "K of float8 without the scale of the layer", "__fmul_rn(a.scale, a.kv.k_scale)", "a.scale"),
    ("attention.cu", "V of float8 without the scale of the layer", "kv.dtype == KvDType::kF8E4M3 ? __fmul_rn(mean, kv.v_scale) : mean", "mean"),
    ("attention.cu", "V of other types with the scale of float8", "kv.dtype == KvDType::kF8E4M3 ? __fmul_rn(mean, kv.v_scale) : mean", "__fmul_rn(mean, kv.v_scale)"),
    ("attention.cu", "K of int8 without the scale of its row", "__fmul_rn(a.scale, a.kv.k_row_scale[row_scale_at(a.kv, slot, g)])", "a.scale"),
    ("attention.cu", "V of int8 with the scale of K", "value_scale = a.kv.v_row_scale", "value_scale = a.kv.k_row_scale"),
    ("attention.cu", "V of int8 without the scale of its row", "kType == KvDType::kInt8 ? __fmul_rn(p, value_scale) : p;", "p;"),
    ("attention.cu", "the scale of V counts among the probabilities", "shared.sums[h][t] = p;", "shared.sums[h][t] = shared.p[t][h];"),
    ("attention.cu", "scales of rows without the stride of a page", "slot / kPageTokens * kv.scale_stride", "slot / kPageTokens * kPageTokens"),
    ("attention.cu", "scales of rows of another head", "static_cast<size_t>(g * kPageTokens + slot", "static_cast<size_t>((g ^ 1) * kPageTokens + slot"),
    ("attention.cu", "heads of another kv head", "head = g * per_kv + h0;\n  load_q(a, shared, row, head, n_heads);\n  float M",
     "head = g + h0;\n  load_q(a, shared, row, head, n_heads);\n  float M"),

    ("attention_tiles.cu", "a row does not see itself", "min(b.a.position[row] - first + 1, kPart)", "min(b.a.position[row] - first, kPart)"),
    ("attention_tiles.cu", "a row sees one too many", "min(b.a.position[row] - first + 1, kPart)", "min(b.a.position[row] - first + 2, kPart)"),
    ("attention_tiles.cu", "the window is not applied within a part", "max(window_begin(b.a, row) - first, 0)", "0"),
    ("attention_tiles.cu", "the first of the tail is read from the pages", "min(max(b.a.span[row] - first, 0), seen.end)", "min(max(b.a.span[row] - first + 1, 0), seen.end)"),
    ("attention_tiles.cu", "the tail is read one further", "+ part * kPart + j - a.span[row]]", "+ part * kPart + j - a.span[row] + 1]"),
    ("attention_tiles.cu", "rows share a part that one does not see", "min(a.span[mine], position + 1) / kPart", "(min(a.span[mine], position + 1) + kPart - 1) / kPart"),
    ("attention_tiles.cu", "rows share a part that one has in its tail", "min(a.span[mine], position + 1) / kPart", "(position + 1) / kPart"),
    ("attention_tiles.cu", "rows of different tables share parts", "table == lowest && window_begin", "window_begin"),
    ("attention_tiles.cu", "rows share the table of the first", "kShared ? shared.table : a.table[row]", "a.table[row]"),
    ("attention_tiles.cu", "rows share the table of the first, in parts", "memory, shared.table, row, n_rows", "memory, a.table[row], row, n_rows"),
    ("attention_tiles.cu", "rows share what a window hides", " && window_begin(a, mine) == 0;", ";"),
    ("attention_tiles.cu", "rows that see nothing keep others from sharing nothing", "!sees  ? INT32_MAX", "!sees  ? INT32_MAX - 1"),
    ("attention_tiles.cu", "q of the next head", "b.columns.head + column % b.columns.n_heads", "b.columns.head + (column + 1) % b.columns.n_heads"),
    ("attention_tiles.cu", "a part of q is lost", "split_bfloat16(make_float4(at(0), at(1), at(8), at(9)))", "split_bfloat16(make_float4(at(0), at(1), at(8), 0))"),
    ("attention_tiles.cu", "q of columns that do not exist is read", "exists ? from[d + i] : 0.0f", "from[d + i]"),
    ("attention_tiles.cu", "K of another half", "(half ^ (d / 4 % 2))", "half"),
    ("attention_tiles.cu", "V in the order of positions", "position / 4 * 2 + position % 2 + position / 2 % 2 * 8", "position"),
    ("attention_tiles.cu", "the last page is not copied", "(seen.paged + kTile - 1) / kTile", "seen.paged / kTile"),
    ("attention_tiles.cu", "half of a page is copied", "i < 2 * dim; i += kThreads", "i < dim; i += kThreads"),
    ("attention_tiles.cu", "pages of another part", "b.table + part * kTiles", "b.table"),
    ("attention_tiles.cu", "the tail is not fetched", "if (has_pages && seen.paged == seen.end) return;", "if (has_pages) return;"),
    ("attention_tiles.cu", "V beyond sight is not masked", "if (!all_seen) {", "if (false) {"),
    ("attention_tiles.cu", "V is masked at other positions", "lane % 4 * 4 + i;\n        if", "lane % 4 * 2 + i;\n        if"),
    ("attention_tiles.cu", "p beyond sight counts", "visible[i] ? exp_strict(__fsub_rn(p[i], m)) : 0.0f", "exp_strict(__fsub_rn(p[i], m))"),
    ("attention_tiles.cu", "the largest is looked for beyond sight", "visible[i] ? b.fixed.score[column][j] : -INFINITY", "b.fixed.score[column][j]"),
    ("attention_tiles.cu", "the largest of half of the part", "m = m > other ? m : other;", "m = distance < 16 && other > m ? other : m;"),
    ("attention_tiles.cu", "p of columns that do not exist is left", "column < b.columns.n() ? parts[turn] : make_uint4(0, 0, 0, 0);", "parts[turn];"),
    ("attention_tiles.cu", "scores without their scale", "__fmul_rn(sums[c].v[j], b.a.scale)", "sums[c].v[j]"),
    ("attention_tiles.cu", "a part joins before its factors", "joined(sum, acc[i / 2][c].v[j + i % 2 * 2], factors)", "__fadd_rn(sum, acc[i / 2][c].v[j + i % 2 * 2])"),
    ("attention_tiles.cu", "a row goes on from nothing", "const bool goes_on = !kShared && shared.n > 0;", "const bool goes_on = false;"),
    ("attention_tiles.cu", "parts that are shared are computed again", "int32_t first = kShared ? 0 : max(shared.n,", "int32_t first = kShared ? 0 : max(0,"),
    ("attention_tiles.cu", "rows divides what sees nothing", "last > 0 ? __fdiv_rn(sum, out.l) : 0.0f", "__fdiv_rn(sum, out.l)"),
    ("attention_tiles.cu", "sums beyond the head are stored", "if (d < b.a.kv.head_dim) fn(", "fn("),
    ("attention_tiles.cu", "sums of columns that do not exist are stored", "if (column >= b.columns.n()) continue;\n      const auto data", "const auto data"),
    ("attention_tiles.cu", "parts are left out between blocks", "part < last; part += step", "part < last; part += step + 1"),
    ("attention_tiles.cu", "pages are copied although they are not aligned", "!aligned || ", ""),
    ("attention_tiles.cu", "the units of a block of rows are one too few", "? 1 + rows_of_block : 1", "? rows_of_block : 1"),

    ("draw.cu", "the k-th largest is one too far", "return static_cast<double>(row.top_k);", "return static_cast<double>(row.top_k) + 1;"),
    ("draw.cu", "a bin is passed that reaches the limit", "before + sum) >= limit", "before + sum) > limit"),
    ("draw.cu", "a bin counts for those above it", "votes == 0 ? sum : sum - own, last", "sum, last"),
    ("draw.cu", "uniform numbers of a sequence that is not there", "is_known = s >= 0 && s < a.n_sequences", "is_known = s >= -1 && s < a.n_sequences + 1"),
    ("draw.cu", "uniform numbers without a purpose", "a.purpose, 0, x);", "0, 0, x);"),
    ("draw.cu", "uniform numbers of 32 bits", "(x[i] >> 8) * 0x1p-24f", "x[i] * 0x1p-32f"),
    ("draw.cu", "uniform numbers dense in strided rows", "(a.out_stride == 0 ? a.lanes : a.out_stride)", "a.lanes"),
    ("draw.cu", "uniform numbers beyond the lanes", "i < 4 && lane + i < a.lanes", "i < 4"),
    ("draw.cu", "a scan of half a warp", "for (uint32_t offset = 1; offset < 32;", "for (uint32_t offset = 1; offset < 16;"),
    ("draw.cu", "a scan adds what is above the warp", "if (lane >= offset) sum += above;", "sum += above;"),
    ("draw.cu", "bins are left out between two warps' worth", "for (uint32_t top = size - 1;; top -= 32) {", "for (uint32_t top = size - 1;; top -= 33) {"),
    ("draw.cu", "weights without atomics", "atomicAdd(&shared.sums[digits & (size - 1)], ranked.weight);",
     "shared.sums[digits & (size - 1)] += ranked.weight;"),
    ("draw.cu", "bins are not all cleared", "for (int i = threadIdx.x; i < kBins; i += kThreads) shared.sums[i] = 0;",
     "for (int i = threadIdx.x; i < kBins - kThreads; i += kThreads) shared.sums[i] = 0;"),
    ("draw.cu", "bins keep the last digit's counts", "  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.sums[i] = 0;\n",
     "  if (shared.selected.rank == 0) {\n    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.sums[i] = 0;\n  }\n"),
    ("draw.cu", "reduce_warp shuffles half a warp", "other.value = __shfl_down_sync(kAllLanes,", "other.value = __shfl_down_sync(0x0000ffffu,"),
    ("draw.cu", "reduce_warp starts at 8", "for (int offset = 16; offset > 0;", "for (int offset = 8; offset > 0;"),
    ("draw.cu", "reduce_block leaves a warp out", "value = reduce_warp(shared.best[threadIdx.x], pick);",
     "value = reduce_warp(shared.best[threadIdx.x == 31 ? 0 : threadIdx.x], pick);"),
    ("draw.cu", "ties go to the higher token", "return a.token < b.token ? a : b;", "return a.token > b.token ? a : b;"),
    ("draw.cu", "a vote of half a warp", "__ballot_sync(kAllLanes, tie)", "__ballot_sync(0x0000ffffu, tie)"),
    ("draw.cu", "a tie counts itself", "__popc(vote & ((1u << lane) - 1))", "__popc(vote & ((2u << lane) - 1))"),
    ("draw.cu", "a tie too many is kept", "if (tie && rank == n - 1)", "if (tie && rank == n)"),
    ("draw.cu", "ties of earlier rounds are forgotten", "int32_t rank = before + __popc(", "int32_t rank = __popc("),
    ("draw.cu", "top-p of everything, not of the top k", "Ranked{key, key < lowest ? 0 : mass_of(l, max)}", "Ranked{key, mass_of(l, max)}"),
    ("draw.cu", "top-p sums some of the bins", "total += __shfl_xor_sync(kAllLanes, total, lanes);", "total += 0 * __shfl_xor_sync(kAllLanes, total, lanes);"),
    ("draw.cu", "another digit is searched", "if (digits / size != prefix ||", "if (digits / size < prefix ||"),
    ("draw.cu", "the look goes beyond the vocabulary", "  for (int32_t t = threadIdx.x; t < vocab; t += kThreads) {\n    const float l = logits[t];\n    nan",
     "  for (int32_t t = threadIdx.x; t <= vocab; t += kThreads) {\n    const float l = logits[t];\n    nan"),
    ("draw.cu", "the draw goes beyond the vocabulary", "for (int32_t t = threadIdx.x; t < vocab; t += kThreads) {\n    const float l = processed(logits[t], row);\n    const bool kept",
     "for (int32_t t = threadIdx.x; t <= vocab; t += kThreads) {\n    const float l = processed(logits[t], row);\n    const bool kept"),
    ("draw.cu", "top_k goes beyond the vocabulary", "for (int32_t t = threadIdx.x; t < a.vocab; t += kThreads) {\n      const float value",
     "for (int32_t t = threadIdx.x; t <= a.vocab; t += kThreads) {\n      const float value"),
    ("draw.cu", "top_k finds the same token again", "(value == last.value && t > last.token)", "(value == last.value && t >= last.token)"),
    ("draw.cu", "log_prob sums beyond the vocabulary", "for (int32_t t = threadIdx.x; t < a.vocab; t += kThreads) {\n    sum",
     "for (int32_t t = threadIdx.x; t <= a.vocab; t += kThreads) {\n    sum"),
    ("draw.cu", "log_prob sums half the threads", "for (int width = kThreads / 2; width > 0;", "for (int width = kThreads / 4; width > 0;"),
    ("draw.cu", "log_prob of tokens that are none", "    if (token[i] < 0 || token[i] >= a.vocab) continue;\n", ""),
    ("draw.cu", "log_prob of the token after the last", "token[i] >= a.vocab) continue;", "token[i] > a.vocab) continue;"),
    ("draw.cu", "noise beyond the vocabulary", "for (int i = 0; i < 4 && t + i < a.vocab; ++i)", "for (int i = 0; i < 4; ++i)"),
    ("draw.cu", "noise of another position", "static_cast<uint32_t>(a.position[r]), 0, 0, x);", "static_cast<uint32_t>(r), 0, 0, x);"),
    ("draw.cu", "noise of the target's draw for every purpose", "row.purpose,\n         row.round, x);", "0,\n         row.round, x);"),
    ("draw.cu", "noise of the same round", "row.purpose,\n         row.round, x);", "row.purpose,\n         0, x);"),
    ("draw.cu", "a sequence after the last draws", "(s >= 0 && s < a.n_sequences)", "(s >= 0 && s <= a.n_sequences)"),
    ("draw.cu", "a sequence before the first draws", "(s >= 0 && s < a.n_sequences)", "(s < a.n_sequences)"),
    ("draw.cu", "the position is that of the row", "a.position[s] + a.position_offset", "a.position[r] + a.position_offset"),
    ("draw.cu", "the position is not moved on", "a.position[s] + a.position_offset", "a.position[s]"),
    ("draw.cu", "noise of the column, not of its id", "a.id == nullptr ? t : a.id[t]", "t"),
    ("draw.cu", "scores of damaged rows are the logits", "tell_score(t, damaged ? -INFINITY : l);", "tell_score(t, l);"),
    ("draw.cu", "scores without their stride", "r * stride_of(a.score_stride, vocab) + t", "r * vocab + t"),
    ("draw.cu", "ties are counted while the next ones are", "if (tie && rank == n - 1) shared.end = t + 1;\n    __syncthreads();",
     "if (tie && rank == n - 1) shared.end = t + 1;"),
    ("draw.cu", "ties end with the vocabulary", "    if (before >= n) return shared.end;\n", ""),
    ("draw.cu", "typical_p of everything, not of what is kept", "kept ? mass_of(l, max) : 0", "mass_of(l, max)"),
    ("draw.cu", "the mean of everything, not of what is kept", "if (mass == 0 || !is_kept(cut, key_of(l), t)) continue;",
     "if (mass == 0) continue;"),
    ("draw.cu", "the mean is not weighted", "__fmul_rn(static_cast<float>(mass), __fsub_rn(max, l))", "__fsub_rn(max, l)"),
    ("draw.cu", "typical_p keeps what is far from the mean", "return ~(__float_as_uint(__fsub_rn(d, mean)) & 0x7fffffffu);",
     "return __float_as_uint(__fsub_rn(d, mean)) & 0x7fffffffu;"),
    ("draw.cu", "typical_p takes tokens above the mean for unlike", "__float_as_uint(__fsub_rn(d, mean)) & 0x7fffffffu",
     "__float_as_uint(__fsub_rn(d, mean))"),
    ("draw.cu", "the bins are cleared before all know the mean", "  __syncthreads();  // before the bins are cleared\n", ""),
    ("draw.cu", "lse of everything, not of what is kept", "if (is_kept(support, l, max, t)) total", "total"),
    ("draw.cu", "the law of everything, not of what is kept", "tell_law(t, kept ? __fsub_rn(l, max) : -INFINITY)", "tell_law(t, __fsub_rn(l, max))"),
    ("draw.cu", "a law that nobody wants", "is_there && row.law && (", "is_there && ("),
    ("draw.cu", "the law of a greedy row is its logits", "tell_law(t, t == token ? 0.0f : -INFINITY)", "tell_law(t, damaged ? -INFINITY : l)"),
    ("draw.cu", "laws without their stride", "r * stride_of(a.law_stride, vocab) + t", "r * vocab + t"),
    ("draw.cu", "a row that overflows is drawn", "isinf(max)", "isinf(look.value)"),
    ("draw.cu", "a bias before the penalties are done", "  __syncthreads();  // a token of these may have a bias too\n", ""),
    ("draw.cu", "a bias that cannot forbid", "bias.add == -INFINITY ? -INFINITY : __fadd_rn(l, bias.add)", "bias.add == -INFINITY ? l : __fadd_rn(l, bias.add)"),
    ("draw.cu", "the bias of the next row", "i < row.bias_end; i += threads", "i <= row.bias_end; i += threads"),
    ("draw.cu", "penalties of a token twice", "    if (!elsewhere) apply(token, on_path(token, i));", "    apply(token, on_path(token, i));"),
    ("draw.cu", "penalties count the path once too often", "for (int32_t i = begin; i < row.path_end; ++i) n +=", "for (int32_t i = begin; i <= row.path_end; ++i) n +="),
    ("draw.cu", "penalties of the path's first token only", "i < row.path_end; i += threads) {", "i < row.path_begin + 1; i += threads) {"),

    ("rmsnorm.cu", "the tree leaves a sum out", "if (t < stride) sums[t]", "if (t < stride - 1) sums[t]"),
    ("rmsnorm.cu", "the tree starts at a quarter", "for (int stride = kThreads / 2;", "for (int stride = kThreads / 4;"),
    ("rmsnorm.cu", "rmsnorm does not keep x + delta", "        a.x[first + at] = x[i];\n", ""),
    ("rmsnorm.cu", "rmsnorm beyond the row", "if (at < n) out[at] =", "if (at <= n) out[at] ="),
    ("rmsnorm.cu", "head_norm of the wrong weight", "head < a.n_heads ? a.q_weight", "head <= a.n_heads ? a.q_weight"),
    ("rmsnorm.cu", "head_norm of v too", "static_cast<unsigned>(a.n_heads + a.n_kv_heads));", "static_cast<unsigned>(a.n_heads + 2 * a.n_kv_heads));"),
    ("rmsnorm.cu", "head_norm with a row's stride without k and v", "(a.n_heads + 2 * a.n_kv_heads) + head)", "(a.n_heads + a.n_kv_heads) + head)"),

    ("rope.cu", "heads beyond the last", "  if (head >= a.n_heads + 2 * groups) return;\n", ""),
    ("rope.cu", "the last group of heads is left out", "(a.n_heads + 2 * a.kv.n_kv_heads + kWarps - 1) / kWarps", "(a.n_heads + 2 * a.kv.n_kv_heads) / kWarps"),
    ("rope.cu", "V without a slot is stored", "  if (is_v && !is_kept) return;\n", ""),
    ("rope.cu", "K without a slot is stored", "head < a.n_heads || !is_kept", "head < a.n_heads"),
    ("rope.cu", "K and V of another page", "const auto page = static_cast<size_t>(a.slot[r] / kPageTokens);", "const auto page = static_cast<size_t>(a.slot[r] / kPageTokens) / 2;"),
    ("rope.cu", "v is rotated like k", "head >= a.n_heads + groups, is_kept", "head > a.n_heads + groups, is_kept"),
    ("rope.cu", "q is appended", "head < a.n_heads || !is_kept", "!is_kept"),
    ("rope.cu", "the rotation of another row", "const float* cos_sin = a.cos_sin + r * dim;", "const float* cos_sin = a.cos_sin;"),
    ("rope.cu", "the rotation goes the other way", "__fsub_rn(-0.0f, __fmul_rn(q, s))", "__fmul_rn(q, s)"),
    ("rope.cu", "half of each row is appended", "for (int32_t d = lane; d < dim; d += kWarp) {", "for (int32_t d = lane; d < half; d += kWarp) {"),
    ("rope.cu", "V is laid out like K", "is_v ? offset * dim + d : d * kPageTokens + offset", "d * kPageTokens + offset"),
    ("rope.cu", "K is stored before the rotation is done", "    __syncwarp();\n", ""),
    ("rope.cu", "the largest of a lane is that of its row", "distance > 0; distance /= 2", "distance > 1; distance /= 2"),
    ("rope.cu", "the largest of a row is that of its first half", "for (int32_t d = lane; d < n; d += kWarp) {", "for (int32_t d = lane; d < n / 2; d += kWarp) {"),
    ("rope.cu", "the largest without the negative", "__float_as_uint(x[d]) & 0x7fffffffu", "(x[d] > 0 ? __float_as_uint(x[d]) : 0u)"),
    ("rope.cu", "tiny rows have a scale", "is_finite && m >= 0x1p-100f", "is_finite && m > 0"),
    ("rope.cu", "infinite rows have a scale", "scale = !is_finite ? __uint_as_float(0x7fc00000u) : inverse > 0", "scale = inverse > 0"),
    ("rope.cu", "the scale of a row is not kept", "if (lane == 0) *row_scale = scale;", ""),
    ("rope.cu", "scales of V over those of K", "is_v ? a.kv.v_row_scale : a.kv.k_row_scale;", "a.kv.k_row_scale;"),
    ("rope.cu", "scales without the stride of a page", "page * a.kv.scale_stride + g * kPageTokens + offset", "page * kPageTokens + g * kPageTokens + offset"),
    ("rope.cu", "scales of the first head", "a.kv.scale_stride + g * kPageTokens + offset", "a.kv.scale_stride + offset"),
    ("rope.cu", "float8 without the scale of the layer", "narrow_f8(__fdiv_rn(x, scale))", "narrow_f8(x)"),
    ("rope.cu", "V of float8 with the scale of K", "is_v ? a.kv.v_scale : a.kv.k_scale, scales);", "a.kv.k_scale, scales);"),
    ("rope.cu", "int8 rounds down", "inverse > 0 ? __fmul_rn(x, inverse) : 0;", "inverse > 0 ? floorf(__fmul_rn(x, inverse)) : 0;"),
    ("rope.cu", "a row without a scale is multiplied", "inverse > 0 ? __fmul_rn(x, inverse) : 0;", "__fmul_rn(x, inverse);"),
    ("rope.cu", "a move leaves the scales behind", "a.kv.dtype == KvDType::kInt8 && threadIdx.x < 2", "false"),
    ("rope.cu", "a move leaves the scale of V behind", "kInt8 && threadIdx.x < 2", "kInt8 && threadIdx.x < 1"),
    ("rope.cu", "a move takes the scale of the first head", "a.kv, a.from[i], blockIdx.x)", "a.kv, a.from[i], 0)"),
    ("rope.cu", "moves of several heads in one block", "const auto blocks = static_cast<unsigned>(a.kv.n_kv_heads);", "const auto blocks = 1u;"),
    ("rope.cu", "moves backwards", "for (int32_t i = 0; i < a.n; ++i) {", "for (int32_t i = a.n - 1; i >= 0; --i) {"),
    ("rope.cu", "a move loses V", "      v[to_page + to * dim + d] = v[from_page + from * dim + d];\n", ""),
    ("rope.cu", "the table beyond its half", "for (int32_t i = threadIdx.x; i < half; i += blockDim.x) {\n    const float angle",
     "for (int32_t i = threadIdx.x; i <= half; i += blockDim.x) {\n    const float angle"),

    ("tree.cu", "clamp_nodes accepts any token", "token[n] >= 0 && token[n] < a.vocab) ++n;", "token[n] >= 0) ++n;"),
    ("tree.cu", "clamp_nodes accepts a negative token", "n < most && token[n] >= 0 && ", "n < most && "),
    ("tree.cu", "clamp_nodes beyond the capacity", "const int32_t most = min(a.n_nodes[s], a.capacity);", "const int32_t most = a.n_nodes[s];"),
    ("tree.cu", "walk_tree beyond n_nodes", "const int32_t n_nodes = min(a.n_nodes[s], a.capacity);", "const int32_t n_nodes = a.capacity;"),
    ("tree.cu", "walk_tree beyond the path's room", "node < n_nodes && n < a.path_capacity;", "node < n_nodes;"),
    ("tree.cu", "walk_tree follows skipped nodes", "if (skipped || a.parent", "if (a.parent"),
    ("tree.cu", "walk_tree ignores parents", "a.parent[row + node] != at ||", ""),
    ("tree.cu", "pick_tokens accepts any token", "token >= 0 && token < a.vocab ? token", "token >= 0 ? token"),
    ("tree.cu", "pick_tokens beyond the last", "if (i >= a.n) return;", ""),

    ("elementwise.cu", "embed beyond the row", "  if (i >= a.n) return;\n  const int32_t token", "  const int32_t token"),
    ("elementwise.cu", "embed of a token beyond the table", "token >= 0 && token < a.vocab;", "token >= 0;"),
    ("elementwise.cu", "embed of a negative token", "token >= 0 && token < a.vocab;", "token < a.vocab;"),
    ("elementwise.cu", "map beyond the row", "  if (i >= a.n) return;\n  const float x", "  const float x"),
    ("elementwise.cu", "map reads x for y", "0.0f : a.y[r * a.y_stride + i]", "0.0f : a.x[r * a.x_stride + i]"),
    ("elementwise.cu", "map ignores the stride of out", "a.out[r * a.out_stride + i]", "a.out[r * a.n + i]"),
    ("elementwise.cu", "silu of the wrong sign", "exp_strict(__fsub_rn(0.0f, x))", "exp_strict(x)"),
    ("elementwise.cu", "copy_rows of the wrong row", "a.from_row == nullptr ? i : a.from_row[i]", "i"),
    ("elementwise.cu", "copy_rows to the wrong row", "a.to_row == nullptr ? i : a.to_row[i]", "i"),
    ("elementwise.cu", "copy_rows from beyond the rows", "from >= a.from_rows || ", ""),
    ("elementwise.cu", "copy_rows to beyond the rows", " || to >= a.to_rows", ""),
    ("elementwise.cu", "copy_rows beyond the row", "  if (column >= a.n) return;\n", ""),
    ("elementwise.cu", "one block of columns too few", "(n + kThreads - 1) / kThreads", "n / kThreads"),
]

# Description -> why nobody can notice it.
EQUIVALENT = {
    "attention_tiles.cu: K of another half": "banks only",
    "attention_tiles.cu: p of columns that do not exist is left": "their sums are not stored",
    "attention.cu: p beyond sight is not written": "nobody reads it: acc goes over what the row sees",
    "attention.cu: parts that the window hides are computed for nothing": "attention_join() begins with the window",
    "codes_fast.cu: the first run for every warp": "runs that a warp has no k of add nothing",
    "codes_fast.cu: the next chunk's run has a part of this": "the same",
    "codes_fast.cu: a run that ends where the share begins": "the same",
    "rope.cu: a row without a scale is multiplied": "the inverse is 0 there, and the lower bits of 0 and of a NaN are 0",
    "matmul.cu: matmul_few computes tiles beyond the end": "store() has its bounds; the tiles repeat the last one",
    "matmul.cu: split_x without its bound on units": "zeros in scratch memory, which has room for whole 64 rows",
}


def barriers(name, text):
    """(what, mutated text) for each wait of a source, taken out one by one."""
    function, depth, n = "", 0, 0
    header = 0
    code = blank_comments(text)
    for match in re.finditer(r"[{};]|__syncthreads\(\);|wait_for_\w+(<[^>;]*>)?\(\);", code):
        token = match.group()
        if token == "{":
            if depth == 2:
                names = [each for each in re.findall(r"(\w+)\s*\(", code[header:match.start()])
                         if each != "__launch_bounds__"]
                function, n = (names or [""])[0], 0
            depth += 1
        elif token == "}":
            depth -= 1
        elif token != ";":
            n += 1
            yield (f"wait {n} of {function} removed",
                   text[:match.start()] + ";" + text[match.end():])
        if depth == 2:
            header = match.end()


def source_of(folder, name):
    """A source, with the header that two of them share in its place: that header's code has defects too."""
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        text = file.read()
    with open(os.path.join(folder, "attention.cuh"), encoding="utf-8") as file:
        header = file.read().replace("#pragma once", "")
    return text.replace('#include "kernels/cuda/attention.cuh"', header) if name == "attention.cu" else text


def all_defects(folder):
    for name in sorted(GROUPS):
        text = source_of(folder, name)
        for what, mutated in barriers(name, text):
            yield name, what, mutated
        for which, what, old, new in DEFECTS:
            if which != name:
                continue
            if text.count(old) != 1:
                sys.exit(f"mutants.py: {name}: {what}: its text occurs {text.count(old)} times, not once:\n{old}")
            yield name, what, text.replace(old, new)


def failure(command, env):
    """Why a command fails, or "". Does not wait for the rest once it has said so."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as running:
        ends = threading.Timer(LIMIT_SECONDS, running.kill)
        ends.start()
        said = ""
        for line in running.stdout:
            if line.startswith(("emulated CUDA", "FAILED")):
                said = line.rstrip()
                running.kill()
                break
        running.wait()
        is_late = ends.finished.is_set()
        ends.cancel()
    if said or running.returncode == 0:
        return said
    return "does not end" if is_late else f"exit status {running.returncode}"


class Bench:
    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.check = os.path.join(self.build, "bin", "kernel_check")
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as file:
            self.commands = {each["file"]: each for each in json.load(file)
                             if "/specd_cuda_emulated.dir/" in each["command"]}
        self.objects = {os.path.basename(source).replace(".cc", ".cu"): self.output_of(each)
                        for source, each in self.commands.items()}

    def output_of(self, entry):
        words = shlex.split(entry["command"])
        return os.path.join(entry["directory"], words[words.index("-o") + 1])

    def library(self, name, text, folder):
        """Builds the library with this text in place of a source; an error message, or its path."""
        translated = next(source for source in self.commands if source.endswith("/" + name.replace(".cu", ".cc")))
        entry = self.commands[translated]
        cc, o = (os.path.join(folder, name + end) for end in (".cc", ".o"))
        with open(cc, "w", encoding="utf-8") as file:
            file.write(translate(name, text))
        compile_it = shlex.split(entry["command"]) + ["-w"]  # a defect may leave something unused
        compile_it[compile_it.index("-o") + 1] = o
        compile_it = [cc if word == translated else word for word in compile_it]
        out = os.path.join(folder, "libspecd_cuda.so")
        others = [each for source, each in self.objects.items() if source != name]
        libraries = os.path.join(self.build, "test_lib")
        for command in (compile_it,
                        ["c++", "-shared", "-o", out, o, *others, "-L" + libraries, "-lspecd_emulated_cuda",
                         "-Wl,-rpath," + libraries]):
            done = subprocess.run(command, capture_output=True, text=True, cwd=entry["directory"])
            if done.returncode != 0:
                return None, done.stderr
        return out, ""

    def caught(self, name, library):
        """What noticed, or ""."""
        for seed in SEEDS:
            for group in GROUPS[name]:
                env = dict(os.environ, SPECD_EMULATED_CUDA=f"seed={seed},seconds=60,"
                                                           f"mma_order={seed % 2}")
                words = failure([self.check, library, "--seed", str(seed), "--small", "1", "--fast", "1", "--rates", "0",
                                 "--only", group], env)
                if words:
                    return f"{group}, seed {seed}: {words}"
        return ""


def judge(bench, name, what, text, control=False):
    with tempfile.TemporaryDirectory(prefix="specd-mutant-") as folder:
        library, error = bench.library(name, text, folder)
        if library is None:
            return False, "does not compile: " + error.strip()[:500]
        noticed = bench.caught(name, library)
    if control:
        return noticed == "", noticed
    why = EQUIVALENT.get(f"{name}: {what}")
    if why is None:
        return noticed != "", noticed or "SURVIVED"
    return noticed == "", why if noticed == "" else "listed as harmless, but caught: " + noticed


def checked_defects():
    defects = list(all_defects(KERNELS))
    stale = set(EQUIVALENT) - {f"{name}: {what}" for name, what, _ in defects}
    if stale:
        sys.exit(f"mutants.py: no such defect: {', '.join(sorted(stale))}")
    return defects


def main():
    words = sys.argv[1:]
    if words == ["--texts"]:
        print(f"{len(checked_defects())} defects")
        return
    only = ""
    if len(words) == 3 and words[1] == "--only":
        only = words[2]
    elif len(words) != 1:
        sys.exit(__doc__)
    bench = Bench(words[0])
    wanted = [each for each in checked_defects() if only in f"{each[0]}: {each[1]}"]
    for name in sorted({each[0] for each in wanted}):  # otherwise any failure would count as noticed
        good, words = judge(bench, name, "nothing", source_of(KERNELS, name), control=True)
        if not good:
            sys.exit(f"mutants.py: {name} as it is: {words}")
    n_bad = n_equivalent = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(lambda each: judge(bench, *each), wanted)
        for (name, what, _), (good, words) in zip(wanted, results):
            n_bad += not good
            n_equivalent += good and f"{name}: {what}" in EQUIVALENT
            print(f"{'ok' if good else 'FAILED':6} {name}: {what}: {words}", flush=True)
    print(f"{len(wanted)} defects, {len(wanted) - n_bad - n_equivalent} caught, {n_equivalent} equivalent, {n_bad} failed")
    sys.exit(1 if n_bad or not wanted else 0)


if __name__ == "__main__":
    main()
