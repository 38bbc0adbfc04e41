#include "core/device/agree.h"

#include <string>

#include "core/base/to_size.h"
#include "core/base/utf8.h"

namespace specd {
namespace {

// A status as it travels.
struct SentStatus {
  int32_t code = 0;
  char field[124] = {}, message[896] = {};
};

}  // namespace

Status agree(Collective& ranks, const Status& mine) {
  std::vector<SentStatus> all(to_size(ranks.n_ranks()));
  SentStatus& sent = all[to_size(ranks.rank())];
  sent.code = static_cast<int32_t>(mine.code());
  copy_text(mine.field(), sent.field);
  copy_text(mine.message(), sent.message);
  ranks.all_gather(all.data(), sizeof(SentStatus));
  SPECD_OK_OR_RETURN(ranks.status());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto code = static_cast<Code>(all[rank].code);
    if (code == Code::kOk) continue;
    if (rank == to_size(ranks.rank())) return mine.with_context("rank " + std::to_string(rank));
    return Status(code, all[rank].field, all[rank].message)
        .with_context("rank " + std::to_string(rank));
  }
  return Status();
}

std::vector<uint64_t> gathered(Collective* ranks, uint64_t mine) {
  if (ranks == nullptr) return {mine};
  std::vector<uint64_t> all(to_size(ranks->n_ranks()));
  all[to_size(ranks->rank())] = mine;
  ranks->all_gather(all.data(), sizeof(mine));
  return all;
}

}  // namespace specd
