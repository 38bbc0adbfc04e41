// Tokens that only the device knows: cutting a tree, walking down it, picking rows.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {

void check_tree(Rig& rig) {
  Gpu& gpu = rig.gpu;
  const int32_t n = 300, capacity = 40, room = 9, vocab = 3;
  std::vector<int32_t> n_nodes, token, parent, flags, wanted;
  for (int32_t s = 0; s < n; ++s) {
    // Some paths are longer than their room, because every token is wanted.
    const bool is_deep = s % 5 == 0;
    n_nodes.push_back(s % 17 == 0 ? INT32_MAX : below(capacity + 1));
    wanted.push_back(is_deep ? 1 : below(3));
    for (int32_t i = 0; i < capacity; ++i) {
      const bool is_none = below(50) == 0;
      token.push_back(is_none ? below(2) * (vocab + 1) - 1 : is_deep ? 1 : below(vocab));
      parent.push_back(i - 1 - below(std::min(i + 1, 3)));
      flags.push_back(is_deep ? 0 : below(4));
      wanted.push_back(is_deep ? 1 : below(vocab));
    }
  }
  std::vector<int32_t> path(static_cast<size_t>(n) * room, -7), n_path(n, -7), last(n, -7);
  std::vector<int32_t> from, to, picked(token.size(), -7);
  for (int32_t i = 0; i < n * capacity; i += 3)
    from.push_back(i), to.push_back(n * capacity - 1 - i);
  struct Columns {
    int32_t *n_nodes, *token, *parent, *flags, *wanted, *path, *n_path, *last, *from, *to, *picked;
  };
  const auto run = [&](const Ops& ops, Stream& stream, const Columns& c) {
    ops.clamp_nodes(
        stream,
        {.n_nodes = c.n_nodes, .token = c.token, .n = n, .capacity = capacity, .vocab = vocab});
    ops.walk_tree(stream, {.n_nodes = c.n_nodes,
                           .token = c.token,
                           .parent = c.parent,
                           .flags = c.flags,
                           .wanted = c.wanted,
                           .n_path = c.n_path,
                           .path = c.path,
                           .last = c.last,
                           .n = n,
                           .capacity = capacity,
                           .path_capacity = room,
                           .skip_flags = 1});
    ops.pick_tokens(stream, {.source = c.token,
                             .from = c.from,
                             .target = c.picked,
                             .to = c.to,
                             .n = static_cast<int32_t>(from.size()),
                             .vocab = 2,
                             .otherwise = -3});
  };
  const Columns on_gpu{gpu.in(n_nodes), gpu.in(token), gpu.in(parent), gpu.in(flags),
                       gpu.in(wanted),  gpu.in(path),  gpu.in(n_path), gpu.in(last),
                       gpu.in(from),    gpu.in(to),    gpu.in(picked)};
  run(gpu.ops(), gpu.stream(), on_gpu);
  run(rig.cpu, rig.cpu_stream,
      {n_nodes.data(), token.data(), parent.data(), flags.data(), wanted.data(), path.data(),
       n_path.data(), last.data(), from.data(), to.data(), picked.data()});
  const auto same = [&](const char* what, int32_t* got, const std::vector<int32_t>& expected) {
    const std::string problem = difference(gpu.out(got, expected.size()), expected);
    rig.report.check(std::string(what) + " is the CPU's", problem.empty(), problem);
  };
  same("clamp_nodes", on_gpu.n_nodes, n_nodes);
  same("walk_tree, length,", on_gpu.n_path, n_path);
  same("walk_tree, path,", on_gpu.path, path);
  same("walk_tree, last token,", on_gpu.last, last);
  same("pick_tokens", on_gpu.picked, picked);
  gpu.free_all();
}

}  // namespace specd::kernels
