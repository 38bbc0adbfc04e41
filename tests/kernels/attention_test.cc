#include "specd/kernels/attention.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu/isa.h"
#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

struct Model {
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  KvDType dtype;
};

// K and V of one sequence by position, and q by row: the input of attention, independent of
// its location.
struct Problem {
  Problem(const Model& model, std::vector<int32_t> row_positions, uint32_t seed,
          int32_t window_size = 0)
      : m(model), position(std::move(row_positions)), window(window_size) {
    length = *std::max_element(position.begin(), position.end()) + 1;
    const size_t kv = static_cast<size_t>(length) * m.kv_heads * m.head_dim;
    k = narrowed(random_floats(kv, seed), m.dtype);
    v = narrowed(random_floats(kv, seed + 1), m.dtype);
    q = random_floats(position.size() * m.heads * m.head_dim, seed + 2);
    scale = 1.0f / std::sqrt(static_cast<float>(m.head_dim));
    if (m.dtype == KvDType::kF8E4M3) k_scale = 0.7f, v_scale = 1.3f;
    const size_t rows = static_cast<size_t>(length * m.kv_heads);
    for (size_t i = 0; i < rows; ++i) {
      k_row_scale.push_back(0.01f + 0.001f * static_cast<float>(i % 17));
      v_row_scale.push_back(0.02f + 0.001f * static_cast<float>(i % 13));
    }
  }
  size_t kv_index(int32_t p, int32_t g, int32_t d) const {
    return (static_cast<size_t>(p) * m.kv_heads + g) * m.head_dim + d;
  }
  size_t row_index(int32_t p, int32_t g) const { return static_cast<size_t>(p) * m.kv_heads + g; }
  // The first position that a row sees.
  int32_t first_seen(size_t r) const {
    return window > 0 ? std::max(0, position[r] - window + 1) : 0;
  }
  Model m;
  std::vector<int32_t> position;
  int32_t window = 0;
  int32_t length = 0;
  Narrowed k, v;
  std::vector<float> q, k_row_scale, v_row_scale;  // those of kInt8 [length, kv_heads]
  float scale = 0, k_scale = 1, v_scale = 1;
};

// A cache in the contract's layout, NaN wherever nothing was written, and the tables of each row.
struct Placed {
  std::vector<char> k, v;
  std::vector<float> k_row_scale, v_row_scale;
  std::vector<int32_t> span, table, pages, tail_begin, tail;
};

// Leave room for another layer between two pages.
size_t page_stride(const Model& m) {
  return static_cast<size_t>(m.kv_heads * m.head_dim * kPageTokens + 48);
}

size_t scale_stride(const Model& m) { return static_cast<size_t>(m.kv_heads * kPageTokens + 4); }

enum class Place { kInOrder, kShuffled, kTail };

