#include "core/ranks/worker.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <numeric>
#include <string>

#include "core/base/clock.h"
#include "core/base/failpoint.h"

namespace specd {
namespace {

std::atomic<WorkerObserver*> the_observer{nullptr};

// Adds a column that grows with the text. Its size is rounded up so that the columns after it
// rarely move, because graphs that were captured with their addresses are then lost.
template <typename T>
Column<T> add_rounded(Staging& staging, const std::vector<T>& values) {
  Column<T> column = staging.add<T>(std::bit_ceil(values.size()));
  std::copy(values.begin(), values.end(), column.host);
  return column;
}

// `input` with the tokens that the device picked from the parts' columns, instead of picks.
StepInput resolved(const StepInput& input, std::span<StreamPart* const> parts, int32_t vocab) {
  StepInput known = input;
  for (const TokenPick& pick : input.picks) {
    const int32_t* written = parts[static_cast<size_t>(pick.part)]->tokens().host;
    for (size_t i = 0; i < pick.to.size(); ++i) {
      const int32_t token = written[pick.from[i]];
      known.rows.token[static_cast<size_t>(pick.to[i])] = token >= 0 && token < vocab ? token : 0;
    }
  }
  known.picks.clear();
  return known;
}

}  // namespace

// The columns of one step's input and output.
struct Worker::Columns {
  ForwardColumns rows;
  Column<kernels::DrawRow> draws;
  Column<kernels::PenaltyRow> penalty_row;
  Column<kernels::PenaltySeen> penalty_seen;
  Column<int32_t> penalty_path;
  Column<kernels::TokenBias> penalty_bias;
  struct Pick {
    Column<int32_t> source, from, to;
  };
  std::vector<Pick> picks;
  Column<int32_t> drawn, top;  // top: [logits rows, top_k]
  int32_t top_k = 0;
  Column<float> lse;         // [logits rows]; empty when no row wants its law
  Column<int32_t> law_rows;  // laws to be copied to host memory
  Column<float> law_copy, lse_copy;
  Column<int32_t> raw_rows;  // logits to be copied to host memory before they change
  Column<float> raw;
  std::vector<Column<float>> taps;  // to be copied to host memory
};

Worker::Worker(Device& device, Transformer& model, KvStore& kv, Lead* lead)
    : device_(device), model_(model), kv_(kv), lead_(lead), graphs_(device, lead) {}

Result<std::unique_ptr<Worker>> Worker::create(Device& device, Transformer& model, KvStore& kv,
                                               Lead* lead) {
  std::unique_ptr<Worker> worker(new Worker(device, model, kv, lead));
  SPECD_TRY(worker->inputs_, Staging::create(device, kFirstBytes, "input of a step"));
  SPECD_TRY(worker->outputs_, Staging::create(device, kFirstBytes, "output of a step"));
  SPECD_TRY(worker->moves_,
            Staging::create(device, 2 * kMovesAtOnce * sizeof(int32_t), "moves of KV"));
  return worker;
}

void Worker::observe(WorkerObserver* observer) { the_observer = observer; }

StepLimits Worker::limits() const {
  return {.rows_max = model_.rows_max(),
          .logits_rows_max = model_.logits_rows_max(),
          .vocab_size = model_.config().vocab_size,
          .n_pages = kv_.n_pages(),
          .positions_end = model_.config().positions_end()};
}

Staging& Worker::new_columns() {
  // Work behind the last step may still read its results. An error stays for the next run().
  if (inputs_.is_in_pieces() || outputs_.is_in_pieces()) (void)device_.synchronize();
  const bool inputs_moved = inputs_.clear(), outputs_moved = outputs_.clear();
  if (inputs_moved || outputs_moved) graphs_.clear();
  return inputs_;
}

Status Worker::run(const StepInput& input, std::span<StreamPart* const> parts,
                   const std::function<void()>& meanwhile, StepOutput& output) {
#ifdef SPECD_DEBUG_CHECKS
  std::vector<size_t> part_tokens;
  for (const StreamPart* part : parts) part_tokens.push_back(part->tokens().n);
  if (const std::string fault = step_input_fault(input, limits(), part_tokens); !fault.empty()) {
    return Status(Code::kInvalidArgument, "step input: " + fault);
  }
#endif
  const Columns columns = stage(input, parts);
  for (const Staging* staging : {&inputs_, &outputs_}) SPECD_OK_OR_RETURN(staging->status());
  const uint64_t start_ns = now_ns();
  if (device_.is_host()) {
    if (lead_ != nullptr) lead_->forward(0, input.rows);
    submit(columns, parts, false);
    if (lead_ != nullptr) SPECD_OK_OR_RETURN(lead_->status());
  } else {
    SPECD_OK_OR_RETURN(graphs_.submit(
        shape_of(columns, parts), parts,
        {.upload = [this] { inputs_.upload_all(); },
         .announce =
             [&] {
               if (lead_ != nullptr) lead_->forward(0, input.rows);
             },
         .forward = [&](bool capturing) { return submit(columns, parts, capturing); }}));
    meanwhile();
    SPECD_OK_OR_RETURN(device_.synchronize());
    if (lead_ != nullptr) SPECD_OK_OR_RETURN(lead_->status());
    moves_.clear();
  }
  output.forward_ns = now_ns() - start_ns;
  forward_ns_ += output.forward_ns;
  read(columns, output);
  read_laws(input, columns, output);
  if (WorkerObserver* observer = the_observer; observer != nullptr) {
    observer->ran(input, resolved(input, parts, model_.config().vocab_size), output);
  }
  return Status();
}

Worker::Columns Worker::stage(const StepInput& input, std::span<StreamPart* const> parts) {
  Columns columns;
  for (const TokenPick& pick : input.picks) {
    columns.picks.push_back({parts[static_cast<size_t>(pick.part)]->tokens(),
                             inputs_.add(pick.from), inputs_.add(pick.to)});
  }
  columns.rows = input.rows.stage(inputs_);
  columns.draws = inputs_.add(input.draws);
  if (!input.penalty_row.empty()) {
    columns.penalty_row = inputs_.add(input.penalty_row);
    columns.penalty_seen = add_rounded(inputs_, input.penalty_seen);
    columns.penalty_path = add_rounded(inputs_, input.penalty_path);
    columns.penalty_bias = add_rounded(inputs_, input.penalty_bias);
  }
  columns.drawn = outputs_.add<int32_t>(input.draws.size());
  columns.top_k = input.top_k;
  columns.top = outputs_.add<int32_t>(input.draws.size() * static_cast<size_t>(input.top_k));
  const auto wants_law = [](const kernels::DrawRow& row) { return row.law; };
  if (std::any_of(input.draws.begin(), input.draws.end(), wants_law)) {
    columns.lse = outputs_.add<float>(input.draws.size());
  }
  if (!input.law_to_host.empty() && !device_.is_host()) {
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    columns.law_rows = inputs_.add(input.law_to_host);
    columns.law_copy = outputs_.add<float>(input.law_to_host.size() * vocab);
    columns.lse_copy = outputs_.add<float>(input.law_to_host.size());
  }
  columns.raw_rows = inputs_.add(input.raw_to_host);
  columns.raw = outputs_.add<float>(input.raw_to_host.size() *
                                    static_cast<size_t>(model_.config().vocab_size));
  const auto width = static_cast<size_t>(model_.config().hidden_size);
  const bool copied = input.taps_to_host && !device_.is_host();
  for (size_t i = 0; i < model_.n_taps() && copied; ++i) {
    columns.taps.push_back(outputs_.add<float>(input.rows.tap_rows.size() * width));
  }
  return columns;
}

// Submits everything that follows the upload and the parts' drafts. False: see Graphs::submit().
bool Worker::submit(const Columns& columns, std::span<StreamPart* const> parts, bool capturing) {
  const kernels::Ops& ops = device_.ops();
  kernels::Stream& stream = device_.stream();
  const int32_t vocab = model_.config().vocab_size;
  for (const Columns::Pick& pick : columns.picks) {
    ops.pick_tokens(stream, {.source = pick.source.device,
                             .from = pick.from.device,
                             .target = columns.rows.token.device,
                             .to = pick.to.device,
                             .n = static_cast<int32_t>(pick.from.n),
                             .vocab = vocab,
                             .otherwise = 0});
    inputs_.download(pick.source);
  }
  model_.forward(columns.rows, kv_);
  if (columns.draws.n > 0 && device_.is_host() && SPECD_FAILS(kStepLogits, EDOM))
    std::fill_n(model_.logits(), vocab, std::numeric_limits<float>::quiet_NaN());
  if (columns.top.n > 0) {
    ops.top_k(stream, {.logits = model_.logits(),
                       .token = columns.top.device,
                       .n_rows = static_cast<int32_t>(columns.draws.n),
                       .vocab = vocab,
                       .k = columns.top_k});
    outputs_.download(columns.top);
  }
  const auto copy_rows = [&](const float* from, const Column<int32_t>& rows,
                             const Column<float>& to, int32_t width) {
    if (rows.n == 0) return;
    ops.copy_rows(stream, {.from = from,
                           .to = to.device,
                           .from_row = rows.device,
                           .n_rows = static_cast<int32_t>(rows.n),
                           .n = width,
                           .from_rows = static_cast<int32_t>(columns.draws.n),
                           .to_rows = static_cast<int32_t>(rows.n),
                           .from_stride = width,
                           .to_stride = width});
    outputs_.download(to);
  };
  copy_rows(model_.logits(), columns.raw_rows, columns.raw, vocab);
  if (columns.penalty_row.n > 0) {
    ops.penalize(stream, {.logits = model_.logits(),
                          .row = columns.penalty_row.device,
                          .seen = columns.penalty_seen.device,
                          .path = columns.penalty_path.device,
                          .token = columns.rows.token.device,
                          .bias = columns.penalty_bias.device,
                          .n_rows = static_cast<int32_t>(columns.penalty_row.n),
                          .vocab = vocab});
  }
  if (columns.draws.n > 0) {
    ops.draw(stream, {.logits = model_.logits(),
                      .row = columns.draws.device,
                      .token = columns.drawn.device,
                      .n_rows = static_cast<int32_t>(columns.draws.n),
                      .vocab = vocab,
                      .law = columns.lse.n > 0 ? model_.logits() : nullptr,
                      .lse = columns.lse.device});
    outputs_.download(columns.drawn);
  }
  copy_rows(model_.logits(), columns.law_rows, columns.law_copy, vocab);
  copy_rows(columns.lse.device, columns.law_rows, columns.lse_copy, 1);
  bool repeatable = true;
  for (StreamPart* part : parts) {
    const bool repeats = part->submit_behind(
        {.token = columns.drawn, .law = model_.logits(), .lse = columns.lse}, capturing);
    repeatable = repeats && repeatable;
  }
  for (size_t i = 0; i < columns.taps.size(); ++i) {
    device_.copy_out(columns.taps[i].host, model_.tap(i), columns.taps[i].bytes());
  }
  return repeatable;
}

// All sizes and addresses that determine the arguments of the submitted work.
StepShape Worker::shape_of(const Columns& columns, std::span<StreamPart* const> parts) const {
  StepShape shape{columns.taps.size(), columns.top.n,      columns.penalty_row.n,
                  columns.law_rows.n,  columns.raw_rows.n, inputs_.used()};
  add_shape(shape, columns.rows, model_);
  for (const void* column : {static_cast<const void*>(columns.draws.device),
                             static_cast<const void*>(columns.penalty_seen.device),
                             static_cast<const void*>(columns.penalty_path.device),
                             static_cast<const void*>(columns.penalty_bias.device),
                             static_cast<const void*>(columns.drawn.device),
                             static_cast<const void*>(columns.lse.device),
                             static_cast<const void*>(columns.law_copy.device),
                             static_cast<const void*>(columns.lse_copy.device),
                             static_cast<const void*>(columns.raw.device),
                             static_cast<const void*>(columns.top.device)}) {
    shape.push_back(reinterpret_cast<uintptr_t>(column));
  }
  for (const StreamPart* part : parts) part->add_shape(shape);
  return shape;
}

// On the host laws are where the logits were.
void Worker::read_laws(const StepInput& input, const Columns& columns, StepOutput& output) const {
  output.law_row = input.law_to_host;
  output.law = device_.is_host() ? model_.logits() : columns.law_copy.host;
  output.lse = device_.is_host() ? columns.lse.host : columns.lse_copy.host;
  if (!device_.is_host()) std::iota(output.law_row.begin(), output.law_row.end(), 0);
}

void Worker::read(const Columns& columns, StepOutput& output) const {
  output.drawn.assign(columns.drawn.host, columns.drawn.host + columns.drawn.n);
  output.top = {columns.top.host, columns.top.device, columns.top.n};
  output.raw = columns.raw.host;
  output.taps.clear();
  const size_t n =
      static_cast<size_t>(columns.rows.n_taps) * static_cast<size_t>(model_.config().hidden_size);
  for (size_t i = 0; i < model_.n_taps(); ++i) {
    const float* copied = i < columns.taps.size() ? columns.taps[i].host : nullptr;
    output.taps.push_back({device_.is_host() ? model_.tap(i) : copied, model_.tap(i), n});
  }
}

Status Worker::move(const KvMoves& moves) {
  const size_t n_moves = moves.from.size();
  for (size_t done = 0; done < n_moves; done += kMovesAtOnce) {
    const KvMoves part = moves.part(done, std::min(kMovesAtOnce, n_moves - done));
    if (2 * Staging::bytes_of<int32_t>(part.from.size()) > moves_.room()) {
      SPECD_OK_OR_RETURN(device_.synchronize());
      moves_.clear();
    }
    if (lead_ != nullptr) lead_->move(0, part);
    kv_.move(device_, moves_, part);
  }
  WorkerObserver* observer = the_observer;
  if (observer != nullptr && n_moves > 0) observer->moved(moves.from, moves.to);
  return Status();
}

Status Worker::copy_page(int32_t from, int32_t to) {
  KvMoves moves;
  for (int32_t i = 0; i < kernels::kPageTokens; ++i) {
    moves.from.push_back(from * kernels::kPageTokens + i);
    moves.to.push_back(to * kernels::kPageTokens + i);
  }
  return move(moves);
}

}  // namespace specd
