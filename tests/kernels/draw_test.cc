#include "specd/kernels/draw.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/kernels/kernel_testing.h"

namespace specd::kernels {
namespace {

TEST(Philox, gives_the_published_vectors) {
  // Known answers of Random123 for philox4x32, 10 rounds.
  struct Known {
    uint64_t key;
    uint32_t counter[4];
    uint32_t out[4];
  };
  const Known known[] = {
      {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {~uint64_t{0},
       {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822,
       {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Known& k : known) {
    uint32_t out[4];
    philox4x32(k.key, k.counter, out);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], k.out[i]);
  }
}

DrawRow sampled(float temperature, int32_t top_k, float top_p, uint64_t seed, int32_t position) {
  DrawRow row;
  row.greedy = false;
  row.temperature = temperature;
  row.top_k = top_k;
  row.top_p = top_p;
  row.seed = seed;
  row.position = position;
  return row;
}

class Draw : public IsaTest {
 protected:
  std::vector<int32_t> draw(const std::vector<float>& logits, const std::vector<DrawRow>& rows,
                            int threads = 1) {
    WorkerPool pool(threads);
    CpuStream stream(pool);
    std::vector<int32_t> token(rows.size(), -7);
    const int32_t n_rows = static_cast<int32_t>(rows.size());
    ops().draw(stream, {logits.data(), rows.data(), token.data(), n_rows,
                        static_cast<int32_t>(logits.size() / rows.size())});
    return token;
  }
  struct Law {
    int32_t token;
    std::vector<float> law;
    float lse;
  };
  Law law_of(const std::vector<float>& logits, const DrawRow& row) {
    WorkerPool pool(1);
    CpuStream stream(pool);
    Law law{-7, std::vector<float>(logits.size(), 7), 7};
    ops().draw(stream, {.logits = logits.data(),
                        .row = &row,
                        .token = &law.token,
                        .n_rows = 1,
                        .vocab = static_cast<int32_t>(logits.size()),
                        .law = law.law.data(),
                        .lse = &law.lse});
    return law;
  }
  std::vector<float> noise(uint64_t seed, int32_t position, int32_t vocab, int threads = 1) {
    WorkerPool pool(threads);
    CpuStream stream(pool);
    std::vector<float> out(static_cast<size_t>(vocab) + 1, kNan);
    ops().draw_noise(stream, {&seed, &position, out.data(), 1, vocab});
    EXPECT_TRUE(std::isnan(out.back()));
    out.pop_back();
    return out;
  }
};
SPECD_FOR_EACH_ISA(Draw);

constexpr float kNever = -std::numeric_limits<float>::infinity();

// By -log p and the entropy of the kept tokens. `edge`: also how near the first token that goes is to
// the last that stays.
void keep_typical(const std::vector<float>& l, double typical_p, std::vector<bool>& keep,
                  double* edge) {
  const double max = *std::max_element(l.begin(), l.end());
  double total = 0, entropy = 0;
  for (size_t i = 0; i < l.size(); ++i) total += keep[i] ? std::exp(l[i] - max) : 0;
  std::vector<std::pair<double, size_t>> ranked;
  for (size_t i = 0; i < l.size(); ++i) {
    if (!keep[i]) continue;
    const double log_p = l[i] - max - std::log(total);
    entropy -= std::exp(log_p) * log_p;
    ranked.emplace_back(-log_p, i);
  }
  for (auto& [distance, i] : ranked) distance = std::fabs(distance - entropy);
  std::sort(ranked.begin(), ranked.end());
  double before = 0, last = 0;
  bool over = false;
  for (const auto& [distance, i] : ranked) {
    *edge = std::min(*edge, std::fabs(before - typical_p));
    over = over || (before > 0 && before >= typical_p);
    if (over && l[i] != l[ranked[0].second]) *edge = std::min(*edge, distance - last);
    if (over && distance > last + 1e-9) keep[i] = false;
    if (!over) last = distance;
    before += std::exp(l[i] - max) / total;
  }
}

// The kept tokens, by sorting, in float64. `edge` is the distance between cut and limit.
std::vector<bool> kept_oracle(const std::vector<float>& logits, const DrawRow& row, double* edge) {
  const size_t n = logits.size();
  std::vector<float> l(n);
  for (size_t i = 0; i < n; ++i) l[i] = logits[i] / row.temperature;
  std::vector<size_t> rank(n);
  std::iota(rank.begin(), rank.end(), size_t{0});
  std::stable_sort(rank.begin(), rank.end(), [&](size_t a, size_t b) { return l[a] > l[b]; });
  size_t kept = n;
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < n) {
    kept = static_cast<size_t>(row.top_k);
    while (kept < n && l[rank[kept]] == l[rank[kept - 1]]) ++kept;
  }
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += std::exp(double{l[rank[i]]} - l[rank[0]]);
  std::vector<bool> keep(n, false);
  double before = 0;
  *edge = 1;
  for (size_t i = 0; i < kept; ++i) {
    if (row.top_p < 1) *edge = std::min(*edge, std::fabs(before / total - row.top_p));
    if (row.top_p < 1 && i > 0 && before >= row.top_p * total) break;
    const double least = double{l[rank[0]]} + std::log(double{row.min_p});
    if (row.min_p > 0) *edge = std::min(*edge, std::fabs(l[rank[i]] - least));
    keep[rank[i]] = l[rank[i]] >= least;
    before += std::exp(double{l[rank[i]]} - l[rank[0]]);
  }
  if (row.typical_p < 1) keep_typical(l, row.typical_p, keep, edge);
  return keep;
}

TEST_P(Draw, greedy_takes_the_lowest_id_among_equals) {
  for (const int32_t vocab : {1, 5, 16, 100, 1000}) {
    std::vector<float> logits = random_floats(vocab, 1);
    const float top = *std::max_element(logits.begin(), logits.end()) + 1;
    for (const int32_t first : {0, vocab / 3, vocab - 1}) {
      std::vector<float> row = logits;
      row[first] = top;
      row[vocab - 1] = top;
      EXPECT_EQ(draw(row, {DrawRow()})[0], first);
    }
  }
  EXPECT_EQ(draw({-0.0f, 0.0f, -1.0f}, {DrawRow()})[0], 0);  // the zeros are equal
  EXPECT_EQ(draw({0.0f, 0.0f}, {sampled(1, 1, 1e-9f, 3, 4)})[0], 0);
}

TEST_P(Draw, a_damaged_row_draws_minus_one_and_harms_no_other) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> logits = random_floats(7 * 40, 2);
  logits[0 * 40 + 39] = kNan;
  logits[1 * 40 + 0] = -kNan;
  std::fill_n(logits.begin() + 2 * 40, 40, -inf);
  std::fill_n(logits.begin() + 3 * 40, 40, -inf);
  logits[3 * 40 + 33] = -5.0f;
  std::fill_n(logits.begin() + 4 * 40, 40, inf);
  logits[6 * 40 + 17] = inf;
  for (const bool greedy : {true, false}) {
    DrawRow row = sampled(0.7f, 10, 0.9f, 5, 6);
    row.greedy = greedy;
    const std::vector<int32_t> token = draw(logits, std::vector<DrawRow>(7, row), 3);
    EXPECT_EQ(token[0], -1);
    EXPECT_EQ(token[1], -1);
    EXPECT_EQ(token[2], -1);
    EXPECT_EQ(token[3], 33);
    EXPECT_EQ(token[4], -1);
    EXPECT_EQ(token[5], draw({logits.begin() + 5 * 40, logits.begin() + 6 * 40}, {row})[0]);
    EXPECT_GE(token[5], 0);
    EXPECT_EQ(token[6], -1);
  }
}

TEST_P(Draw, noise_is_near_float64_and_has_the_scalar_bits) {
  for (const int32_t vocab : {1, 15, 16, 1003}) {
    std::vector<float> scalar(vocab);
    const uint64_t seed = 0x123456789abcdef0u;
    const int32_t position = 77;
    WorkerPool pool(1);
    CpuStream stream(pool);
    cpu_ops(Isa::kScalar).draw_noise(stream, {&seed, &position, scalar.data(), 1, vocab});
    for (int threads = 1; threads <= 4; ++threads) {
      EXPECT_EQ(first_difference(noise(seed, position, vocab, threads), scalar), -1);
    }
    for (int32_t t = 0; t < vocab; ++t) {
      const uint32_t counter[4] = {static_cast<uint32_t>(t / 4), 77, 0, 0};
      uint32_t x[4];
      philox4x32(seed, counter, x);
      const double w = (x[t % 4] + 0.5) * 0x1p-32;
      const double want = -std::log(-std::log1p(-w));
      EXPECT_NEAR(scalar[t], want, 3e-7 + std::fabs(want) * 3e-7);
    }
  }
}

TEST_P(Draw, uniform_numbers_are_the_upper_bits_of_philox_by_seed_position_and_purpose) {
  constexpr size_t kStride = 9;
  constexpr int32_t kLanes = 7;
  std::vector<DrawRow> row(2);
  row[0].seed = 0x123456789abcdef0u, row[1].seed = 3;
  const std::vector<int32_t> sequence = {1, 0, 2, -1, 1, 0}, position = {5, 5, 5, 5, 6, 1 << 30};
  for (int threads = 1; threads <= 4; ++threads) {
    std::vector<float> out(sequence.size() * kStride, 7);
    WorkerPool pool(threads);
    CpuStream stream(pool);
    ops().uniform(stream, {.row = row.data(),
                           .sequence = sequence.data(),
                           .position = position.data(),
                           .out = out.data(),
                           .purpose = 3,
                           .n_rows = static_cast<int32_t>(sequence.size()),
                           .n_sequences = 2,
                           .lanes = kLanes,
                           .out_stride = kStride});
    for (size_t r = 0; r < sequence.size(); ++r) {
      const int32_t s = sequence[r];
      for (uint32_t lane = 0; lane < kStride; ++lane) {
        const float value = out[r * kStride + lane];
        if (lane >= kLanes) {
          EXPECT_EQ(value, 7) << r << " " << lane;
        } else if (s < 0 || s >= 2) {
          EXPECT_TRUE(std::isnan(value)) << r << " " << lane;
        } else {
          const uint32_t counter[4] = {lane / 4, static_cast<uint32_t>(position[r]), 3, 0};
          uint32_t x[4];
          philox4x32(row[static_cast<size_t>(s)].seed, counter, x);
          EXPECT_EQ(value, std::ldexp(static_cast<float>(x[lane % 4] >> 8), -24));
        }
      }
    }
  }
}

TEST_P(Draw, equals_the_argmax_of_processed_plus_noise_over_the_kept) {
  std::mt19937 engine(3);
  int compared = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int32_t vocab = std::vector<int32_t>{1, 7, 16, 50, 333, 2000}[trial % 6];
    std::vector<float> logits = random_floats(vocab, 100 + trial, 3.0f);
    if (trial % 3 == 0) {  // many ties
      for (float& l : logits) l = std::round(l);
    }
    const float temperature = std::vector<float>{0.3f, 1.0f, 1.7f}[engine() % 3];
    const int32_t top_k = std::vector<int32_t>{0, 1, 5, 40}[engine() % 4];
    const float top_p = std::vector<float>{1.0f, 0.9f, 0.5f, 0.01f, 0.0f}[engine() % 5];
    DrawRow row = sampled(temperature, top_k, top_p, engine(), trial);
    row.min_p = std::vector<float>{0.0f, 0.0f, 0.02f, 0.3f, 1.0f}[engine() % 5];
    row.typical_p = std::vector<float>{1.0f, 1.0f, 0.9f, 0.5f, 0.1f, 0.0f}[engine() % 6];
    double edge = 0;
    const std::vector<bool> keep = kept_oracle(logits, row, &edge);
    const bool is_cut = top_p > 0 || row.min_p > 0 || row.typical_p < 1;
    if (is_cut && edge < 1e-5 && row.min_p < 1)
      continue;  // float64 and the op may cut on different sides
    ++compared;
    const std::vector<float> g = noise(row.seed, row.position, vocab);
    int32_t best = -1;
    float best_value = 0;
    for (int32_t t = 0; t < vocab; ++t) {
      const float value = logits[t] / temperature + g[t];
      if (keep[t] && (best < 0 || value > best_value)) best = t, best_value = value;
    }
    EXPECT_EQ(draw(logits, {row})[0], best)
        << "trial " << trial << " vocab " << vocab << " k " << top_k << " p " << top_p
        << " typical " << row.typical_p;
    row.law = true;
    const Law law = law_of(logits, row);
    EXPECT_EQ(law.token, best);
    double mass = 0;
    const float largest = *std::max_element(logits.begin(), logits.end()) / temperature;
    for (int32_t t = 0; t < vocab; ++t) {
      const float l = logits[t] / temperature;
      ASSERT_EQ(law.law[t], keep[t] ? l - largest : kNever) << trial << ", " << t;
      mass += std::exp(double{law.law[t]} - law.lse);
    }
    EXPECT_NEAR(mass, 1, 2e-6) << trial;
  }
  EXPECT_GT(compared, 250);
}

TEST_P(Draw, a_law_may_take_the_place_of_its_logits_and_leaves_other_rows_alone) {
  constexpr int32_t kVocab = 21, kWidth = 24, kRows = 6;
  const std::vector<float> before = [&] {
    std::vector<float> logits = random_floats(kRows * kWidth, 31, 2.0f);
    logits[2 * kWidth + 3] = logits[2 * kWidth + 9] = 30;  // greedy: the lower id
    logits[3 * kWidth + 5] = kNan;
    return logits;
  }();
  std::vector<DrawRow> rows(kRows, sampled(0.7f, 5, 1, 3, 4));
  rows[2].greedy = true;
  for (DrawRow& row : rows) row.law = &row != &rows[1];
  std::vector<float> logits = before, lse(kRows, 7);
  std::vector<int32_t> token(kRows);
  WorkerPool pool(2);
  CpuStream stream(pool);
  ops().draw(stream, {.logits = logits.data(),
                      .row = rows.data(),
                      .token = token.data(),
                      .n_rows = kRows,
                      .vocab = kVocab,
                      .logits_stride = kWidth,
                      .law = logits.data(),
                      .lse = lse.data(),
                      .law_stride = kWidth});
  for (int32_t r = 0; r < kRows; ++r) {
    std::vector<float> own(before.begin() + r * kWidth, before.begin() + r * kWidth + kVocab);
    std::vector<float> expected(own);
    float expected_lse = 7;
    if (r == 2 || r == 3) {  // greedy and damaged
      std::fill(expected.begin(), expected.end(), kNever);
      expected_lse = r == 2 ? 0 : kNever;
      if (r == 2) expected[3] = 0;
      EXPECT_EQ(token[r], r == 2 ? 3 : -1);
    } else if (r != 1) {
      const Law law = law_of(own, rows[r]);
      EXPECT_EQ(token[r], law.token);
      expected_lse = law.lse;
      expected = law.law;
      EXPECT_EQ(std::count(expected.begin(), expected.end(), kNever), kVocab - 5);
    }
    EXPECT_EQ(lse[r], expected_lse) << r;
    for (int32_t t = kVocab; t < kWidth; ++t) expected.push_back(before[r * kWidth + t]);
    const std::vector<float> got(logits.begin() + r * kWidth, logits.begin() + (r + 1) * kWidth);
    EXPECT_EQ(first_difference(got, expected), -1) << r;
  }
}

TEST_P(Draw, a_row_that_overflows_at_its_temperature_is_damaged) {
  const std::vector<float> logits = {1e30f, 2e30f, 3.0f};
  DrawRow row = sampled(1e-20f, 0, 1, 1, 1);
  EXPECT_EQ(draw(logits, {row})[0], -1);
  row.law = true;
  EXPECT_EQ(law_of(logits, row).law, std::vector<float>(3, kNever));
  row.temperature = 1;
  EXPECT_EQ(draw(logits, {row})[0], 1);
}

// The oracle counts the whole text, as in the definition.
TEST_P(Draw, penalties_are_those_of_the_text_of_each_row) {
  std::mt19937 engine(4);
  const int32_t vocab = 40, n_tokens = 30;
  for (int trial = 0; trial < 200; ++trial) {
    const int32_t rows = 1 + static_cast<int32_t>(engine() % 4);
    std::vector<float> logits = random_floats(static_cast<size_t>(rows) * vocab, 300 + trial, 3.0f);
    std::vector<float> expected = logits;
    std::vector<int32_t> token(n_tokens), path;
    for (int32_t& t : token) t = static_cast<int32_t>(engine() % vocab);
    std::vector<PenaltySeen> seen;
    std::vector<TokenBias> bias;
    std::vector<PenaltyRow> row(rows);
    for (int32_t r = 0; r < rows; ++r) {
      PenaltyRow& own = row[static_cast<size_t>(r)];
      own.repetition = std::vector<float>{1.0f, 1.3f, 0.5f}[engine() % 3];
      own.frequency = std::vector<float>{0.0f, 0.7f, -0.5f}[engine() % 3];
      own.presence = std::vector<float>{0.0f, 1.1f, -2.0f}[engine() % 3];
      std::map<int32_t, int32_t> text;
      own.seen_begin = static_cast<int32_t>(seen.size());
      for (int i = 0; i < 10 && r != 2; ++i) {
        const auto t = static_cast<int32_t>(engine() % vocab),
                   n = static_cast<int32_t>(engine() % 3);
        if (text.emplace(t, n).second) seen.push_back({t, n});
      }
      own.seen_end = static_cast<int32_t>(seen.size());
      own.path_begin = static_cast<int32_t>(path.size());
      for (uint32_t i = engine() % 12; i > 0; --i) {
        path.push_back(static_cast<int32_t>(engine() % n_tokens));
        ++text[token[static_cast<size_t>(path.back())]];
      }
      own.path_end = static_cast<int32_t>(path.size());
      for (const auto& [t, count] : text) {
        float& l = expected[static_cast<size_t>(r * vocab + t)];
        l = l > 0 ? l / own.repetition : l * own.repetition;
        l = l - own.frequency * static_cast<float>(count);
        l = l - (count > 0 ? own.presence : 0.0f);
      }
      own.bias_begin = static_cast<int32_t>(bias.size());
      for (int32_t t = r; t < vocab && r != 1; t += 7) {  // also of tokens of the text
        bias.push_back({t, t % 3 == 0 ? kNever : 1.5f});
        float& l = expected[static_cast<size_t>(r * vocab + t)];
        l = t % 3 == 0 ? kNever : l + 1.5f;
      }
      own.bias_end = static_cast<int32_t>(bias.size());
    }
    logits[0] = expected[0] = std::numeric_limits<float>::infinity();
    if (row[0].bias_end > 0) expected[0] = kNever;  // also what is not finite is never drawn
    WorkerPool pool(2);
    CpuStream stream(pool);
    ops().penalize(stream, {.logits = logits.data(),
                            .row = row.data(),
                            .seen = seen.data(),
                            .path = path.data(),
                            .token = token.data(),
                            .bias = bias.data(),
                            .n_rows = rows,
                            .vocab = vocab});
    EXPECT_EQ(first_difference(logits, expected), -1) << trial;
  }
}

TEST_P(Draw, top_k_keeps_ties_and_top_p_ranks_them_by_id) {
  // Four equal tokens at the edge of top_k 2: all of them can be drawn, and token 1 cannot.
  const std::vector<float> logits = {2.0f, -3.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  std::map<int32_t, int> seen;
  for (int i = 0; i < 400; ++i) ++seen[draw(logits, {sampled(1, 2, 1, 9, i)})[0]];
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(seen.count(1), 0u);
  // Four equal tokens, mass a quarter each: 0.4 keeps the first two.
  seen.clear();
  for (int i = 0; i < 200; ++i) ++seen[draw({1, 1, 1, 1}, {sampled(1, 0, 0.4f, 9, i)})[0]];
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen.count(0) + seen.count(1), 2u);
}

TEST_P(Draw, follows_the_distribution) {
  struct Case {
    float temperature;
    int32_t top_k;
    float top_p;
  };
  const std::vector<float> logits = {1.0f, 0.2f, -0.5f, 2.0f, 0.0f, 0.2f, -3.0f, 1.5f, 0.9f, -1.0f};
  const int draws = 100000;
  for (const Case c :
       {Case{1, 0, 1}, Case{0.5f, 0, 1}, Case{2, 4, 1}, Case{1, 0, 0.8f}, Case{1.3f, 6, 0.7f}}) {
    std::vector<DrawRow> rows;
    for (int i = 0; i < draws; ++i) {
      rows.push_back(
          sampled(c.temperature, c.top_k, c.top_p, static_cast<uint64_t>(i / 100), i % 100));
    }
    std::vector<float> all;
    for (int i = 0; i < draws; ++i) all.insert(all.end(), logits.begin(), logits.end());
    std::vector<int> count(logits.size());
    for (const int32_t t : draw(all, rows, 2)) ++count.at(static_cast<size_t>(t));
    double edge = 0;
    const std::vector<bool> keep = kept_oracle(logits, rows[0], &edge);
    double total = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (keep[i]) total += std::exp(double{logits[i]} / c.temperature);
    }
    double chi2 = 0;
    int cells = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!keep[i]) {
        EXPECT_EQ(count[i], 0);
        continue;
      }
      const double want = draws * std::exp(double{logits[i]} / c.temperature) / total;
      chi2 += (count[i] - want) * (count[i] - want) / want;
      ++cells;
    }
    // Above the 0.9999 quantile of chi-square with up to 9 degrees of freedom (33.7). The seeds are
    // fixed, so the result never changes.
    EXPECT_GT(cells, 2);
    EXPECT_LT(chi2, 33.7) << "temperature " << c.temperature << " k " << c.top_k << " p "
                          << c.top_p;
  }
}

