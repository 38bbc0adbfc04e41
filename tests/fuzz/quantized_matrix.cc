// A safetensors file as a quantized matrix "m" of 8 outputs by 16 inputs, in every layout, and as the scales of a cache.
#include "core/model/quantized_matrix.h"

#include <vector>

#include "core/base/to_size.h"
#include "core/model/kv_scales.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace specd;
using Format = MatrixFormat;

constexpr int32_t kOut = 8, kIn = 16;
const Format kFormats[] = {
    {.layout = Format::Layout::kInt8, .inputs = Format::Inputs::kStatic, .place = "config.json"},
    {.layout = Format::Layout::kFloat8,
     .scales = Format::Scales::kBlock,
     .group = 8,
     .block_rows = 4,
     .scale = "weight_scale_inv",
     .place = "config.json"},
    {.layout = Format::Layout::kPacked,
     .scales = Format::Scales::kGroup,
     .bits = 4,
     .group = 8,
     .has_zeros = true,
     .act_order = true,
     .place = "config.json"},
    {.layout = Format::Layout::kGptq,
     .scales = Format::Scales::kGroup,
     .bits = 4,
     .group = 8,
     .zero_add = 1,
     .act_order = true,
     .place = "config.json"},
    {.layout = Format::Layout::kInt8, .scales = Format::Scales::kTensor, .place = "config.json"},
    {.layout = Format::Layout::kFloat8, .scales = Format::Scales::kTensor, .place = "config.json"},
    {.layout = Format::Layout::kFloat8, .place = "config.json"},
    {.layout = Format::Layout::kPacked, .bits = 4, .place = "config.json"},
    {.layout = Format::Layout::kPacked,
     .scales = Format::Scales::kGroup,
     .group = 8,
     .has_zeros = true,
     .place = "config.json"},
    {.layout = Format::Layout::kGptq, .has_zeros = true, .zero_add = 1, .place = "config.json"},
    {.layout = Format::Layout::kGptq,
     .scales = Format::Scales::kGroup,
     .bits = 4,
     .group = 8,
     .has_zeros = true,
     .zero_add = 1,
     .place = "config.json"},
    {.layout = Format::Layout::kAwq,
     .scales = Format::Scales::kGroup,
     .bits = 4,
     .group = 8,
     .has_zeros = true,
     .place = "config.json"},
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryFile memory(fuzz::text_of(data, size));
  const auto checkpoint = Checkpoint::open_file(memory.path());
  fuzz::check_message(checkpoint.status(), memory.path());
  if (!checkpoint.ok()) return 0;
  const auto on_tensor = [&](const std::string& name) {
    if (!checkpoint.value().tensors().contains(name)) fuzz::fail("no such tensor: " + name);
  };
  fuzz::check_message(kv_scales(checkpoint.value(), "", on_tensor).status(), memory.path());
  for (const Format& format : kFormats) {
    const auto shape = QuantizedMatrix::shape_of(checkpoint.value(), "m", format);
    fuzz::check_message(shape.status(), memory.path());
    if (shape.ok()) {
      const auto [n_out, n_in] = shape.value();
      const auto any =
          QuantizedMatrix::open(checkpoint.value(), "m", n_out, n_in, format, on_tensor);
      fuzz::check_message(any.status(), memory.path());
      if (any.ok() && to_size(n_in) != any.value().kind().group_of.size())
        fuzz::fail("an input without a group");
    }
    const auto matrix =
        QuantizedMatrix::open(checkpoint.value(), "m", kOut, kIn, format, on_tensor);
    fuzz::check_message(matrix.status(), memory.path());
    if (!matrix.ok()) continue;
    const size_t groups = to_size(matrix.value().kind().n_groups);
    uint8_t codes[kOut * kIn] = {};
    std::vector<float> scale(kOut * groups);
    std::vector<uint8_t> zero(kOut * groups);
    const Status read = matrix.value().read(0, kOut, codes, scale.data(), zero.data());
    fuzz::check_message(read, memory.path());
    if (!read.ok()) continue;
    for (const uint8_t code : codes) {
      if (code >> format.bits != 0) fuzz::fail("a code beyond its bits");
    }
    for (const float each : scale) {
      if (!(each < 0 || each > 0)) fuzz::fail("a scale that is 0 or no number");
    }
    for (const int32_t group : matrix.value().kind().group_of) {
      if (group < 0 || to_size(group) >= groups) fuzz::fail("a group that does not exist");
    }
  }
  return 0;
}
