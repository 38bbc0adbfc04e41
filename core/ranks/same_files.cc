#include "core/ranks/same_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/base/json.h"
#include "core/base/to_size.h"
#include "core/model/checkpoint.h"
#include "core/model/lead.h"

namespace specd {
namespace {

// A fact as it travels. Longer names are cut.
struct SentFact {
  char what[256] = {};
  Sha256Digest digest{};

  std::string text() const { return what; }
};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<Sha256Digest> file_digest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 hash;
  std::array<char, size_t{64} << 10> piece;
  while (file) {
    file.read(piece.data(), piece.size());
    hash.update(bytes_of({piece.data(), to_size(file.gcount())}));
  }
  if (!file.eof()) {
    return Status(Code::kNotFound, path + " cannot be read: " + std::strerror(errno));
  }
  return hash.finish();
}

Sha256Digest header_digest(const Checkpoint& checkpoint) {
  Sha256 hash;
  for (const auto& [name, entry] : checkpoint.tensors()) {
    const TensorView& view = *entry.view;
    hash.update(bytes_of(name + " " + tensor_type_name(view.type) + " " + shape_text(view.shape) +
                         " " + std::to_string(entry.file) + ":" + std::to_string(view.file_offset) +
                         "\n"));
  }
  return hash.finish();
}

// Vectors are norms and biases: few bytes, and other ones in every checkpoint of a training.
Sha256Digest norm_digest(const Checkpoint& checkpoint) {
  Sha256 hash;
  for (const auto& [name, entry] : checkpoint.tensors()) {
    const TensorView& view = *entry.view;
    if (view.shape.size() == 1) hash.update({static_cast<const std::byte*>(view.data), view.bytes});
  }
  return hash.finish();
}

std::string hex_of(const Sha256Digest& digest) { return to_hex(digest).substr(0, 12); }

Status compare(std::span<const SentFact> lead, std::span<const SentFact> mine) {
  const size_t n = std::min(lead.size(), mine.size());
  for (size_t i = 0; i < n; ++i) {
    if (lead[i].text() != mine[i].text()) {
      return Status(Code::kFailedPrecondition, "it has " + mine[i].text() + " where rank 0 has " +
                                                   lead[i].text() + "; all ranks need the same");
    }
    if (lead[i].digest == mine[i].digest) continue;
    return Status(Code::kFailedPrecondition,
                  mine[i].text() + " is not that of rank 0: its SHA-256 begins with " +
                      hex_of(mine[i].digest) + ", there with " + hex_of(lead[i].digest) +
                      "; all ranks need the same");
  }
  if (lead.size() == mine.size()) return Status();
  return Status(Code::kFailedPrecondition, "it has " + std::to_string(mine.size()) +
                                               " files and settings to compare, rank 0 " +
                                               std::to_string(lead.size()));
}

}  // namespace

Result<std::vector<RankFact>> rank_facts(std::span<const std::string> values,
                                         std::span<const SharedModel> models) {
  std::vector<RankFact> facts;
  SPECD_TRY(const Sha256Digest program, file_digest("/proc/self/exe"));
  facts.push_back({"the program", program});
  for (const std::string& value : values) facts.push_back({value, sha256(value)});
  for (const SharedModel& model : models) {
    std::vector<std::string> names = {"config.json", "tokenizer.json"};
    for (const char* name : kQuantizationFiles) {
      if (path_exists(model.path + "/" + name)) names.emplace_back(name);
    }
    for (const std::string& name : names) {
      const std::string path = model.path + "/" + name;
      SPECD_TRY(const Sha256Digest digest, file_digest(path));
      facts.push_back({path, digest});
    }
    SPECD_TRY(const Checkpoint checkpoint, Checkpoint::open(model.path));
    facts.push_back({"the list of tensors in " + model.path, header_digest(checkpoint)});
    facts.push_back({"the values of the norms in " + model.path, norm_digest(checkpoint)});
  }
  return facts;
}

Status check_same(Collective& ranks, std::span<const RankFact> mine) {
  std::vector<SentFact> sent(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    const std::string& what = mine[i].what;
    // The end of a path says more than its beginning.
    const size_t from = what.size() - std::min(what.size(), sizeof(sent[i].what) - 1);
    std::copy(what.begin() + static_cast<std::ptrdiff_t>(from), what.end(), sent[i].what);
    sent[i].digest = mine[i].digest;
  }
  std::vector<SentFact> lead = sent;
  uint64_t n = lead.size();
  ranks.broadcast(&n, sizeof(n), 0);
  SPECD_OK_OR_RETURN(ranks.status());
  lead.resize(n);
  ranks.broadcast(lead.data(), n * sizeof(SentFact), 0);
  SPECD_OK_OR_RETURN(ranks.status());
  return agree(ranks, compare(lead, sent));
}

}  // namespace specd