// Against the noise op, and the kept tokens of the argmax test's oracle.
TEST_P(Draw, scores_are_what_the_draw_takes_the_largest_of) {
  constexpr int32_t kVocab = 45, kOffset = 4;
  std::vector<float> logits = random_floats(6 * kVocab, 12, 2.0f);
  logits[4 * kVocab + 7] = std::numeric_limits<float>::quiet_NaN();
  std::vector<DrawRow> sequences = {sampled(0.8f, 0, 1, 21, 0), sampled(1.2f, 9, 0.9f, 22, 0),
                                    DrawRow()};
  const std::vector<int32_t> sequence = {1, 0, 2, 1, 0, 3}, position = {100, 200, 300};
  std::vector<int32_t> id(kVocab);
  for (int32_t t = 0; t < kVocab; ++t) id[t] = (t * 7 + 3) % 61;
  WorkerPool pool(2);
  CpuStream stream(pool);
  std::vector<float> score(6 * kVocab, 7);
  std::vector<int32_t> token(6, -7);
  ops().draw(stream, {.logits = logits.data(),
                      .row = sequences.data(),
                      .token = token.data(),
                      .n_rows = 6,
                      .vocab = kVocab,
                      .sequence = sequence.data(),
                      .n_sequences = 3,
                      .position = position.data(),
                      .position_offset = kOffset,
                      .id = id.data(),
                      .score = score.data()});
  const float lowest = -std::numeric_limits<float>::infinity();
  for (size_t r = 0; r < 6; ++r) {
    const std::vector<float> own(score.begin() + static_cast<int64_t>(r * kVocab),
                                 score.begin() + static_cast<int64_t>((r + 1) * kVocab));
    const auto best = static_cast<int32_t>(std::max_element(own.begin(), own.end()) - own.begin());
    const float* l = &logits[r * kVocab];
    if (r >= 4) {
      EXPECT_EQ(token[r], -1) << "a damaged row, and one without a sequence";
      EXPECT_EQ(own, std::vector<float>(kVocab, lowest));
      continue;
    }
    EXPECT_EQ(token[r], best);
    if (sequence[r] == 2) {
      EXPECT_EQ(own, std::vector<float>(l, l + kVocab)) << "greedy";
      continue;
    }
    const DrawRow& row = sequences[static_cast<size_t>(sequence[r])];
    const std::vector<float> all = noise(row.seed, position[sequence[r]] + kOffset, 61);
    std::vector<float> ranked(l, l + kVocab);
    std::sort(ranked.begin(), ranked.end(), std::greater<>());
    int32_t n_kept = 0;
    for (int32_t t = 0; t < kVocab; ++t) {
      if (own[t] == lowest) continue;
      ++n_kept;
      EXPECT_EQ(own[t], l[t] / row.temperature + all[id[t]]) << t;
      EXPECT_GE(l[t], ranked[row.top_k > 0 ? row.top_k - 1 : kVocab - 1]);
    }
    EXPECT_LE(n_kept, row.top_k > 0 ? row.top_k : kVocab);
    EXPECT_GE(n_kept, row.top_k > 0 ? 1 : kVocab);
  }
}

