// Whether all ranks mean the same: program, configuration and the files of the models. Compared before
// weights are read, because ranks of different files would write texts that no model has.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/device/collective.h"
#include "core/ranks/follower.h"

namespace specd {

struct RankFact {
  std::string what;  // "engine.queue_max: 256", or a file
  Sha256Digest digest;
};

// Of this process: the program, `values`, and for each model config.json, tokenizer.json, files that say
// how it is quantized, the headers of the safetensors files and the bytes of its norms. Reads no other weight.
Result<std::vector<RankFact>> rank_facts(std::span<const std::string> values,
                                         std::span<const SharedModel> models);

// Called by all ranks. The error names the first rank that differs from rank 0, and in what.
Status check_same(Collective& ranks, std::span<const RankFact> mine);

}  // namespace specd
