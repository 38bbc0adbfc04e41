// The service ops/1 for unit tests, in host memory: slow and as its header says. The functions
// return what is wrong with the call, or an empty string. See fake_host.h.
#ifndef SPECD_SDK_FAKE_OPS_H
#define SPECD_SDK_FAKE_OPS_H

#include <specd/plugin_api/batch.h>
#include <specd/plugin_api/services/ops.h>
#include <specd/sdk/fake_tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace specd::sdk::fake_ops {

using Tensor = const specd_tensor*;

// Walks from the root down, not in one pass over the nodes.
inline std::string walk(const specd_walk_args* a) {
  FakeCheck check;
  check.expect(a != nullptr && a->struct_size == sizeof *a, "struct_size");
  check.expect(!check.ok() || (a->n_nodes != nullptr && a->token != nullptr && a->path != nullptr),
               "a tensor is null");
  if (!check.ok()) return check.fault();
  const int64_t n = a->n_nodes->shape[0], capacity = a->token->shape[1];
  check.ints("n_nodes", a->n_nodes, n);
  check.ints("token", a->token, n, capacity);
  check.ints("parent", a->parent, n, capacity);
  if (a->flags != nullptr) check.ints("flags", a->flags, n, capacity);
  check.ints("wanted", a->wanted, n, capacity + 1);
  check.ints("n_path", a->n_path, n);
  check.ints("path", a->path, n, a->path->shape[1]);
  check.ints("last", a->last, n);
  for (int64_t s = 0; s < n && check.ok(); ++s) {
    int32_t node = -1, count = 0;
    while (count < a->path->shape[1]) {
      int32_t child = node + 1;
      const int32_t end = fake_cell<int32_t>(a->n_nodes, s);
      const auto is_next = [&] {
        const bool skip =
            a->flags != nullptr &&
            (static_cast<uint32_t>(fake_cell<int32_t>(a->flags, s, child)) & a->skip_flags) != 0;
        return !skip && fake_cell<int32_t>(a->parent, s, child) == node &&
               fake_cell<int32_t>(a->token, s, child) == fake_cell<int32_t>(a->wanted, s, node + 1);
      };
      while (child < end && !is_next()) ++child;
      if (child >= end) break;
      fake_cell<int32_t>(a->path, s, count++) = node = child;
    }
    fake_cell<int32_t>(a->n_path, s) = count;
    fake_cell<int32_t>(a->last, s) = fake_cell<int32_t>(a->wanted, s, node + 1);
  }
  return check.fault();
}

inline std::string linear(const FakeMatrix& matrix, Tensor x, Tensor bias, Tensor out) {
  FakeCheck check;
  const int64_t n = check.rows("x", x);
  check.floats("x", x, n, matrix.n_in);
  check.floats("out", out, n, matrix.n_out);
  if (bias != nullptr) check.floats("bias", bias, matrix.n_out);
  check.apart(x, out, "x and out");
  for (int64_t r = 0; r < n && check.ok(); ++r) {
    for (int64_t o = 0; o < matrix.n_out; ++o) {
      double sum = bias == nullptr ? 0.0 : double{fake_cell<float>(bias, o)};
      const float* weight = matrix.value.data() + o * matrix.n_in;
      for (int64_t i = 0; i < matrix.n_in; ++i)
        sum += double{weight[i]} * fake_cell<float>(x, r, i);
      fake_cell<float>(out, r, o) = static_cast<float>(sum);
    }
  }
  return check.fault();
}