TEST_P(Draw, large_vocabulary_has_the_scalar_tokens) {
  const std::vector<float> logits = random_floats(6 * 32003, 8, 4.0f);
  std::vector<DrawRow> rows = {sampled(1, 0, 1, 1, 1),
                               sampled(0.8f, 50, 0.95f, 2, 2),
                               sampled(1.5f, 0, 0.9f, 3, 3),
                               sampled(1, 1000, 1, 4, 4),
                               DrawRow(),
                               sampled(1, 32002, 0.999f, 5, 5)};
  rows[1].typical_p = 0.5f, rows[2].typical_p = 0.9f;
  WorkerPool pool(1);
  CpuStream stream(pool);
  std::vector<int32_t> scalar(6);
  cpu_ops(Isa::kScalar).draw(stream, {logits.data(), rows.data(), scalar.data(), 6, 32003});
  for (int threads = 1; threads <= 4; ++threads) EXPECT_EQ(draw(logits, rows, threads), scalar);
}

TEST_P(Draw, strides_and_a_shorter_vocabulary_leave_the_rest_alone) {
  constexpr int32_t kWidth = 50, kVocab = 37, kStride = 3;
  std::vector<float> logits = random_floats(4 * kWidth, 11, 2.0f), dense;
  for (int32_t r = 0; r < 4; ++r) {
    std::fill_n(logits.begin() + r * kWidth + kVocab, kWidth - kVocab, 1e9f);
    dense.insert(dense.end(), logits.begin() + r * kWidth, logits.begin() + r * kWidth + kVocab);
  }
  const std::vector<DrawRow> rows = {DrawRow(), sampled(1, 0, 1, 3, 4),
                                     sampled(0.7f, 9, 0.8f, 5, 6), sampled(1, 5, 1, 7, 8)};
  const std::vector<int32_t> expected = draw(dense, rows);
  WorkerPool pool(2);
  CpuStream stream(pool);
  std::vector<int32_t> token(4 * kStride, -7);
  ops().draw(stream, {.logits = logits.data(),
                      .row = rows.data(),
                      .token = token.data(),
                      .n_rows = 4,
                      .vocab = kVocab,
                      .logits_stride = kWidth,
                      .token_stride = kStride});
  for (size_t i = 0; i < token.size(); ++i) {
    EXPECT_EQ(token[i], i % kStride == 0 ? expected[i / kStride] : -7);
  }
}