// With kTail the span of a row is random, or common to all as in a tree.
Placed place(const Problem& problem, Place how, int32_t common_span = -1) {
  const Model& m = problem.m;
  const int32_t n_pages = (problem.length + kPageTokens - 1) / kPageTokens;
  const int32_t pool_pages = 2 * n_pages + 3;
  const size_t elements = static_cast<size_t>(pool_pages) * page_stride(m);
  Placed placed;
  placed.k = narrowed(std::vector<float>(elements, kNan), m.dtype).bytes;
  placed.v = placed.k;
  placed.k_row_scale.assign(static_cast<size_t>(pool_pages) * scale_stride(m), kNan);
  placed.v_row_scale = placed.k_row_scale;
  std::vector<int32_t> ids(pool_pages);
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937 engine(7);
  if (how != Place::kInOrder) std::shuffle(ids.begin(), ids.end(), engine);
  // Pages of another sequence in front.
  placed.pages = {pool_pages - 1, pool_pages - 1};
  placed.pages.insert(placed.pages.end(), ids.begin(), ids.begin() + n_pages);
  // With kTail a position is also in a random slot of the other pages.
  std::vector<int32_t> loose;
  for (int32_t i = n_pages; i < pool_pages; ++i) {
    for (int32_t j = 0; j < kPageTokens; ++j) loose.push_back(ids[i] * kPageTokens + j);
  }
  std::shuffle(loose.begin(), loose.end(), engine);
  const size_t bytes = kv_dtype_bytes(m.dtype);
  const auto put = [&](int32_t p, int32_t slot) {
    for (int32_t g = 0; g < m.kv_heads; ++g) {
      const size_t slab = static_cast<size_t>(slot / kPageTokens) * page_stride(m) +
                          static_cast<size_t>(g) * m.head_dim * kPageTokens;
      const int32_t offset = slot % kPageTokens;
      const size_t row = static_cast<size_t>(slot / kPageTokens) * scale_stride(m) +
                         static_cast<size_t>(g * kPageTokens + offset);
      placed.k_row_scale[row] = problem.k_row_scale[problem.row_index(p, g)];
      placed.v_row_scale[row] = problem.v_row_scale[problem.row_index(p, g)];
      for (int32_t d = 0; d < m.head_dim; ++d) {
        std::memcpy(&placed.k[(slab + static_cast<size_t>(d) * kPageTokens + offset) * bytes],
                    &problem.k.bytes[problem.kv_index(p, g, d) * bytes], bytes);
        std::memcpy(&placed.v[(slab + static_cast<size_t>(offset) * m.head_dim + d) * bytes],
                    &problem.v.bytes[problem.kv_index(p, g, d) * bytes], bytes);
      }
    }
  };
  int32_t spans_end = 0, seen = problem.length;  // positions that no row sees stay NaN
  for (size_t r = 0; r < problem.position.size(); ++r) {
    const int32_t last = problem.position[r];
    seen = std::min(seen, problem.first_seen(r));
    int32_t span = last + 1;
    if (how == Place::kTail) {
      span = common_span >= 0 ? common_span
                              : static_cast<int32_t>(engine() % static_cast<uint32_t>(last + 2));
    }
    placed.span.push_back(span);
    placed.table.push_back(2);
    placed.tail_begin.push_back(static_cast<int32_t>(placed.tail.size()));
    for (int32_t p = span; p <= last; ++p) placed.tail.push_back(loose[p]);
    spans_end = std::max(spans_end, span);
  }
  placed.tail.push_back(-1);  // beyond the tail of every row
  for (int32_t p = seen; p < spans_end; ++p) {
    put(p, placed.pages[2 + p / kPageTokens] * kPageTokens + p % kPageTokens);
  }
  if (how == Place::kTail) {
    for (int32_t p = seen; p < problem.length; ++p) put(p, loose[p]);
  }
  return placed;
}

std::vector<float> run(const Ops& ops, const Problem& problem, Placed placed, int threads,
                       size_t first_row = 0, size_t n_rows = 0) {
  const Model& m = problem.m;
  if (n_rows == 0) n_rows = problem.position.size();
  const size_t q_row = static_cast<size_t>(m.heads) * m.head_dim;
  const size_t row = q_row + 2 * static_cast<size_t>(m.kv_heads) * m.head_dim;
  std::vector<float> qkv(n_rows * row, kNan);
  for (size_t r = 0; r < n_rows; ++r) {
    std::copy_n(problem.q.begin() + static_cast<int64_t>((first_row + r) * q_row), q_row,
                qkv.begin() + static_cast<int64_t>(r * row));
  }
  std::vector<float> out(n_rows * q_row + 16, kNan);
  AttentionArgs args;
  args.qkv = qkv.data();
  args.out = out.data();
  args.kv = {.k = placed.k.data(),
             .v = placed.v.data(),
             .dtype = m.dtype,
             .n_kv_heads = m.kv_heads,
             .head_dim = m.head_dim,
             .page_stride = page_stride(m),
             .k_row_scale = placed.k_row_scale.data(),
             .v_row_scale = placed.v_row_scale.data(),
             .scale_stride = scale_stride(m),
             .k_scale = problem.k_scale,
             .v_scale = problem.v_scale};
  args.position = problem.position.data() + first_row;
  args.span = placed.span.data() + first_row;
  args.table = placed.table.data() + first_row;
  args.pages = placed.pages.data();
  args.tail_begin = placed.tail_begin.data() + first_row;
  args.tail = placed.tail.data();
  args.n_rows = static_cast<int32_t>(n_rows);
  args.n_heads = m.heads;
  args.window = problem.window;
  args.scale = problem.scale;
  WorkerPool pool(threads);
  CpuStream stream(pool);
  ops.attention(stream, args);
  for (size_t i = n_rows * q_row; i < out.size(); ++i) EXPECT_TRUE(std::isnan(out[i]));
  out.resize(n_rows * q_row);
  return out;
}

