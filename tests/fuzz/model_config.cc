// config.json and, of the same bytes, generation_config.json.
#include "core/model/model_config.h"

#include <cmath>

#include "core/base/json.h"
#include "core/model/generation_config.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const auto json = parse_json(fuzz::text_of(data, size), "config.json");
  fuzz::check_message(json.status(), "config.json");
  if (!json.ok()) return 0;
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
