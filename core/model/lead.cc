#include "core/model/lead.h"

#include <new>
#include <utility>

namespace specd {

RankLinks links_of_model(const RankLinks& links, int32_t model) {
  if (model == 0) return links;
  return {.all = links.stage,
          .stage = links.stage,
          .tensors_all = links.tensors_stage,
          .tensors_stage = links.tensors_stage,
          .split = {.rank = links.split.rank, .n_ranks = links.split.n_ranks}};
}

RankLinks Lead::links_of(int32_t model) const { return links_of_model(links_, model); }

void Lead::load(int32_t model) {
  words_ = {static_cast<int32_t>(RankCommand::kLoad), model};
  send();
}

void Lead::make_pages(int32_t model, int32_t n_pages) {
  words_ = {static_cast<int32_t>(RankCommand::kPages), model, n_pages};
  send();
}

void Lead::tap(uint32_t point) {
  words_ = {static_cast<int32_t>(RankCommand::kTap), 0, static_cast<int32_t>(point)};
  send();
}

void Lead::forward(int32_t model, const ForwardRows& rows) {
  words_ = {static_cast<int32_t>(RankCommand::kForward), model, rows.n_rows()};
  for (const std::vector<int32_t>* column : sent_columns(rows)) {
    words_.push_back(static_cast<int32_t>(column->size()));
    words_.insert(words_.end(), column->begin(), column->end());
  }
  send();
}

void Lead::head(int32_t model, int32_t n_rows) {
  words_ = {static_cast<int32_t>(RankCommand::kHead), model, n_rows};
  send();
}

void Lead::move(int32_t model, const KvMoves& moves) {
  words_ = {static_cast<int32_t>(RankCommand::kMove), model,
            static_cast<int32_t>(moves.from.size())};
  words_.insert(words_.end(), moves.from.begin(), moves.from.end());
  words_.insert(words_.end(), moves.to.begin(), moves.to.end());
  send();
}

void Lead::stop() {
  words_ = {static_cast<int32_t>(RankCommand::kStop), 0};
  send();
}

void Lead::hold() { holds_ = true; }

bool Lead::release(bool is_launched) {
  holds_ = false;
  bool can_repeat = true;
  const std::vector<std::vector<int32_t>> held = std::exchange(held_, {});
  try {
    for (const std::vector<int32_t>& words : held) {
      // Of a drafter, which runs only when its work is captured; draft models say again what they compute.
      if (words.front() == static_cast<int32_t>(RankCommand::kHead)) can_repeat = false;
      if (is_launched) ranks_.command(words);
    }
  } catch (const std::bad_alloc&) {
    ranks_.give_up(Status(Code::kExhausted, kOutOfMemory));  // they have heard of some
    throw;
  }
  return can_repeat;
}

void Lead::send() {
  if (holds_) return held_.push_back(words_);
  ranks_.command(words_);
}

}  // namespace specd