float kernel_exp(float x) {
  std::vector<float> in(16, x);
  std::vector<float> out(16);
  isa_ops(Isa::kScalar)
      .lanes({LaneArgs::Function::kExp, DType::kF32, in.data(), out.data(), 16}, 0, 1);
  return out[0];
}

// What the strict oracle reorders, for tests that a reordering is detected.
enum class Swap { kNone, kScore, kSum, kValues };

std::vector<float> strict_oracle(const Problem& problem, Swap swap = Swap::kNone) {
  const Model& m = problem.m;
  const int32_t D = m.head_dim;
  std::vector<float> out;
  for (size_t r = 0; r < problem.position.size(); ++r) {
    for (int32_t h = 0; h < m.heads; ++h) {
      const int32_t g = h / (m.heads / m.kv_heads);
      const float* q = &problem.q[(r * m.heads + h) * D];
      float running_max = -std::numeric_limits<float>::infinity();
      float l = 0;
      std::vector<float> acc(D, 0.0f);
      const int32_t seen = problem.first_seen(r);
      for (int32_t first = seen / kPageTokens * kPageTokens; first <= problem.position[r];
           first += kPageTokens) {
        const int32_t hidden = std::max(0, seen - first);
        const int32_t visible = std::min(kPageTokens, problem.position[r] - first + 1);
        float score[kPageTokens];
        float block_max = -std::numeric_limits<float>::infinity();
        for (int32_t j = hidden; j < visible; ++j) {
          float sum = 0;
          for (int32_t i = 0; i < D; ++i) {
            const int32_t d = swap == Swap::kScore && i == 4   ? 5
                              : swap == Swap::kScore && i == 5 ? 4
                                                               : i;
            sum = std::fma(q[d], problem.k.widened[problem.kv_index(first + j, g, d)], sum);
          }
          const float key_scale =
              m.dtype == KvDType::kInt8
                  ? problem.scale * problem.k_row_scale[problem.row_index(first + j, g)]
                  : problem.scale * problem.k_scale;
          score[j] = sum * key_scale;
          block_max = std::max(block_max, score[j]);
        }
        const float new_max = std::max(running_max, block_max);
        const float c = kernel_exp(running_max - new_max);
        float p[kPageTokens] = {};
        for (int32_t j = hidden; j < visible; ++j) p[j] = kernel_exp(score[j] - new_max);
        float tree[kPageTokens];
        std::copy(p, p + kPageTokens, tree);
        if (swap == Swap::kSum) std::swap(tree[1], tree[2]);
        for (int32_t stride = 8; stride > 0; stride /= 2) {
          for (int32_t i = 0; i < stride; ++i) tree[i] = tree[i] + tree[i + stride];
        }
        l = std::fma(l, c, tree[0]);
        for (int32_t j = hidden; m.dtype == KvDType::kInt8 && j < visible; ++j) {
          p[j] = p[j] * problem.v_row_scale[problem.row_index(first + j, g)];
        }
        for (int32_t d = 0; d < D; ++d) {
          acc[d] = acc[d] * c;
          for (int32_t i = hidden; i < visible; ++i) {
            int32_t j = i;
            if (swap == Swap::kValues && visible > 6 && (i == 5 || i == 6)) j = 11 - i;
            acc[d] = std::fma(p[j], problem.v.widened[problem.kv_index(first + j, g, d)], acc[d]);
          }
        }
        running_max = new_max;
      }
      for (int32_t d = 0; d < D; ++d) out.push_back(acc[d] / l * problem.v_scale);
    }
  }
  return out;
}

