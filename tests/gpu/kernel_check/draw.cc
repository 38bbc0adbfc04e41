// The draw with its noise, penalties, top-k and log-probabilities.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {

namespace {

// Scores and laws of rows that name their sequences, with ids of their own for the columns.
void check_scores(Rig& rig, const std::vector<float>& logits, const std::vector<DrawRow>& row,
                  int32_t vocab) {
  Gpu& gpu = rig.gpu;
  const auto rows = static_cast<int32_t>(row.size());
  constexpr int32_t kOffset = 3;
  const int32_t stride = vocab + 2;
  std::vector<int32_t> sequence(row.size()), position(row.size()), id(static_cast<size_t>(vocab));
  for (size_t r = 0; r < row.size(); ++r) {
    sequence[r] = static_cast<int32_t>(row.size() - 1 - r);
    position[r] = below(100000);
  }
  sequence[3] = -1, sequence[4] = rows;
  std::iota(id.begin(), id.end(), 17);
  std::shuffle(id.begin(), id.end(), g_random);
  const size_t cells = row.size() * static_cast<size_t>(stride);
  std::vector<float> score(cells, 7), law(cells, 7), lse(row.size(), 7);
  std::vector<int32_t> token(row.size(), -7);
  const auto run = [&](const Ops& ops, Stream& stream, DrawArgs a) {
    a.n_rows = rows, a.vocab = vocab, a.n_sequences = rows, a.position_offset = kOffset;
    a.score_stride = a.law_stride = stride;
    ops.draw(stream, a);
  };
  float *gpu_score = gpu.in(score), *gpu_law = gpu.in(law), *gpu_lse = gpu.in(lse);
  int32_t* gpu_token = gpu.in(token);
  run(gpu.ops(), gpu.stream(),
      {.logits = gpu.in(logits),
       .row = gpu.in(row),
       .token = gpu_token,
       .sequence = gpu.in(sequence),
       .position = gpu.in(position),
       .id = gpu.in(id),
       .score = gpu_score,
       .law = gpu_law,
       .lse = gpu_lse});
  run(rig.cpu, rig.cpu_stream,
      {.logits = logits.data(),
       .row = row.data(),
       .token = token.data(),
       .sequence = sequence.data(),
       .position = position.data(),
       .id = id.data(),
       .score = score.data(),
       .law = law.data(),
       .lse = lse.data()});
  std::string problem = difference(gpu.out(gpu_token, token.size()), token);
  if (problem.empty()) problem = difference(gpu.out(gpu_score, cells), score);
  rig.report.check("scores are the CPU's, vocabulary " + std::to_string(vocab), problem.empty(),
                   problem);
  problem = difference(gpu.out(gpu_law, cells), law);
  if (problem.empty()) problem = difference(gpu.out(gpu_lse, lse.size()), lse);
  rig.report.check("laws are the CPU's, vocabulary " + std::to_string(vocab), problem.empty(),
                   problem);
  gpu.free_all();
}

// As the engine draws: laws in place of logits.
void check_law_in_place(Rig& rig, std::vector<float> logits, const std::vector<DrawRow>& row,
                        int32_t vocab) {
  Gpu& gpu = rig.gpu;
  const auto rows = static_cast<int32_t>(row.size());
  std::vector<float> lse(row.size(), 7);
  const auto run = [&](const Ops& ops, Stream& stream, float* in, const DrawRow* draws, float* to) {
    ops.draw(stream,
             {.logits = in, .row = draws, .n_rows = rows, .vocab = vocab, .law = in, .lse = to});
  };
  float *on_gpu = gpu.in(logits), *gpu_lse = gpu.in(lse);
  run(gpu.ops(), gpu.stream(), on_gpu, gpu.in(row), gpu_lse);
  run(rig.cpu, rig.cpu_stream, logits.data(), row.data(), lse.data());
  std::string problem = difference(gpu.out(on_gpu, logits.size()), logits);
  if (problem.empty()) problem = difference(gpu.out(gpu_lse, lse.size()), lse);
  rig.report.check("laws in place of logits, vocabulary " + std::to_string(vocab), problem.empty(),
                   problem);
  gpu.free_all();
}

}  // namespace

