#include "core/draft/forward.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/draft/columns.h"

namespace specd {
namespace {

// Room for columns, in forwards of the largest size; most are smaller.
constexpr uint64_t kBlocks = 4;

// Limits of one forward: the pages of one sequence, and the rows of all tails.
int64_t table_max(const DraftModel& model) {
  return pages_for(int64_t{model.kv.positions_max} + kDraftTailMax) +
         model.kv.store->parts_per_page();
}
int64_t tail_max(const DraftModel& model) {
  return std::max<int64_t>(2 * kDraftTailMax, int64_t{16} * model.rows_max);
}

// The outputs from `place` on that are `step` apart.
template <typename T>
Strided<T> run_of(const Strided<T>& all, int64_t place, int64_t step) {
  return all.data == nullptr ? all : Strided<T>{all.element(place), step * all.stride};
}

}  // namespace

Status DraftForward::make_room(const DraftModel& model) {
  const int64_t rows = model.rows_max, outputs = model.outputs_max;
  const auto n = static_cast<size_t>(outputs);
  const uint64_t bytes = ForwardRows::staging_bytes(
                             rows, std::min(rows, outputs) * table_max(model), tail_max(model)) +
                         Staging::bytes_of<kernels::DrawRow>(n) +
                         2 * Staging::bytes_of<int32_t>(to_size(model.rows_max)) +
                         Staging::bytes_of<float>(n) +
                         4 * Staging::bytes_of<int32_t>(n * kDraftTopKMax);
  if (bytes <= block_bytes_) return Status();
  SPECD_TRY(staging_, Staging::create(device_, kBlocks * bytes, "columns of draft models"));
  block_bytes_ = bytes;
  return Status();
}

// ---- the stream ------------------------------------------------------------------------------

void DraftForward::passed() {
  for (const Unread& each : unread_) {
    const std::shared_ptr<DraftUse> use = each.use.lock();
    if (use == nullptr) continue;
    const auto session = use->sessions.find(each.seq_id);
    if (session == use->sessions.end() || each.row >= session->second.n_rows()) continue;
    session->second.token[to_size(each.row)] = *each.token;
  }
  unread_.clear();
  staging_.clear();
}

void DraftForward::forget(const DraftUse& use, uint64_t seq_id) {
  std::erase_if(unread_, [&](const Unread& each) {
    return each.seq_id == seq_id && each.use.lock().get() == &use;
  });
}

Status DraftForward::take_failure() { return std::exchange(failed_, Status()); }

Status DraftForward::wait() {
  SPECD_OK_OR_RETURN(device_.synchronize());
  passed();
  return Status();
}

void DraftForward::move(const DraftModel& model, const KvMoves& moves) {
  // make_room() has room for this many, so that moves wait at most.
  const size_t n_moves = moves.from.size(), at_once = to_size(model.rows_max);
  for (size_t done = 0; done < n_moves && failed_.ok(); done += at_once) {
    const KvMoves part = moves.part(done, std::min(at_once, n_moves - done));
    if (!make_room_for(2 * Staging::bytes_of<int32_t>(part.from.size()))) return;
    if (model.lead != nullptr) model.lead->move(model.number, part);
    model.kv.store->move(device_, staging_, part);
  }
}

// ---- rows ------------------------------------------------------------------------------------

void DraftForward::compute(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                           const std::vector<DraftRow>& rows, Strided<const int32_t> tokens,
                           const DraftOutputs& outputs) {
  const Call call{use, batch, tokens, outputs};
  const DraftModel& model = *use->model;
  was_in_one_piece_ = true;
  rows_.clear();
  gathered_.clear();
  const DraftSession* session = nullptr;
  int64_t tabled = -1;  // the sequence whose table was added last
  int32_t table = 0, n_outputs = 0;
  for (const DraftRow& each : rows) {
    if (each.row < 0) {
      gathered_.push_back(each);
      continue;
    }
    if (tabled != each.sequence) session = &use->sessions.at(batch.seq_id[each.sequence]);
    const size_t pages = tabled == each.sequence ? 0 : session->table.pages.size();
    const int64_t tail = session->in_place(each.row) ? 0 : session->depth[to_size(each.row)] + 1;
    if (rows_.n_rows() == model.rows_max || n_outputs == model.outputs_max ||
        static_cast<int64_t>(rows_.tail.size()) + tail > tail_max(model) ||
        static_cast<int64_t>(rows_.pages.size() + pages) >
            std::min(model.rows_max, model.outputs_max) * table_max(model)) {
      flush(call);
      tabled = -1;
      n_outputs = 0;
    }
    if (tabled != each.sequence) {
      tabled = each.sequence;
      table = static_cast<int32_t>(rows_.pages.size());
      rows_.pages.insert(rows_.pages.end(), session->table.pages.begin(),
                         session->table.pages.end());
    }
    add_session_row(*session, each.row, table, rows_);
    if (each.output >= 0) {
      rows_.logits_rows.push_back(rows_.n_rows() - 1);
      ++n_outputs;
    }
    gathered_.push_back(each);
  }
  flush(call);
  rows_.clear();
  gathered_.clear();
}

// Makes room for columns, by waiting if the mode allows it. False: failed_ is set.
bool DraftForward::make_room_for(uint64_t bytes) {
  if (bytes <= staging_.room()) return true;
  SPECD_CHECK(mode_ != Mode::kRepeat, "a captured forward had room for its columns");
  was_in_one_piece_ = false;
  if (mode_ != Mode::kCapture) failed_ = wait();
  if (failed_.ok() && bytes > staging_.room()) {
    failed_ =
        Status(Code::kExhausted, mode_ == Mode::kCapture ? std::string("too many rows for a graph")
                                                         : "columns need " + std::to_string(bytes) +
                                                               " bytes, there is room for " +
                                                               std::to_string(staging_.room()));
  }
  return failed_.ok();
}

// Submits one forward over the rows gathered so far, and its outputs.
void DraftForward::flush(const Call& call) {
  if (gathered_.empty() || !failed_.ok()) return;
  DraftModel& model = *call.use->model;
  const DraftOutputs& outputs = call.outputs;
  const uint64_t start = now_ns();
  std::vector<kernels::DrawRow> draws;
  std::vector<int32_t> from, to;  // tokens that only the device knows
  int32_t row = 0;
  for (const DraftRow& each : gathered_) {
    if (each.row < 0) continue;
    if (each.token_at >= 0) {
      from.push_back(static_cast<int32_t>(each.token_at * call.tokens.stride));
      to.push_back(row);
    }
    if (each.output >= 0) {
      kernels::DrawRow& draw = draws.emplace_back(call.batch.draws[each.sequence]);
      draw.position = rows_.position[to_size(row)] + 1;
      draw.purpose = outputs.purpose;
      // One more than the root's position, so that no uniform number is the same.
      if (outputs.purpose != 0) {
        draw.round = static_cast<uint32_t>(call.batch.text[each.sequence].size());
      }
      draw.law = outputs.law.data != nullptr;
    }
    ++row;
  }
  const size_t n_outputs = draws.size();
  // Host outputs of a device: the ops write columns, which are copied after the stream has
  // finished.
  const bool through_host = !device_.is_host() && !outputs.on_device;
  uint64_t bytes =
      ForwardRows::staging_bytes(rows_.n_rows(), static_cast<int64_t>(rows_.pages.size()),
                                 static_cast<int64_t>(rows_.tail.size())) +
      Staging::bytes_of<kernels::DrawRow>(n_outputs) + 2 * Staging::bytes_of<int32_t>(from.size());
  if (outputs.law.data != nullptr) bytes += Staging::bytes_of<float>(n_outputs);
  if (through_host) {
    bytes += 2 * (Staging::bytes_of<int32_t>(n_outputs) +
                  Staging::bytes_of<int32_t>(n_outputs * to_size(outputs.top_k)));
  }
  if (!make_room_for(bytes)) return;
  const ForwardColumns columns = rows_.stage(staging_);
  const auto draw_column = staging_.add(draws);
  const auto from_column = staging_.add(from), to_column = staging_.add(to);
  row = 0;
  for (const DraftRow& each : gathered_) {
    if (each.row < 0) continue;
    if (each.token_at >= 0) {
      unread_.push_back({.use = call.use,
                         .seq_id = call.batch.seq_id[each.sequence],
                         .row = each.row,
                         .token = columns.token.host + row});
    }
    ++row;
  }
  if (columns.n_rows > 0 && model.lead != nullptr) model.lead->forward(model.number, rows_);
  if (mode_ != Mode::kRepeat) {
    staging_.upload();
    if (!from.empty()) {
      device_.ops().pick_tokens(device_.stream(), {.source = call.tokens.data,
                                                   .from = from_column.device,
                                                   .target = columns.token.device,
                                                   .to = to_column.device,
                                                   .n = static_cast<int32_t>(from.size()),
                                                   .vocab = model.config.vocab_size,
                                                   .otherwise = 0});
      staging_.download(columns.token);
    }
    if (columns.n_rows > 0) {
      model.transformer->forward(columns, *model.kv.store);
      if (model.lead != nullptr) failed_ = model.lead->status();
      if (!failed_.ok()) return;
    }
    through_host ? copy_outputs(call, draw_column) : write_outputs(call, draw_column);
  }
  model.forward_ns += now_ns() - start;
  model.rows += static_cast<uint64_t>(rows_.n_rows());
  ++model.forwards;
  rows_.clear();
  gathered_.clear();
  if (device_.is_host()) passed();
}

// ---- outputs ---------------------------------------------------------------------------------

// Submits the ops for outputs whose logits are rows [first, first + n) of the forward. A law takes the
// place of the logits.
void DraftForward::submit_ops(const DraftModel& model, const kernels::DrawRow* draws, int32_t first,
                              int32_t n, const DraftOutputs& to) {
  const kernels::Ops& ops = device_.ops();
  const int32_t width = model.config.vocab_size;
  const auto vocab = static_cast<int32_t>(model.facts.info.vocab_size);
  float* logits =
      model.transformer->logits() + static_cast<int64_t>(first) * static_cast<int64_t>(width);
  const auto stride = [](const auto& column) { return static_cast<int32_t>(column.stride); };
  const auto log_prob = [&](const Strided<int32_t>& token, const Strided<float>& out, int32_t k) {
    if (out.data == nullptr) return;
    ops.log_prob(device_.stream(), {.logits = logits,
                                    .token = token.data,
                                    .out = out.data,
                                    .n_rows = n,
                                    .vocab = vocab,
                                    .k = k,
                                    .logits_stride = width,
                                    .token_stride = stride(token),
                                    .out_stride = stride(out)});
  };
  if (to.top_token.data != nullptr) {
    ops.top_k(device_.stream(), {.logits = logits,
                                 .token = to.top_token.data,
                                 .n_rows = n,
                                 .vocab = vocab,
                                 .k = to.top_k,
                                 .logits_stride = width,
                                 .token_stride = stride(to.top_token)});
    log_prob(to.top_token, to.top_logprob, to.top_k);
  }
  if (to.token.data == nullptr) return;
  ops.draw(device_.stream(), {.logits = logits,
                              .row = draws + first,
                              .token = to.token.data,
                              .n_rows = n,
                              .vocab = vocab,
                              .logits_stride = width,
                              .token_stride = stride(to.token),
                              .law = to.lse.data == nullptr ? nullptr : logits,
                              .lse = to.lse.data,
                              .law_stride = width});
  log_prob(to.token, to.logprob, 1);
}

// For outputs in memory that ops can write. One submission covers a run of equally spaced outputs.
void DraftForward::write_outputs(const Call& call, const Column<kernels::DrawRow>& draws) {
  const DraftOutputs& all = call.outputs;
  std::vector<int64_t> places;
  for (const DraftRow& each : gathered_) {
    if (each.output >= 0 && each.row >= 0) places.push_back(each.output);
  }
  const DraftModel& model = *call.use->model;
  const auto lse = staging_.add<float>(all.law.data == nullptr ? 0 : places.size());
  copy_rows(model, all.logits, places);
  for (size_t first = 0, end = 0; first < places.size(); first = end) {
    const int64_t place = places[first];
    const int64_t step = first + 1 < places.size() ? places[first + 1] - place : 1;
    for (end = first + 1; end < places.size() && places[end] == places[end - 1] + step;) ++end;
    submit_ops(model, draws.device, static_cast<int32_t>(first), static_cast<int32_t>(end - first),
               {.top_k = all.top_k,
                .token = run_of(all.token, place, step),
                .logprob = run_of(all.logprob, place, step),
                .top_token = run_of(all.top_token, place, step),
                .top_logprob = run_of(all.top_logprob, place, step),
                .lse = {lse.n == 0 ? nullptr : lse.device + first, 1}});
  }
  copy_rows(model, all.law, places);
  copy_lse(model, all, lse, places);  // a law is in host memory, so the device is the host here
  mark_failed(all);
}

// Sets the tokens of failed sequences to -1, in stream order.
void DraftForward::mark_failed(const DraftOutputs& outputs) {
  if (outputs.token.data == nullptr) return;
  std::vector<int32_t> failed;
  for (const DraftRow& each : gathered_) {
    if (each.output >= 0 && each.row < 0) {
      failed.push_back(static_cast<int32_t>(each.output * outputs.token.stride));
    }
  }
  if (failed.empty() || !make_room_for(Staging::bytes_of<int32_t>(failed.size()))) return;
  const Column<int32_t> places = staging_.add(failed);
  staging_.upload();
  // With a vocabulary of 0 no token is valid, so all become `otherwise`.
  device_.ops().pick_tokens(device_.stream(), {.source = outputs.token.data,
                                               .from = places.device,
                                               .target = outputs.token.data,
                                               .to = places.device,
                                               .n = static_cast<int32_t>(failed.size()),
                                               .vocab = 0,
                                               .otherwise = -1});
}

// For host outputs of a device: waits for the stream.
void DraftForward::copy_outputs(const Call& call, const Column<kernels::DrawRow>& draws) {
  const DraftOutputs& all = call.outputs;
  std::vector<int64_t> places;
  for (const DraftRow& each : gathered_) {
    if (each.output < 0) continue;
    if (each.row >= 0) {
      places.push_back(each.output);
    } else if (all.token.data != nullptr) {
      *all.token.element(each.output) = -1;
    }
  }
  const size_t n = places.size(), n_top = n * to_size(all.top_k);
  const auto token = staging_.add<int32_t>(all.token.data == nullptr ? 0 : n);
  const auto logprob = staging_.add<float>(all.logprob.data == nullptr ? 0 : n);
  const auto top_token = staging_.add<int32_t>(n_top);
  const auto top_logprob = staging_.add<float>(all.top_logprob.data == nullptr ? 0 : n_top);
  const auto lse = staging_.add<float>(all.law.data == nullptr ? 0 : n);
  const auto dense = []<typename T>(const Column<T>& column, int32_t width) {
    return column.n == 0 ? Strided<T>() : Strided<T>{column.device, width};
  };
  const DraftModel& model = *call.use->model;
  copy_rows(model, all.logits, places);
  if (n > 0) {
    submit_ops(model, draws.device, 0, static_cast<int32_t>(n),
               {.top_k = all.top_k,
                .token = dense(token, 1),
                .logprob = dense(logprob, 1),
                .top_token = dense(top_token, all.top_k),
                .top_logprob = dense(top_logprob, all.top_k),
                .lse = dense(lse, 1)});
  }
  copy_rows(model, all.law, places);
  staging_.download(token);
  staging_.download(logprob);
  staging_.download(top_token);
  staging_.download(top_logprob);
  staging_.download(lse);
  failed_ = device_.synchronize();
  if (!failed_.ok()) return;
  const auto copy = [&]<typename T>(const Strided<T>& target, const Column<T>& column) {
    const size_t width = column.n / std::max<size_t>(n, 1);
    for (size_t i = 0; target.data != nullptr && i < n; ++i) {
      std::copy_n(column.host + i * width, width, target.element(places[i]));
    }
  };
  copy(all.token, token);
  copy(all.logprob, logprob);
  copy(all.top_token, top_token);
  copy(all.top_logprob, top_logprob);
  copy_lse(model, all, lse, places);
  passed();
}

// Copies the rows of the logits to host memory, where wanted.
void DraftForward::copy_rows(const DraftModel& model, const Strided<float>& to,
                             const std::vector<int64_t>& places) {
  if (to.data == nullptr) return;
  const float* logits = model.transformer->logits();
  for (const int64_t place : places) {
    device_.copy_out(to.element(place), logits,
                     uint64_t{model.facts.info.vocab_size} * sizeof(float));
    logits += model.config.vocab_size;
  }
}

// Completes the laws of the outputs, on the host.
void DraftForward::copy_lse(const DraftModel& model, const DraftOutputs& outputs,
                            const Column<float>& lse, const std::vector<int64_t>& places) {
  const int64_t vocab = model.facts.info.vocab_size;
  for (size_t i = 0; i < lse.n; ++i) {
    *outputs.lse.element(places[i]) = lse.host[i];
    float* law = outputs.law.element(places[i]);
    std::fill(law + vocab, law + outputs.law_width, -HUGE_VALF);
  }
}

}  // namespace specd
