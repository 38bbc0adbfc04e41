// Types shared by every op. Kernels take raw pointers and plain structs and know nothing of ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specd::kernels {

enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr size_t dtype_bytes(DType type) { return type == DType::kF32 ? 4 : 2; }

// Tokens of one KV page, and the attention block: positions are visited in blocks aligned to it.
inline constexpr int32_t kPageTokens = 16;

// Where ops run, in order. Each backend derives its own; an op gets only streams of its backend.
class Stream {
 public:
  virtual ~Stream() = default;
};

}  // namespace specd::kernels