inline std::string embed(Tensor table, Tensor token, Tensor out) {
  FakeCheck check;
  const int64_t n = check.rows("token", token), width = check.columns("table", table);
  check.ints("token", token, n);
  check.floats("out", out, n, width);
  if (!check.ok()) return check.fault();
  const uint8_t code = table->dtype_code, bits = table->dtype_bits;
  const int64_t vocab = table->shape[0];
  check.expect(table->struct_size == sizeof *table && fake_is_short_or_float32(code, bits) &&
                   table->device_type == SPECD_DEV_CPU && table->data != nullptr && vocab >= 1 &&
                   table->stride[0] == width && table->stride[1] == 1 &&
                   static_cast<uint64_t>(vocab * width) <= table->byte_capacity / (bits / 8),
               "table is not float32, float16 or bfloat16, dense in host memory");
  for (int64_t r = 0; r < n && check.ok(); ++r) {
    const int64_t row = fake_cell<int32_t>(token, r);
    const bool is_there = row >= 0 && row < vocab;
    for (int64_t i = 0; i < width; ++i) {
      fake_cell<float>(out, r, i) =
          is_there ? fake_float_at(table->data, code, bits, row * width + i) : 0.0f;
    }
  }
  return check.fault();
}

inline std::string rmsnorm(Tensor x, Tensor weight, double eps, Tensor out) {
  FakeCheck check;
  const int64_t n = check.rows("x", x), width = check.columns("x", x);
  check.floats("x", x, n, width);
  check.floats("weight", weight, width);
  check.floats("out", out, n, width);
  check.expect(eps >= 0 && eps <= 1, "eps is not in 0 to 1");
  check.apart(x, out, "x and out");
  for (int64_t r = 0; r < n && check.ok(); ++r) {
    double square = 0;
    for (int64_t i = 0; i < width; ++i) square += std::pow(double{fake_cell<float>(x, r, i)}, 2);
    const double root = std::sqrt(square / static_cast<double>(width) + eps);
    for (int64_t i = 0; i < width; ++i) {
      fake_cell<float>(out, r, i) =
          static_cast<float>(fake_cell<float>(x, r, i) / root * fake_cell<float>(weight, i));
    }
  }
  return check.fault();
}

inline std::string map(uint32_t map, Tensor x, Tensor y, Tensor out) {
  FakeCheck check;
  check.expect(map <= SPECD_MAP_SILU_MUL, "no such SPECD_MAP_*");
  check.expect((map == SPECD_MAP_SILU) == (y == nullptr), "y is for all but SPECD_MAP_SILU");
  const int64_t n = check.rows("x", x), width = check.columns("x", x);
  const bool is_row = y != nullptr && y->rank == 1;
  check.floats("x", x, n, width, true);
  check.floats("out", out, n, width, true);
  if (is_row) check.floats("y", y, width);
  if (y != nullptr && !is_row) check.floats("y", y, n, width, true);
  for (Tensor in : {x, y}) {
    const bool is_out = check.ok() && in != nullptr && in->data == out->data &&
                        (n <= 1 || in->stride[0] == out->stride[0]) && in->rank == 2;
    if (in != nullptr && !is_out) check.apart(in, out, "an input and out");
  }
  for (int64_t r = 0; r < n && check.ok(); ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const double a = fake_cell<float>(x, r, i), silu = a / (1 + std::exp(-a));
      double b = 0;
      if (y != nullptr) b = is_row ? fake_cell<float>(y, i) : fake_cell<float>(y, r, i);
      const double value[] = {a + b, a * b, silu, silu + b, silu * b};
      fake_cell<float>(out, r, i) = static_cast<float>(value[map]);
    }
  }
  return check.fault();
}

inline std::string copy(Tensor from, Tensor from_row, Tensor to, Tensor to_row) {
  FakeCheck check;
  const int64_t width = check.columns("from", from);
  check.expect(to != nullptr, "to is null");
  const Tensor list = from_row != nullptr ? from_row : to_row != nullptr ? to_row : from;
  const int64_t n = check.rows("from, from_row or to_row", list);
  if (!check.ok()) return check.fault();
  const uint8_t code = from->dtype_code == SPECD_DT_INT ? SPECD_DT_INT : SPECD_DT_FLOAT;
  check.tensor("from", from, code, from->shape[0], width, true);
  check.tensor("to", to, code, to->shape[0], width, true);
  if (from_row != nullptr) check.ints("from_row", from_row, n);
  if (to_row != nullptr) check.ints("to_row", to_row, n);
  check.apart(from, to, "from and to");
  std::set<int64_t> written;
  for (int64_t i = 0; i < n && check.ok(); ++i) {
    const int64_t source = from_row == nullptr ? i : fake_cell<int32_t>(from_row, i);
    const int64_t target = to_row == nullptr ? i : fake_cell<int32_t>(to_row, i);
    if (source < 0 || source >= from->shape[0] || target < 0 || target >= to->shape[0]) continue;
    check.expect(written.insert(target).second, "a row is written twice");
    // Floats are copied with all their bits.
    for (int64_t c = 0; c < width && check.ok(); ++c) {
      fake_cell<int32_t>(to, target, c) = fake_cell<int32_t>(from, source, c);
    }
  }
  return check.fault();
}