TEST_P(Draw, the_most_likely_come_in_order_and_their_probabilities_are_float64s) {
  constexpr int32_t kWidth = 600, kVocab = 555, kTop = 7, kStride = 9;
  std::vector<float> logits = random_floats(3 * kWidth, 12, 3.0f);
  logits[5] = logits[90] = logits[17] = 20;  // equal: the lower id first
  logits[kWidth + 3] = kNan;                 // counts as the lowest
  logits[2 * kWidth + kVocab] = 1e9f;        // beyond the vocabulary
  WorkerPool pool(2);
  CpuStream stream(pool);
  std::vector<int32_t> token(3 * kStride, -7);
  ops().top_k(stream, {.logits = logits.data(),
                       .token = token.data(),
                       .n_rows = 3,
                       .vocab = kVocab,
                       .k = kTop,
                       .logits_stride = kWidth,
                       .token_stride = kStride});
  EXPECT_EQ(token[0], 5);
  EXPECT_EQ(token[1], 17);
  EXPECT_EQ(token[2], 90);
  for (int32_t r = 0; r < 3; ++r) {
    const float* row = &logits[static_cast<size_t>(r * kWidth)];
    std::vector<int32_t> ids(kVocab);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      const auto value = [&](int32_t id) { return std::isnan(row[id]) ? -1e30f : row[id]; };
      return value(a) > value(b);
    });
    for (int32_t i = 0; i < kTop; ++i) EXPECT_EQ(token[r * kStride + i], ids[i]) << r << " " << i;
    EXPECT_EQ(token[r * kStride + kTop], -7);
  }
  token[2 * kStride + 1] = -1;
  std::vector<float> out(3 * kStride, 7);
  ops().log_prob(stream, {.logits = logits.data(),
                          .token = token.data(),
                          .out = out.data(),
                          .n_rows = 3,
                          .vocab = kVocab,
                          .k = kTop,
                          .logits_stride = kWidth,
                          .token_stride = kStride,
                          .out_stride = kStride});
  for (const int32_t r : {0, 2}) {
    const float* row = &logits[static_cast<size_t>(r * kWidth)];
    double sum = 0;
    for (int32_t id = 0; id < kVocab; ++id) sum += std::exp(double{row[id]});
    for (int32_t i = 0; i < kStride; ++i) {
      const bool written = i < kTop && token[r * kStride + i] >= 0;
      const double expected = written ? row[token[r * kStride + i]] - std::log(sum) : 7;
      EXPECT_NEAR(out[r * kStride + i], expected, 1e-5) << r << " " << i;
    }
  }
}

}  // namespace
}  // namespace specd::kernels