void check_draw(Rig& rig) {
  Gpu& gpu = rig.gpu;
  {
    const int32_t rows = 5, vocab = rig.small ? 5001 : 50001;
    std::vector<uint64_t> seed(rows);
    std::vector<int32_t> position(rows);
    for (int32_t r = 0; r < rows; ++r)
      seed[static_cast<size_t>(r)] = (uint64_t{g_random()} << 32) | g_random(),
      position[static_cast<size_t>(r)] = below(1 << 30);
    std::vector<float> expected(static_cast<size_t>(rows) * vocab);
    rig.cpu.draw_noise(rig.cpu_stream, {.seed = seed.data(),
                                        .position = position.data(),
                                        .out = expected.data(),
                                        .n_rows = rows,
                                        .vocab = vocab});
    float* out = gpu.poisoned(expected.size());
    gpu.ops().draw_noise(gpu.stream(), {.seed = gpu.in(seed),
                                        .position = gpu.in(position),
                                        .out = out,
                                        .n_rows = rows,
                                        .vocab = vocab});
    const std::string problem = difference(gpu.out(out, expected.size()), expected);
    rig.report.check("draw_noise has the CPU's bits", problem.empty(), problem);
    gpu.free_all();
  }
  for (const int32_t lanes : {1, 6, 1027}) {
    const int32_t rows = 9, sequences = 4, stride = lanes + 3;
    std::vector<DrawRow> row(sequences);
    for (DrawRow& each : row) each.seed = (uint64_t{g_random()} << 32) | g_random();
    std::vector<int32_t> sequence(rows), position(rows);
    for (int32_t r = 0; r < rows; ++r) {
      sequence[static_cast<size_t>(r)] = r < 2 ? r * (sequences + 1) - 1 : below(sequences);
      position[static_cast<size_t>(r)] = below(1 << 30);
    }
    std::vector<float> expected(static_cast<size_t>(rows * stride), 7);
    UniformArgs args = {.row = row.data(),
                        .sequence = sequence.data(),
                        .position = position.data(),
                        .out = expected.data(),
                        .purpose = 2,
                        .n_rows = rows,
                        .n_sequences = sequences,
                        .lanes = lanes,
                        .out_stride = stride};
    float* out = gpu.in(expected);
    rig.cpu.uniform(rig.cpu_stream, args);
    args.row = gpu.in(row);
    args.sequence = gpu.in(sequence);
    args.position = gpu.in(position);
    args.out = out;
    gpu.ops().uniform(gpu.stream(), args);
    const std::string problem = difference(gpu.out(out, expected.size()), expected);
    rig.report.check("uniform has the CPU's bits, lanes " + std::to_string(lanes), problem.empty(),
                     problem);
    gpu.free_all();
  }
  for (const int32_t vocab : {1, 7, 4096, rig.small ? 9001 : 128256}) {
    const int32_t rows = 64;
    std::vector<float> logits = floats(static_cast<size_t>(rows) * vocab, 4);
    std::vector<DrawRow> row(rows);
    for (int32_t r = 0; r < rows; ++r) {
      DrawRow& each = row[static_cast<size_t>(r)];
      each.greedy = r % 8 == 0;
      each.temperature = 0.3f + 0.1f * static_cast<float>(below(15));
      each.top_k = r % 3 == 0 ? 1 + below(vocab) : r % 3 == 1 ? 0 : 40;
      each.min_p = r % 7 == 3 ? 0.05f : 0.0f;
      each.top_p = r % 4 == 0 ? 1.0f : r % 4 == 1 ? 0.95f : r % 4 == 2 ? 0.3f : 1e-6f;
      each.typical_p = r % 6 == 2 ? 0.9f : r % 6 == 5 ? 0.2f : 1.0f;
      each.law = r % 9 != 4;
      each.position = below(100000);
      each.purpose = r % 2 == 0 ? 0 : 1;
      each.round = r % 4 < 2 ? 0 : static_cast<uint32_t>(below(100000));
      each.seed = g_random();
      float* own = &logits[static_cast<size_t>(r) * vocab];
      if (r % 5 == 1) {  // ties everywhere
        for (int32_t t = 0; t < vocab; ++t) own[t] = std::round(own[t]);
      }
      if (r == 10) own[below(vocab)] = kNan;
      if (r == 11) std::fill(own, own + vocab, -HUGE_VALF);
      if (r == 12) std::fill(own, own + vocab - 1, -HUGE_VALF);
      if (r == 13) own[below(vocab)] = HUGE_VALF;
      for (int32_t t = 0; r == 15 && t < vocab; ++t) own[t] = t % 2 == 0 ? -0.0f : 0.0f;
      if (r == 14) own[below(vocab)] = 3e38f, each.temperature = 0.1f, each.greedy = false;
    }
    std::vector<int32_t> expected(rows, -7);
    rig.cpu.draw(rig.cpu_stream, {.logits = logits.data(),
                                  .row = row.data(),
                                  .token = expected.data(),
                                  .n_rows = rows,
                                  .vocab = vocab});
    int32_t* token = gpu.in(std::vector<int32_t>(rows, -7));
    gpu.ops().draw(gpu.stream(), {.logits = gpu.in(logits),
                                  .row = gpu.in(row),
                                  .token = token,
                                  .n_rows = rows,
                                  .vocab = vocab});
    const std::string problem = difference(gpu.out(token, rows), expected);
    rig.report.check("draw gives the CPU's tokens, vocabulary " + std::to_string(vocab),
                     problem.empty(), problem);
    gpu.free_all();
    check_scores(rig, logits, row, vocab);
    check_law_in_place(rig, logits, row, vocab);
  }
}