// Columns of a row, the largest first, lower ones first among equals; a NaN is the smallest.
inline std::vector<int32_t> ranked(const std::vector<float>& row) {
  std::vector<int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t i) {
    const float l = row[static_cast<std::size_t>(i)];
    return std::isnan(l) ? -INFINITY : l;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return value(a) > value(b); });
  return order;
}
inline std::vector<float> row_of(Tensor t, int64_t r) {
  const float* begin = &fake_cell<float>(t, r);
  return {begin, begin + t->shape[1]};
}

inline std::string topk(Tensor logits, Tensor out_index, Tensor out_logprob) {
  FakeCheck check;
  const int64_t n = check.rows("logits", logits), width = check.columns("logits", logits),
                k = check.columns("out_index", out_index);
  check.floats("logits", logits, n, width);
  check.ints("out_index", out_index, n, k, true);
  if (out_logprob != nullptr) check.floats("out_logprob", out_logprob, n, k, true);
  check.expect(k <= 64 && k <= width, "k is above 64, or above the width");
  for (int64_t r = 0; r < n && check.ok(); ++r) {
    const std::vector<float> row = row_of(logits, r);
    const std::vector<int32_t> order = ranked(row);
    const double max = row[static_cast<std::size_t>(order[0])];
    double sum = 0;
    for (const float l : row) sum += std::exp(l - max);
    for (int64_t i = 0; i < k; ++i) {
      const int32_t column = order[static_cast<std::size_t>(i)];
      fake_cell<int32_t>(out_index, r, i) = column;
      if (out_logprob == nullptr) continue;
      fake_cell<float>(out_logprob, r, i) =
          static_cast<float>(row[static_cast<std::size_t>(column)] - max - std::log(sum));
    }
  }
  return check.fault();
}

// ---- the target's draw -----------------------------------------------------------------------

// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
inline std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {high(b) ^ counter[1] ^ k0, low(b), high(a) ^ counter[3] ^ k1, low(a)};
  }
  return counter;
}

// Gumbel noise of a token at the position of the token that is drawn.
inline float noise(uint64_t seed, int32_t position, int32_t token) {
  const auto id = static_cast<uint32_t>(token);
  const uint32_t lane = philox(seed, {id / 4, static_cast<uint32_t>(position), 0, 0})[id % 4];
  const double w = (lane + 0.5) * 0x1p-32;
  return static_cast<float>(-std::log(-std::log1p(-w)));
}