// Each row in a call of its own.
std::vector<float> rows_alone(const Ops& ops, const Problem& problem, const Placed& placed) {
  std::vector<float> all;
  for (size_t r = 0; r < problem.position.size(); ++r) {
    const std::vector<float> row = run(ops, problem, placed, 1, r, 1);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

// Positions on both sides of block edges, in mixed order.
const std::vector<int32_t> kPositions = {0, 15, 16, 1, 17, 31, 32, 40, 63, 64, 7, 99};

class Attention : public IsaTest {};
SPECD_FOR_EACH_ISA(Attention);

TEST_P(Attention, is_the_strict_order_to_the_bit_wherever_the_positions_lie) {
  for (const KvDType type : kAllKv) {
    for (const int32_t group : {1, 3, 4, 6}) {
      for (const int32_t head_dim : {16, 48, 64}) {
        const Problem problem({2 * group, 2, head_dim, type}, kPositions, 1);
        const std::vector<float> expected = strict_oracle(problem);
        for (const Place how : {Place::kInOrder, Place::kShuffled, Place::kTail}) {
          const int threads = 1 + static_cast<int>(how);
          EXPECT_EQ(first_difference(run(ops(), problem, place(problem, how), threads), expected),
                    -1)
              << dtype_name(type) << " group " << group << " head_dim " << head_dim << " place "
              << static_cast<int>(how);
        }
      }
    }
  }
}

TEST_P(Attention, a_window_is_the_strict_order_over_what_it_shows) {
  for (const int32_t window : {1, 2, 15, 16, 17, 33, 60, 99, 100, 1000}) {
    for (const std::vector<int32_t>& positions : {kPositions, std::vector<int32_t>{99, 70, 85}}) {
      for (const KvDType type : {KvDType::kF32, KvDType::kBF16, KvDType::kInt8}) {
        const Problem problem({6, 2, 48, type}, positions, 5, window);
        const std::vector<float> expected = strict_oracle(problem);
        for (const Place how : {Place::kInOrder, Place::kShuffled, Place::kTail}) {
          EXPECT_EQ(first_difference(run(ops(), problem, place(problem, how), 2), expected), -1)
              << "window " << window << " place " << static_cast<int>(how);
        }
      }
    }
  }
  const Problem all({4, 2, 64, KvDType::kF16}, kPositions, 6),
      wide({4, 2, 64, KvDType::kF16}, kPositions, 6, 100);
  EXPECT_EQ(first_difference(strict_oracle(all), strict_oracle(wide)), -1);
}

TEST_P(Attention, a_row_has_the_same_bits_alone_and_among_others) {
  for (const KvDType type : {KvDType::kBF16, KvDType::kF8E4M3, KvDType::kInt8}) {
    const Problem problem({8, 2, 64, type}, kPositions, 2);
    const Placed placed = place(problem, Place::kTail);
    const std::vector<float> together = run(ops(), problem, placed, 4);
    EXPECT_EQ(first_difference(together, rows_alone(ops(), problem, placed)), -1)
        << dtype_name(type);
  }
}

// Rows of a draft share the pages that all of them see whole. Every number of threads takes others together.
TEST_P(Attention, rows_that_share_pages_keep_their_bits) {
  std::vector<int32_t> positions(10);
  std::iota(positions.begin(), positions.end(), 134);
  for (const KvDType type : kAllKv) {
    for (const int32_t heads : {2, 4, 6, 8}) {
      for (const int32_t window : {0, 70}) {
        const Problem problem({heads, 2, 32, type}, positions, 8, window);
        const std::vector<float> expected = strict_oracle(problem);
        for (const int32_t span : {-1, 101, 134}) {
          const Placed placed = place(problem, span < 0 ? Place::kShuffled : Place::kTail, span);
          for (const int threads : {2, 7, 10}) {
            EXPECT_EQ(first_difference(run(ops(), problem, placed, threads), expected), -1)
                << dtype_name(type) << ", " << heads << " heads, window " << window << ", span "
                << span << ", " << threads << " threads";
          }
        }
      }
    }
  }
}

// Branches of a tree have the same span and other slots behind it.
TEST_P(Attention, rows_of_other_branches_keep_their_bits) {
  std::vector<int32_t> positions(8);
  std::iota(positions.begin(), positions.end(), 136);
  for (const int32_t heads : {2, 4, 6, 8}) {
    const Problem problem({heads, 2, 32, KvDType::kBF16}, positions, 10);
    Placed placed = place(problem, Place::kTail, 101);
    for (const size_t row : {1, 6}) {
      std::reverse(placed.tail.begin() + placed.tail_begin[row],
                   placed.tail.begin() + placed.tail_begin[row + 1]);
    }
    EXPECT_EQ(first_difference(run(ops(), problem, placed, 2), rows_alone(ops(), problem, placed)),
              -1)
        << heads << " heads";
  }
}

TEST_P(Attention, rows_of_two_sequences_and_of_none_keep_their_bits) {
  std::vector<int32_t> positions(12);
  std::iota(positions.begin(), positions.end(), 132);
  for (const KvDType type : {KvDType::kBF16, KvDType::kInt8}) {
    for (const int32_t heads : {2, 4, 6, 8}) {
      Problem problem({heads, 2, 32, type}, positions, 9);
      Placed placed = place(problem, Place::kShuffled);
      const std::vector<int32_t> pages = placed.pages;
      placed.pages.insert(placed.pages.end(), pages.rbegin(), pages.rend() - 2);
      for (const size_t row : {1, 2, 8, 9, 10, 11})
        placed.table[row] = static_cast<int32_t>(pages.size());
      problem.position[6] = -1;
      placed.span[6] = 0;
      const std::vector<float> together = run(ops(), problem, placed, 2);
      EXPECT_EQ(first_difference(together, rows_alone(ops(), problem, placed)), -1)
          << dtype_name(type) << ", " << heads;
    }
  }
}

TEST_P(Attention, a_row_at_no_position_is_zero_and_harms_no_other) {
  for (const int32_t window : {0, 5}) {
    Problem problem({6, 2, 48, KvDType::kBF16}, kPositions, 3, window);
    Placed placed = place(problem, Place::kTail);
    const std::vector<float> all = run(ops(), problem, placed, 2);
    const size_t row = all.size() / kPositions.size();
    problem.position[3] = -1;
    placed.span[3] = 0;
    std::vector<float> expected = all;
    std::fill_n(expected.begin() + static_cast<int64_t>(3 * row), row, 0.0f);
    const std::vector<float> out = run(ops(), problem, placed, 2);
    EXPECT_EQ(first_difference(out, expected), -1) << "window " << window;
  }
}

TEST_P(Attention, is_near_float64) {
  for (const KvDType type : {KvDType::kF16, KvDType::kF8E4M3, KvDType::kInt8}) {
    const Problem problem({4, 2, 64, type}, kPositions, 3);
    const std::vector<float> out = run(ops(), problem, place(problem, Place::kShuffled), 2);
    const Model& m = problem.m;
    const bool is_int8 = type == KvDType::kInt8;
    for (size_t r = 0; r < kPositions.size(); ++r) {
      for (int32_t h = 0; h < m.heads; ++h) {
        const int32_t g = h / 2;
        const auto number = [&](bool is_k, int32_t p, int32_t d) {
          const Narrowed& codes = is_k ? problem.k : problem.v;
          const auto& rows = is_k ? problem.k_row_scale : problem.v_row_scale;
          const float layer = is_k ? problem.k_scale : problem.v_scale;
          return double{codes.widened[problem.kv_index(p, g, d)]} *
                 (is_int8 ? rows[problem.row_index(p, g)] : layer);
        };
        std::vector<double> p;
        double top = -1e300;
        for (int32_t t = 0; t <= kPositions[r]; ++t) {
          double sum = 0;
          for (int32_t d = 0; d < m.head_dim; ++d) {
            sum += problem.q[(r * m.heads + h) * m.head_dim + d] * number(true, t, d);
          }
          p.push_back(sum * problem.scale);
          top = std::max(top, p.back());
        }
        double total = 0;
        for (double& x : p) total += x = std::exp(x - top);
        for (int32_t d = 0; d < m.head_dim; ++d) {
          double sum = 0;
          for (size_t t = 0; t < p.size(); ++t) {
            sum += p[t] / total * number(false, static_cast<int32_t>(t), d);
          }
          ASSERT_NEAR(out[(r * m.heads + h) * m.head_dim + d], sum, 6e-6) << dtype_name(type);
        }
      }
    }
  }
}

// A cache in FP8 has a code for numbers that are none: a row that sees one must not look healthy.
TEST_P(Attention, a_nan_in_a_cache_of_8_bits_reaches_the_rows_that_see_it_alone) {
  for (const KvDType type : {KvDType::kF8E4M3, KvDType::kInt8}) {
    const Problem problem({4, 2, 64, type}, {20, 40}, 3);
    Placed placed = place(problem, Place::kInOrder);
    const std::vector<float> good = run(ops(), problem, placed, 1);
    const size_t page = static_cast<size_t>(placed.pages[2 + 30 / kPageTokens]);  // position 30
    placed.k[page * page_stride(problem.m) + 30 % kPageTokens] = 0x7f;
    if (type == KvDType::kInt8) {
      placed.k_row_scale[page * scale_stride(problem.m) + 30 % kPageTokens] = kNan;
    }
    const std::vector<float> out = run(ops(), problem, placed, 1);
    const size_t row = out.size() / 2;
    EXPECT_EQ(first_difference(out.data(), good.data(), row), -1);
    EXPECT_TRUE(std::isnan(out[row]));  // the heads of kv head 0
    EXPECT_EQ(first_difference(&out[row + row / 2], &good[row + row / 2], row / 2), -1);
  }
}

TEST_P(Attention, one_swapped_addition_is_seen) {
  const Problem problem({4, 2, 64, KvDType::kF32}, kPositions, 4);
  const std::vector<float> out = run(ops(), problem, place(problem, Place::kInOrder), 1);
  EXPECT_EQ(first_difference(out, strict_oracle(problem)), -1);
  EXPECT_NE(first_difference(out, strict_oracle(problem, Swap::kScore)), -1);
  EXPECT_NE(first_difference(out, strict_oracle(problem, Swap::kSum)), -1);
  EXPECT_NE(first_difference(out, strict_oracle(problem, Swap::kValues)), -1);
}

class KvMove : public IsaTest {};
SPECD_FOR_EACH_ISA(KvMove);

TEST_P(KvMove, copies_k_and_v_of_a_slot_in_order) {
  for (const KvDType type : kAllKv) {
    const int32_t G = 3;
    const int32_t D = 32;
    const int32_t pages = 4;
    const size_t stride = static_cast<size_t>(G * D * kPageTokens + 48);
    const size_t n = static_cast<size_t>(pages) * stride;
    const size_t bytes = kv_dtype_bytes(type);
    const size_t scale_stride = static_cast<size_t>(G * kPageTokens + 4);
    const std::vector<float> k_scale0 = random_floats(scale_stride * pages, 3),
                             v_scale0 = random_floats(scale_stride * pages, 4);
    const std::vector<char> k0 = narrowed(random_floats(n, 1), type).bytes;
    const std::vector<char> v0 = narrowed(random_floats(n, 2), type).bytes;
    // 40 -> 33 overwrites slot 33; 50 -> 40 may then overwrite 40, whose value was already copied.
    const std::vector<int32_t> from = {40, 50, 63, 5};
    const std::vector<int32_t> to = {33, 40, 2, 5};
    for (int threads = 1; threads <= 4; ++threads) {
      std::vector<char> k = k0;
      std::vector<char> v = v0;
      std::vector<float> k_scale = k_scale0, v_scale = v_scale0;
      WorkerPool pool(threads);
      CpuStream stream(pool);
      ops().kv_move(stream, {.kv = {.k = k.data(),
                                    .v = v.data(),
                                    .dtype = type,
                                    .n_kv_heads = G,
                                    .head_dim = D,
                                    .page_stride = stride,
                                    .k_row_scale = k_scale.data(),
                                    .v_row_scale = v_scale.data(),
                                    .scale_stride = scale_stride},
                             .from = from.data(),
                             .to = to.data(),
                             .n = 4});
      std::vector<int32_t> source(pages * kPageTokens);
      std::iota(source.begin(), source.end(), 0);
      for (size_t i = 0; i < from.size(); ++i) source[to[i]] = source[from[i]];
      for (int32_t slot = 0; slot < pages * kPageTokens; ++slot) {
        for (int32_t g = 0; g < G; ++g) {
          const auto scale_at = [&](int32_t s) {
            const bool is_moved = type == KvDType::kInt8;
            return static_cast<size_t>((is_moved ? s : slot) / 16) * scale_stride +
                   static_cast<size_t>(g * 16 + (is_moved ? s : slot) % 16);
          };
          ASSERT_EQ(k_scale[scale_at(slot)], k_scale0[scale_at(source[slot])]) << slot;
          ASSERT_EQ(v_scale[scale_at(slot)], v_scale0[scale_at(source[slot])]) << slot;
          for (int32_t d = 0; d < D; ++d) {
            const auto k_at = [&](int32_t s) {
              return (static_cast<size_t>(s / 16) * stride +
                      static_cast<size_t>((g * D + d) * 16 + s % 16)) *
                     bytes;
            };
            const auto v_at = [&](int32_t s) {
              return (static_cast<size_t>(s / 16) * stride +
                      static_cast<size_t>((g * 16 + s % 16) * D + d)) *
                     bytes;
            };
            ASSERT_EQ(std::memcmp(&k[k_at(slot)], &k0[k_at(source[slot])], bytes), 0) << slot;
            ASSERT_EQ(std::memcmp(&v[v_at(slot)], &v0[v_at(source[slot])], bytes), 0) << slot;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace specd::kernels