void check_penalties(Rig& rig) {
  Gpu& gpu = rig.gpu;
  const int32_t rows = 12, vocab = 5000, n_tokens = 64;
  std::vector<float> logits = floats(static_cast<size_t>(rows) * vocab, 4);
  std::vector<int32_t> token(n_tokens), path;
  for (int32_t& t : token) t = below(vocab);
  token[7] = token[9];  // twice on a path
  std::vector<PenaltySeen> seen;
  std::vector<TokenBias> bias;
  std::vector<PenaltyRow> row(rows);
  for (int32_t r = 0; r < rows; ++r) {
    PenaltyRow& own = row[static_cast<size_t>(r)];
    own = {.repetition = 1.2f,
           .frequency = 0.3f,
           .presence = r % 2 == 0 ? 0.7f : -0.1f,
           .seen_begin = static_cast<int32_t>(seen.size()),
           .path_begin = static_cast<int32_t>(path.size()),
           .bias_begin = static_cast<int32_t>(bias.size())};
    for (int32_t t = r; t < vocab && r % 5 != 4; t += 11) seen.push_back({t, t % 3});
    for (int32_t i = 0; i < 20 * (r % 3); ++i) path.push_back(i);
    own.seen_end = static_cast<int32_t>(seen.size());
    for (int32_t t = r; t < vocab && r % 4 != 3; t += 13) {
      bias.push_back({t, t % 3 == 0 ? -HUGE_VALF : 0.5f});
    }
    own.path_end = static_cast<int32_t>(path.size());
    own.bias_end = static_cast<int32_t>(bias.size());
  }
  path.push_back(0);
  bias.push_back({1, 5.0f});
  float* on_gpu = gpu.in(logits);
  gpu.ops().penalize(gpu.stream(), {.logits = on_gpu,
                                    .row = gpu.in(row),
                                    .seen = gpu.in(seen),
                                    .path = gpu.in(path),
                                    .token = gpu.in(token),
                                    .bias = gpu.in(bias),
                                    .n_rows = rows,
                                    .vocab = vocab});
  rig.cpu.penalize(rig.cpu_stream, {.logits = logits.data(),
                                    .row = row.data(),
                                    .seen = seen.data(),
                                    .path = path.data(),
                                    .token = token.data(),
                                    .bias = bias.data(),
                                    .n_rows = rows,
                                    .vocab = vocab});
  const std::string problem = difference(gpu.out(on_gpu, logits.size()), logits);
  rig.report.check("penalize has the CPU's bits", problem.empty(), problem);
  gpu.free_all();
}

