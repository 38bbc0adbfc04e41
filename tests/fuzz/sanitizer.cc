// Arbitrary columns of a proposal and a verdict: what passes is a tree and a path in it, with
// nothing out of range.
#include "core/plugin/instance/sanitizer.h"

#include <cstring>
#include <vector>

#include "specd/plugin_api/drafter.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  constexpr int32_t kCapacity = 24;
  size_t at = 0;
  const auto number = [&] {
    int32_t value = 0;
    const size_t n = std::min(sizeof(value), size - at);
    std::memcpy(&value, data + at, n);
    at += n;
    return value;
  };
  const auto column = [&](size_t n) {  // of its own size, so that a read past its end is seen
    std::vector<int32_t> values(n);
    for (int32_t& value : values) value = number();
    return values;
  };
  const uint32_t settings = static_cast<uint32_t>(number());
  TreeLimits limits;
  limits.vocab_size = 1 + static_cast<int32_t>(settings & 63);
  limits.node_budget = static_cast<int32_t>(settings >> 6 & 31) % (kCapacity + 1);
  limits.max_depth = 1 + static_cast<int32_t>(settings >> 11 & 7);
  limits.probes = (settings >> 14 & 1) != 0;
  const int32_t n_nodes = number();
  const auto token = column(kCapacity), parent = column(kCapacity), flags = column(kCapacity);
  std::vector<int32_t> depth(kCapacity);
  const TreeCheck tree =
      check_tree(n_nodes, token.data(), parent.data(), flags.data(), limits, depth.data());
  if (tree.n_nodes < 0 || tree.n_nodes > limits.node_budget) fuzz::fail("nodes over the budget");
  for (int32_t i = 0; i < tree.n_nodes; ++i) {
    const auto n = static_cast<size_t>(i);
    if (token[n] < 0 || token[n] >= limits.vocab_size) fuzz::fail("a token out of range");
    if (parent[n] < -1 || parent[n] >= i) fuzz::fail("a parent that is no earlier node");
    const int32_t above = parent[n] < 0 ? 0 : depth[static_cast<size_t>(parent[n])];
    if (depth[n] != above + 1 || depth[n] > limits.max_depth) fuzz::fail("a wrong depth");
  }
  constexpr int32_t kPath = 8;
  const int32_t n_accepted = number(), next = number();
  const auto path = column(kPath);
  const Defect verdict =
      check_verdict(n_accepted, path.data(), kPath, next, tree.n_nodes, parent.data(),
                    limits.probes ? flags.data() : nullptr, limits.vocab_size);
  if (verdict != Defect::kNone) return 0;
  if (n_accepted < 0 || n_accepted > kPath) fuzz::fail("a path longer than its column");
  if (next < 0 || next >= limits.vocab_size) fuzz::fail("a next token out of range");
  int32_t last = -1;
  for (int32_t i = 0; i < n_accepted; ++i) {
    const int32_t node = path[static_cast<size_t>(i)];
    if (node < 0 || node >= tree.n_nodes || parent[static_cast<size_t>(node)] != last)
      fuzz::fail("a path that is none");
    last = node;
  }
  return 0;
}
