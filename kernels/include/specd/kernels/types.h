// Types shared by all ops. Kernels take raw pointers and plain structs and use no other
// room's types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specd::kernels {

enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr size_t dtype_bytes(DType type) { return type == DType::kF32 ? 4 : 2; }

// Tokens per KV page, and size of an attention block: positions are visited in blocks aligned
// to it.
inline constexpr int32_t kPageTokens = 16;

// Runs ops in order. Each backend derives its own; an op gets only streams of its backend.
class Stream {
 public:
  virtual ~Stream() = default;
};

}  // namespace specd::kernels