// Top-k, log-probabilities and the draw, with gaps between rows and a shorter vocabulary.
void check_logits(Rig& rig) {
  Gpu& gpu = rig.gpu;
  const int32_t rows = 9, vocab = rig.small ? 5003 : 32003, width = vocab + 97, k = 11, stride = 14;
  std::vector<float> logits = floats(static_cast<size_t>(rows) * width, 4);
  for (int32_t r = 0; r < rows; ++r) {  // the gaps would win
    std::fill_n(logits.begin() + static_cast<ptrdiff_t>(r) * width + vocab, width - vocab, 1e9f);
  }
  for (int32_t t = 0; t < vocab; ++t) logits[t] = std::round(logits[t]);  // ties
  logits[static_cast<size_t>(2 * width + 5)] = kNan;
  const size_t cells = static_cast<size_t>(rows) * stride;
  std::vector<int32_t> top(cells, -7), drawn(cells, -7), asked(cells);
  std::vector<float> logprob(cells, 7);
  for (int32_t& t : asked) t = below(vocab);
  asked[3] = -1, asked[4] = vocab;  // for these nothing is written
  std::vector<DrawRow> row(rows);
  for (int32_t r = 0; r < rows; ++r) {
    row[static_cast<size_t>(r)] = {
        .temperature = 0.8f, .position = r, .seed = g_random(), .greedy = r % 2 == 0};
  }
  const auto run = [&](const Ops& ops, Stream& stream, const float* l, const DrawRow* d,
                       const int32_t* tokens, int32_t* t, int32_t* n, float* p) {
    ops.top_k(stream, {.logits = l,
                       .token = t,
                       .n_rows = rows,
                       .vocab = vocab,
                       .k = k,
                       .logits_stride = width,
                       .token_stride = stride});
    ops.log_prob(stream, {.logits = l,
                          .token = tokens,
                          .out = p,
                          .n_rows = rows,
                          .vocab = vocab,
                          .k = k,
                          .logits_stride = width,
                          .token_stride = stride,
                          .out_stride = stride});
    ops.draw(stream, {.logits = l,
                      .row = d,
                      .token = n,
                      .n_rows = rows,
                      .vocab = vocab,
                      .logits_stride = width,
                      .token_stride = stride});
  };
  int32_t *gpu_top = gpu.in(top), *gpu_drawn = gpu.in(drawn);
  float* gpu_logprob = gpu.in(logprob);
  run(gpu.ops(), gpu.stream(), gpu.in(logits), gpu.in(row), gpu.in(asked), gpu_top, gpu_drawn,
      gpu_logprob);
  run(rig.cpu, rig.cpu_stream, logits.data(), row.data(), asked.data(), top.data(), drawn.data(),
      logprob.data());
  std::string problem = difference(gpu.out(gpu_top, cells), top);
  rig.report.check("top_k gives the CPU's tokens and writes nothing else", problem.empty(),
                   problem);
  problem = difference(gpu.out(gpu_drawn, cells), drawn);
  rig.report.check("draw keeps to its strides and its vocabulary", problem.empty(), problem);
  const std::vector<float> got = gpu.out(gpu_logprob, cells);
  double worst = 0;
  for (size_t i = 0; i < cells; ++i) {
    if (i / stride == 2) continue;  // the row with a NaN is undefined
    worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - logprob[i]));
  }
  rig.report.check("log_prob is the CPU's within 1e-5", worst < 1e-5, std::to_string(worst));
  gpu.free_all();
}

}  // namespace specd::kernels
