// One process of several under mpirun, or one alone: computes forwards of a model with the others, and rank 0
// prints a hash of all logits and taps.
//
//   mpi_forwards MODEL N_RANKS N_STAGES
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/sha256.h"
#include "core/device/message_ranks.h"
#include "core/model/split.h"
#include "tests/core/ranks/forwards.h"

int main(int argc, char** argv) {
  using namespace specd;
  if (argc != 4) {
    std::fprintf(stderr, "usage: mpi_forwards MODEL N_RANKS N_STAGES\n");
    return 2;
  }
  const Setting setting{.path = argv[1], .isa = ""};
  const int32_t n_ranks = std::atoi(argv[2]), n_stages = std::atoi(argv[3]);
  std::unique_ptr<Messages> messages;
  std::unique_ptr<Collective> all, stage;
  RankLinks links;
  if (n_ranks * n_stages > 1) {
    auto opened = open_mpi();
    if (!opened.ok() || opened.value()->n_ranks() != n_ranks * n_stages) {
      std::fprintf(stderr, "%s\n", opened.ok() ? "another world" : opened.status().text().c_str());
      return 1;
    }
    messages = std::move(opened).value();
    all = make_message_rank(*messages, {.timeout = std::chrono::minutes(5)});
    stage = all->group(all->rank() / n_ranks * n_ranks, n_ranks);
    links = {
        .all = all.get(), .stage = stage.get(), .split = split_of(all->rank(), n_ranks, n_stages)};
  }
  const Found found = forwards(setting, links);
  if (all != nullptr && !all->status().ok()) {
    std::fprintf(stderr, "%s\n", all->status().text().c_str());
    return 1;
  }
  if (links.split.world_rank() != 0) return 0;
  Sha256 hash;
  for (const auto* rows : {&found.logits, &found.taps}) {
    for (const std::vector<float>& row : *rows) hash.update(std::as_bytes(std::span(row)));
  }
  std::printf("%zu rows of logits, %zu taps, %s\n", found.logits.size(), found.taps.size(),
              to_hex(hash.finish()).c_str());
  return 0;
}
