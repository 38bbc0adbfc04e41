// config.json and, of the same bytes, generation_config.json and the description of a quantization.
#include "core/model/model_config.h"

#include <cmath>

#include "core/base/json.h"
#include "core/model/generation_config.h"
#include "tests/fuzz/fuzz.h"

namespace {

using specd::MatrixFormat;

// What the loader of a matrix relies on.
void check_format(const MatrixFormat& f) {
  using Scales = MatrixFormat::Scales;
  if (f.bits != 8 && (f.bits != 4 || f.layout < MatrixFormat::Layout::kPacked))
    specd::fuzz::fail("bits");
  const bool grouped = f.scales == Scales::kGroup || f.scales == Scales::kBlock;
  if (grouped ? f.group < 1 : f.group != 0) specd::fuzz::fail("group");
  if (f.scales == Scales::kBlock ? f.block_rows < 1 : f.block_rows != 0) specd::fuzz::fail("block");
  const bool may_add = f.layout == MatrixFormat::Layout::kGptq;
  const bool may_have = f.layout >= MatrixFormat::Layout::kPacked;
  if (f.zero_add < 0 || f.zero_add > (may_add ? 1 : 0) || (f.has_zeros && !may_have))
    specd::fuzz::fail("zero points");
  if (f.place.empty() || f.scale.empty()) specd::fuzz::fail("a place or a name is missing");
}

void read_quantization(const specd::Json& config) {
  // A folder that does not exist: nothing but `config` says anything.
  const auto read = specd::Quantization::read(config, "/nowhere");
  specd::fuzz::check_message(read.status(), "config.json");
  if (!read.ok()) return;
  const specd::Quantization& made = read.value();
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* matrix :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      const MatrixFormat* format = made.of(std::string(layer) + matrix);
      if (format != nullptr) check_format(*format);
    }
  }
  if (const MatrixFormat* format = made.of("lm_head"); format != nullptr) check_format(*format);
  if (made.name().empty() != made.is_empty()) specd::fuzz::fail("no name");
  if (made.kv().is_float8 == made.kv().place.empty()) specd::fuzz::fail("no place of the cache");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const auto json = parse_json(fuzz::text_of(data, size), "config.json");
  fuzz::check_message(json.status(), "config.json");
  if (!json.ok()) return 0;
  if (json.value().is_object()) read_quantization(json.value());
  read_quantization(json_object({{"num_hidden_layers", 2}, {"quantization_config", json.value()}}));
  const auto config = read_model_config(json.value(), "config.json");
  fuzz::check_message(config.status(), "config.json");
  const auto generation = read_generation_config(json.value(), "config.json");
  fuzz::check_message(generation.status(), "config.json");
  if (generation.ok()) {
    const GenerationConfig& g = generation.value();
    if (!(g.temperature >= 0 && g.top_p > 0 && g.top_p <= 1 && g.repetition_penalty > 0))
      fuzz::fail("sampling out of range");
  }
  if (!config.ok()) return 0;
  const ModelConfig& c = config.value();
  if (c.n_kv_heads < 1 || c.n_heads % c.n_kv_heads != 0 || c.head_dim % 16 != 0 ||
      c.hidden_size < 1 || c.vocab_size < 1 || c.max_positions < 1)
    fuzz::fail("sizes that no kernel can take");
  if (c.window.size() != static_cast<size_t>(c.n_layers)) fuzz::fail("windows");
  if (c.rope.inv_freq.size() != static_cast<size_t>(c.head_dim) / 2) fuzz::fail("frequencies");
  for (const float f : c.rope.inv_freq) {
    if (!std::isfinite(f) || f < 0) fuzz::fail("a frequency of " + std::to_string(f));
  }
  if (!std::isfinite(c.rope.scale)) fuzz::fail("scale");
  return 0;
}
