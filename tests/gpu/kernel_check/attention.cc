// Attention over random caches, with rows over spans and tails.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {

void check_attention(Rig& rig) {
  Gpu& gpu = rig.gpu;
  for (const KvDType type : kKvTypes) {
    for (const auto& [heads, groups, dim] : {std::tuple{5, 1, 64},
                                             {8, 8, 128},
                                             {28, 4, 128},
                                             {12, 1, 80},
                                             {3, 1, 256},
                                             {40, 1, 64},
                                             {9, 1, 256}}) {
      const int32_t n_pages = 160, positions = rig.small ? 400 : 1500;
      // Pages that cannot be copied 16 bytes at a time, and such that can.
      const size_t gap = heads == 5 ? 3 : 32;
      const size_t stride = static_cast<size_t>(groups) * dim * kPageTokens + gap;
      Typed k = typed(stride * n_pages, type, 1);
      Typed v = typed(stride * n_pages, type, 1);
      // Scores far below 0, so that whoever takes 0 for the largest has no weight left.
      const bool is_negative = heads == 12;
      for (size_t i = 0; is_negative && i < k.values.size(); ++i) {
        k.values[i] = -std::fabs(k.values[i]);
        if (type == KvDType::kInt8) {
          k.bytes[i] = static_cast<char>(k.values[i]);
        } else {
          k.bytes[(i + 1) * kv_dtype_bytes(type) - 1] |= static_cast<char>(0x80);  // the sign
        }
      }
      KvLayer cache{.k = gpu.in(k.bytes),
                    .v = gpu.in(v.bytes),
                    .dtype = type,
                    .n_kv_heads = groups,
                    .head_dim = dim,
                    .page_stride = stride,
                    .scale_stride = static_cast<size_t>(groups) * kPageTokens + gap};
      // Scales that make the codes numbers of about 1.
      const size_t n_scales = cache.scale_stride * n_pages;
      std::vector<float> k_scale = floats(n_scales, 0.003f), v_scale = floats(n_scales, 0.003f);
      for (std::vector<float>* all : {&k_scale, &v_scale}) {
        for (float& each : *all) each = std::fabs(each) + 0.005f;
      }
      const bool is_int8 = type == KvDType::kInt8, is_float8 = type == KvDType::kF8E4M3;
      cache.k_scale = is_float8 ? 0.0041f : kNan;  // of others nobody reads it
      cache.v_scale = is_float8 ? 0.0052f : kNan;
      for (size_t page = 0; page < n_pages; ++page) {
        for (size_t i = 0; i < static_cast<size_t>(groups) * dim * kPageTokens; ++i) {
          const size_t g = i / (static_cast<size_t>(dim) * kPageTokens),
                       row = page * cache.scale_stride + g * kPageTokens;
          if (is_int8) {
            k.values[page * stride + i] *= k_scale[row + i % kPageTokens];
            v.values[page * stride + i] *= v_scale[row + i / dim % kPageTokens];
          } else if (is_float8) {
            k.values[page * stride + i] *= cache.k_scale;
            v.values[page * stride + i] *= cache.v_scale;
          }
        }
      }
      std::vector<int32_t> pages(n_pages);
      std::iota(pages.begin(), pages.end(), 0);
      std::shuffle(pages.begin(), pages.end(), g_random);
      const int32_t width = (heads + 2 * groups) * dim;
      // Enough for the schedule for many rows; fewer use the other one.
      const int32_t rows = 4 * gpu.device->info().multiprocessors / groups + (rig.small ? 9 : 40);
      // boundaries of pages and parts
      const int32_t edges[] = {0, 1, 15, 16, 127, 128, 255, 256};
      std::vector<float> qkv = floats(static_cast<size_t>(rows) * width);
      for (float& each : qkv) each = is_negative ? 25 * std::fabs(each) : each;
      std::vector<int32_t> position(rows), span(rows), table(rows), tail_begin(rows), tail;
      for (int32_t r = 0; r < rows; ++r) {
        position[static_cast<size_t>(r)] = r < 8 ? edges[r] : below(positions);
        const bool sees_nothing = r % 11 >= 9;
        if (sees_nothing) position[static_cast<size_t>(r)] = -1;
        // The second half is one sequence, as a prompt and a tree at its end have it.
        const bool is_second = r >= rows / 2;
        if (is_second && !sees_nothing) {
          position[static_cast<size_t>(r)] = 256 + (r - rows / 2) % 40;
        }
        table[static_cast<size_t>(r)] = sees_nothing ? 7 : is_second ? 1 : r % 2 * 3;
        const int32_t in_tail = std::min(below(9), position[static_cast<size_t>(r)] + 1);
        span[static_cast<size_t>(r)] = position[static_cast<size_t>(r)] + 1 - in_tail;
        tail_begin[static_cast<size_t>(r)] = static_cast<int32_t>(tail.size());
        for (int32_t i = 0; i < in_tail; ++i)
          tail.push_back(pages[static_cast<size_t>(100 + below(60))] * kPageTokens +
                         below(kPageTokens));
      }
      tail.push_back(0);
      // NaN wherever no row looks.
      std::vector<bool> seen(static_cast<size_t>(n_pages) * kPageTokens);
      for (size_t r = 0; r < position.size(); ++r) {
        for (int32_t p = 0; p <= position[r]; ++p) {
          seen[static_cast<size_t>(
              p < span[r] ? pages[static_cast<size_t>(table[r] + p / kPageTokens)] * kPageTokens +
                                p % kPageTokens
                          : tail[static_cast<size_t>(tail_begin[r] + p - span[r])])] = true;
        }
      }
      for (size_t slot = 0; slot < seen.size(); ++slot) {
        const size_t page = slot / kPageTokens * stride, at = slot % kPageTokens;
        for (size_t d = 0; !seen[slot] && d < static_cast<size_t>(groups) * dim; ++d) {
          const size_t g = d / dim * dim * kPageTokens;
          for (char* each : {&k.bytes[(page + d * kPageTokens + at) * kv_dtype_bytes(type)],
                             &v.bytes[(page + g + at * dim + d % dim) * kv_dtype_bytes(type)]}) {
            std::memset(each, 0xff, kv_dtype_bytes(type));
          }
          const size_t row = slot / kPageTokens * cache.scale_stride + d / dim * kPageTokens + at;
          k_scale[row] = v_scale[row] = kNan;
        }
      }
      cache.k = gpu.in(k.bytes), cache.v = gpu.in(v.bytes);
      cache.k_row_scale = gpu.in(k_scale), cache.v_row_scale = gpu.in(v_scale);
      const float scale = 1 / std::sqrt(static_cast<float>(dim));
      const int32_t window = heads == 28   ? 200
                             : heads == 12 ? 5
                                           : 0;  // over parts, within one, none
      const float* qkv_gpu = gpu.in(qkv);
      const int32_t *position_gpu = gpu.in(position), *span_gpu = gpu.in(span),
                    *table_gpu = gpu.in(table), *begin_gpu = gpu.in(tail_begin);
      const int32_t *pages_gpu = gpu.in(pages), *tail_gpu = gpu.in(tail);
      const auto run = [&, heads = heads, dim = dim](int32_t first, int32_t n) {
        const AttentionArgs a{.qkv = qkv_gpu + static_cast<size_t>(first) * width,
                              .out = gpu.poisoned(static_cast<size_t>(n) * heads * dim),
                              .kv = cache,
                              .position = position_gpu + first,
                              .span = span_gpu + first,
                              .table = table_gpu + first,
                              .pages = pages_gpu,
                              .tail_begin = begin_gpu + first,
                              .tail = tail_gpu,
                              .n_rows = n,
                              .n_heads = heads,
                              .window = window,
                              .scale = scale};
        gpu.ops().attention(gpu.stream(), a);
        return gpu.out(a.out, static_cast<size_t>(n) * heads * dim);
      };
      const std::vector<float> all = run(0, rows);
      std::vector<double> expected(all.size()), allowed(all.size(), is_negative ? 2e-3 : 2e-5);
      for (int32_t r = 0; r < rows; ++r) {
        const auto at = static_cast<size_t>(r);
        for (int32_t h = 0; h < heads; ++h) {
          const int32_t g = h / (heads / groups);
          std::vector<double> score(static_cast<size_t>(position[at] + 1));
          std::vector<int32_t> slot(score.size());
          double largest = -HUGE_VAL, sum = 0;
          for (int32_t p = 0; p <= position[at]; ++p) {
            const int32_t s =
                p < span[at]
                    ? pages[static_cast<size_t>(table[at] + p / kPageTokens)] * kPageTokens +
                          p % kPageTokens
                    : tail[static_cast<size_t>(tail_begin[at] + p - span[at])];
            slot[static_cast<size_t>(p)] = s;
            double dot = 0;
            for (int32_t d = 0; d < dim; ++d) {
              dot += double{qkv[at * width + static_cast<size_t>(h * dim + d)]} *
                     k.values[static_cast<size_t>(s / kPageTokens) * stride +
                              (static_cast<size_t>(g) * dim + d) * kPageTokens + s % kPageTokens];
            }
            score[static_cast<size_t>(p)] = dot * scale;
            largest = std::max(largest, dot * scale);
          }
          for (int32_t p = 0; p <= position[at]; ++p) {
            double& each = score[static_cast<size_t>(p)];
            each = window > 0 && p <= position[at] - window ? 0 : std::exp(each - largest);
            sum += each;
          }
          for (int32_t d = 0; d < dim; ++d) {
            double out = 0;
            for (size_t p = 0; p < score.size(); ++p) {
              out += score[p] *
                     v.values[static_cast<size_t>(slot[p] / kPageTokens) * stride +
                              (static_cast<size_t>(g) * kPageTokens + slot[p] % kPageTokens) * dim +
                              d];
            }
            expected[(at * heads + static_cast<size_t>(h)) * dim + static_cast<size_t>(d)] =
                position[at] < 0 ? 0 : out / sum;
          }
        }
      }
      std::string problem = beyond(all, expected, allowed);
      for (const int32_t n : {1, 2, 3, 5, 7, 8, 33}) {
        if (!problem.empty() || n > rows) break;
        const int32_t first = below(rows - n + 1);
        const size_t each = static_cast<size_t>(heads) * dim;
        problem =
            difference(run(first, n), {all.begin() + static_cast<ptrdiff_t>(first * each),
                                       all.begin() + static_cast<ptrdiff_t>((first + n) * each)});
        if (!problem.empty()) problem = std::to_string(n) + " rows, " + problem;
      }
      // The same cache with its pages in other places.
      std::vector<int32_t> to(n_pages);
      std::iota(to.begin(), to.end(), 0);
      std::shuffle(to.begin(), to.end(), g_random);
      std::vector<char> k_moved(k.bytes.size()), v_moved(v.bytes.size());
      std::vector<float> k_scale_moved(n_scales), v_scale_moved(n_scales);
      const size_t page_bytes = stride * kv_dtype_bytes(type);
      for (size_t page = 0; page < to.size(); ++page) {
        const size_t target = static_cast<size_t>(to[page]) * page_bytes;
        std::memcpy(&k_moved[target], &k.bytes[page * page_bytes], page_bytes);
        std::memcpy(&v_moved[target], &v.bytes[page * page_bytes], page_bytes);
        for (size_t i = 0; i < cache.scale_stride; ++i) {
          const size_t from_row = page * cache.scale_stride + i,
                       to_row = static_cast<size_t>(to[page]) * cache.scale_stride + i;
          k_scale_moved[to_row] = k_scale[from_row];
          v_scale_moved[to_row] = v_scale[from_row];
        }
      }
      for (int32_t& page : pages) page = to[static_cast<size_t>(page)];
      for (int32_t& slot : tail) {
        slot = to[static_cast<size_t>(slot / kPageTokens)] * kPageTokens + slot % kPageTokens;
      }
      cache.k = gpu.in(k_moved), cache.v = gpu.in(v_moved);
      cache.k_row_scale = gpu.in(k_scale_moved), cache.v_row_scale = gpu.in(v_scale_moved);
      pages_gpu = gpu.in(pages), tail_gpu = gpu.in(tail);
      if (problem.empty()) {
        problem = difference(run(0, rows), all);
        if (!problem.empty()) problem = "pages in another order, " + problem;
      }
      rig.report.check(std::string("attention ") + name_of(type) + ", " + std::to_string(heads) +
                           "/" + std::to_string(groups) + " heads of " + std::to_string(dim) +
                           (window > 0 ? ", window " + std::to_string(window) : "") +
                           ", strict in rows and pages",
                       problem.empty(), problem);
      gpu.free_all();
    }
  }
}

}  // namespace specd::kernels
