#include "core/model/lead.h"

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

RankLinks links_of_model(const RankLinks& links, int32_t model) {
  if (model == 0) return links;
  return {.all = links.stage,
          .stage = links.stage,
          .split = {.rank = links.split.rank, .n_ranks = links.split.n_ranks}};
}

RankLinks Lead::links_of(int32_t model) const { return links_of_model(links_, model); }

void Lead::load(int32_t model) {
  words_ = {static_cast<int32_t>(RankCommand::kLoad), model};
  ranks_.command(words_);
}

void Lead::make_pages(int32_t model, int32_t n_pages) {
  words_ = {static_cast<int32_t>(RankCommand::kPages), model, n_pages};
  ranks_.command(words_);
}

void Lead::tap(uint32_t point) {
  words_ = {static_cast<int32_t>(RankCommand::kTap), 0, static_cast<int32_t>(point)};
  ranks_.command(words_);
}

void Lead::forward(int32_t model, const ForwardRows& rows) {
  words_ = {static_cast<int32_t>(RankCommand::kForward), model, rows.n_rows()};
  for (const std::vector<int32_t>* column : sent_columns(rows)) {
    words_.push_back(static_cast<int32_t>(column->size()));
    words_.insert(words_.end(), column->begin(), column->end());
  }
  ranks_.command(words_);
}

void Lead::head(int32_t model, int32_t n_rows) {
  words_ = {static_cast<int32_t>(RankCommand::kHead), model, n_rows};
  ranks_.command(words_);
}

void Lead::move(int32_t model, const KvMoves& moves) {
  words_ = {static_cast<int32_t>(RankCommand::kMove), model,
            static_cast<int32_t>(moves.from.size())};
  words_.insert(words_.end(), moves.from.begin(), moves.from.end());
  words_.insert(words_.end(), moves.to.begin(), moves.to.end());
  ranks_.command(words_);
}

void Lead::stop() {
  words_ = {static_cast<int32_t>(RankCommand::kStop), 0};
  ranks_.command(words_);
}

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