// Temperature, top_k, top_p, min_p, typical_p, in this order: the processed logits of what is left, and
// minus infinity elsewhere.
inline std::vector<float> processed(std::vector<float> l, const specd_sampling& s) {
  for (float& each : l) each /= s.temperature;
  const std::vector<int32_t> order = ranked(l);
  const auto at = [&](std::size_t rank) { return l[static_cast<std::size_t>(order[rank])]; };
  const double max = at(0);
  std::size_t kept = l.size();  // the first of `order`
  if (s.top_k > 0 && static_cast<std::size_t>(s.top_k) < kept) {
    const float least = at(static_cast<std::size_t>(s.top_k) - 1);
    while (at(kept - 1) < least) --kept;
  }
  if (s.top_p < 1) {
    double total = 0, before = 0;
    for (std::size_t i = 0; i < kept; ++i) total += std::exp(at(i) - max);
    std::size_t n = 0;
    while (n < kept && (n == 0 || before < double{s.top_p} * total)) {
      before += std::exp(at(n++) - max);
    }
    kept = n;
  }
  if (s.min_p > 0) {
    const float least = at(0) + std::log(s.min_p);
    while (at(kept - 1) < least) --kept;
  }
  std::vector<float> left(l.size(), -INFINITY);
  for (std::size_t i = 0; i < kept; ++i) left[static_cast<std::size_t>(order[i])] = at(i);
  if (s.typical_p >= 1) return left;
  // -log p is as far from its mean, the entropy, as max - l is from its own.
  double total = 0, mean = 0;
  for (std::size_t i = 0; i < kept; ++i) total += std::exp(at(i) - max);
  for (std::size_t i = 0; i < kept; ++i) {
    if (std::isfinite(at(i))) mean += std::exp(at(i) - max) / total * (max - at(i));
  }
  std::vector<std::pair<double, double>> nearest;  // distance, mass
  for (std::size_t i = 0; i < kept; ++i) {
    nearest.emplace_back(std::fabs(max - at(i) - mean), std::exp(at(i) - max));
  }
  std::sort(nearest.begin(), nearest.end());
  double before = 0, farthest = 0;
  for (const auto& [distance, mass] : nearest) {
    if (before > 0 && before >= double{s.typical_p} * total) break;
    farthest = distance;
    before += mass;
  }
  for (float& each : left) {
    if (std::fabs(max - each - mean) > farthest + 1e-6) each = -INFINITY;
  }
  return left;
}

inline std::string draw(const specd_draw_args* a, const specd_sampling* const* sampling,
                        uint32_t n_seqs) {
  FakeCheck check;
  check.expect(a != nullptr && a->struct_size == sizeof *a, "struct_size");
  if (!check.ok()) return check.fault();
  const int64_t n = check.rows("logits", a->logits), width = check.columns("logits", a->logits);
  check.floats("logits", a->logits, n, width);
  check.ints("seq_index", a->seq_index, n);
  check.ints("position", a->position, n_seqs);
  if (a->token_id != nullptr) check.ints("token_id", a->token_id, width);
  if (a->out_index != nullptr) check.ints("out_index", a->out_index, n);
  if (a->out_score != nullptr) {
    check.floats("out_score", a->out_score, n, width);
    check.apart(a->logits, a->out_score, "logits and out_score");
  }
  for (int64_t r = 0; r < n && check.ok(); ++r) {
    std::vector<float> score = row_of(a->logits, r);
    const int64_t seq = fake_cell<int32_t>(a->seq_index, r);
    bool is_good = seq >= 0 && seq < n_seqs, any_finite = false;
    for (const float l : score) {
      is_good = is_good && !std::isnan(l) && l != INFINITY;
      any_finite = any_finite || std::isfinite(l);
    }
    is_good = is_good && any_finite;
    if (is_good && (sampling[seq]->flags & SPECD_SAMPLE_GREEDY) == 0) {
      const float largest = *std::max_element(score.begin(), score.end());
      is_good = std::isfinite(largest / sampling[seq]->temperature);
    }
    if (is_good && (sampling[seq]->flags & SPECD_SAMPLE_GREEDY) == 0) {
      score = processed(score, *sampling[seq]);
      const int32_t position =
          fake_cell<int32_t>(a->position, seq) + static_cast<int32_t>(a->position_offset);
      for (int64_t i = 0; i < width; ++i) {
        const int32_t id =
            a->token_id == nullptr ? static_cast<int32_t>(i) : fake_cell<int32_t>(a->token_id, i);
        score[static_cast<std::size_t>(i)] += noise(sampling[seq]->seed, position, id);
      }
    }
    if (!is_good) std::fill(score.begin(), score.end(), -INFINITY);
    if (a->out_index != nullptr) {
      fake_cell<int32_t>(a->out_index, r) = is_good ? ranked(score)[0] : -1;
    }
    if (a->out_score == nullptr) continue;
    std::copy(score.begin(), score.end(), &fake_cell<float>(a->out_score, r));
  }
  return check.fault();
}

}  // namespace specd::sdk::fake_ops

#endif
