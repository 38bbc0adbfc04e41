#include "core/model/split.h"

#include <algorithm>
#include <string>

namespace specd {
namespace {

Range part(int32_t n, Split split) { return {n / split.n_ranks * split.rank, n / split.n_ranks}; }

// Of `n` that is no multiple the last parts are shorter, or empty.
Range uneven_part(int32_t n, Split split) {
  const int32_t width = (n + split.n_ranks - 1) / split.n_ranks;
  const int32_t begin = std::min(width * split.rank, n);
  return {begin, std::min(width, n - begin)};
}

Status cannot(int32_t n_ranks, const std::string& why) {
  return Status(Code::kInvalidArgument,
                std::to_string(n_ranks) + " ranks cannot share this model: " + why);
}

}  // namespace

Status check_split(const ModelConfig& c, int32_t n_ranks, int32_t grain) {
  if (n_ranks == 1) return Status();
  const auto n = [](int64_t value) { return std::to_string(value); };
  if (n_ranks < 1 || kRowParallelSegments % n_ranks != 0)
    return cannot(n_ranks, "expected 1, 2, 4 or 8");
  if (c.n_heads % n_ranks != 0)
    return cannot(n_ranks, "its num_attention_heads, " + n(c.n_heads) + ", is no multiple of it");
  if (c.n_kv_heads % n_ranks != 0 && n_ranks % c.n_kv_heads != 0) {
    return cannot(n_ranks, "its num_key_value_heads, " + n(c.n_kv_heads) +
                               ", neither divides it nor is a multiple of it");
  }
  const int64_t width = int64_t{n_ranks} * grain;
  if (c.intermediate_size % width != 0) {
    return cannot(n_ranks, "its intermediate_size, " + n(c.intermediate_size) +
                               ", is no multiple of " + n(width) +
                               (grain > 1 ? " (" + n(grain) + " for each rank)" : ""));
  }
  return Status();
}

Status check_stages(const ModelConfig& c, int32_t n_stages) {
  if (n_stages >= 1 && n_stages <= c.n_layers) return Status();
  return Status(Code::kInvalidArgument, "expected 1 to the model's num_hidden_layers, " +
                                            std::to_string(c.n_layers) + ", found " +
                                            std::to_string(n_stages));
}

Range layers_of(const ModelConfig& c, Split split) {
  const auto begin = [&](int64_t stage) {
    return static_cast<int32_t>(c.n_layers * stage / split.n_stages);
  };
  return {begin(split.stage), begin(split.stage + 1) - begin(split.stage)};
}

int32_t stage_of_tap(const ModelConfig& c, int32_t n_stages, uint32_t point) {
  for (int32_t stage = 0; stage < n_stages; ++stage) {
    const Range layers = layers_of(c, {.stage = stage, .n_stages = n_stages});
    if (point < static_cast<uint32_t>(layers.begin + layers.n)) return stage;
  }
  return n_stages - 1;  // behind the last layer
}

Range heads_of(const ModelConfig& c, Split split) { return part(c.n_heads, split); }

Range kv_heads_of(const ModelConfig& c, Split split) {
  if (c.n_kv_heads >= split.n_ranks) return part(c.n_kv_heads, split);
  return {split.rank * c.n_kv_heads / split.n_ranks, 1};
}

Range columns_of(const ModelConfig& c, Split split) { return part(c.intermediate_size, split); }

int32_t vocab_part(const ModelConfig& c, int32_t n_ranks) {
  return uneven_part(c.vocab_size, {.n_ranks = n_ranks}).n;
}

Range vocab_of(const ModelConfig& c, Split split) { return uneven_part(c.vocab_size, split); }

int32_t embedding_part(const ModelConfig& c, int32_t n_ranks) {
  return uneven_part(c.hidden_size, {.n_ranks = n_ranks}).n;
}

Range embedding_of(const ModelConfig& c, Split split) { return uneven_part(c.hidden_size, split); }

ModelConfig part_of(const ModelConfig& config, Split split) {
  ModelConfig part = config;
  const Range layers = layers_of(config, split);
  part.n_layers = layers.n;
  part.window.assign(config.window.begin() + layers.begin,
                     config.window.begin() + layers.begin + layers.n);
  part.n_heads = heads_of(config, split).n;
  part.n_kv_heads = kv_heads_of(config, split).n;
  part.intermediate_size = columns_of(config, split).n;
  return part;
}

}  // namespace specd
