#include "core/ranks/follower.h"

#include <new>

#include "core/base/check.h"
#include "core/base/to_size.h"
#include "core/model/lead.h"

namespace specd {
namespace {

// Takes the next numbers of a command. The lead is this program, so their number is right.
std::span<const int32_t> take(std::span<const int32_t>& words, size_t n) {
  SPECD_CHECK(words.size() >= n, std::to_string(words.size()) + " words left of a command");
  const std::span<const int32_t> taken = words.first(n);
  words = words.subspan(n);
  return taken;
}

}  // namespace

Status Follower::run() {
  std::vector<int32_t> words;
  Status status;
  try {
    Result<Staging> columns = Staging::create(device_, kColumnBytes, "columns of a rank");
    status = columns.status();
    if (status.ok()) columns_ = std::move(columns).value();
    while (status.ok()) {
      if (!ranks_.next_command(words)) return ranks_.status();
      if (words.front() == static_cast<int32_t>(RankCommand::kStop)) return Status();
      status = obey(words);
    }
  } catch (const std::bad_alloc&) {
    status = Status(Code::kExhausted, kOutOfMemory);
  }
  if (!status.ok()) ranks_.give_up(status);
  return status;
}

Status follow_on(Device& device, RankEnd& end, std::span<const SharedModel> models) {
  struct Close {
    RankEnd& end;
    ~Close() { end.close(); }
  } const close{end};
  Status opened = end.open(device);
  if (opened.ok()) return Follower(device, end.links(), models).run();
  end.all->give_up(opened);  // perhaps only the ranks of a stage know
  return opened;
}

Status Follower::obey(std::span<const int32_t> words) {
  const auto command = static_cast<RankCommand>(take(words, 1).front());
  const size_t model = to_size(take(words, 1).front());
  if (model > 0 && !links_.split.is_last()) return Status();  // it is not here
  switch (command) {
    case RankCommand::kLoad:
      return load(model);
    case RankCommand::kPages:
      return make_pages(model, take(words, 1).front());
    case RankCommand::kTap:
      return add_tap(static_cast<uint32_t>(take(words, 1).front()));
    case RankCommand::kForward:
      return forward(model, words);
    case RankCommand::kHead:
      if (!links_.split.is_last()) return Status();
      loaded_[model].transformer->shared_head(nullptr, take(words, 1).front(), nullptr);
      SPECD_OK_OR_RETURN(device_.synchronize());
      return ranks_.status();
    case RankCommand::kMove:
      return move(loaded_[model], words);
    case RankCommand::kStop:
      break;  // run() ends by it
  }
  return Status(Code::kInternal, "an unknown command");
}

// When a rank cannot load a model, none has it; the lead decides what that means.
Status Follower::load(size_t model) {
  const SharedModel& wanted = models_[model];
  const RankLinks links = links_of_model(links_, static_cast<int32_t>(model));
  Result<std::unique_ptr<Transformer>> made = Transformer::load(
      device_, wanted.path, wanted.config, wanted.rows_max, wanted.logits_rows_max, {}, links);
  const Status agreed = agree(*links.all, made.status());
  if (agreed.ok()) {
    loaded_[model].transformer = std::move(made).value();
    loaded_[model].transformer->gather_bytes();
  }
  return ranks_.status();
}

Status Follower::make_pages(size_t model, int32_t n_pages) {
  const SharedModel& wanted = models_[model];
  const RankLinks links = links_of_model(links_, static_cast<int32_t>(model));
  const ModelConfig part = part_of(wanted.config, links.split);
  Result<KvStore> made = n_pages > 0 ? KvStore::create(device_, part, wanted.kv_dtype, n_pages)
                                     : KvStore::inside(*loaded_.front().kv, part, wanted.kv_dtype);
  const Status agreed = agree(*links.all, made.status());
  if (!agreed.ok()) return ranks_.status();
  loaded_[model].kv = std::move(made).value();
  if (n_pages > 0) (void)gathered(links.all, loaded_[model].kv->bytes());
  if (model == 0) (void)gathered(links.all, columns_.capacity());
  return ranks_.status();
}

Status Follower::add_tap(uint32_t point) {
  Transformer& target = *loaded_.front().transformer;
  if (!target.sends_tap(point)) return Status();
  SPECD_TRY(Transformer::Tap tap, target.make_tap(point));
  target.add_tap(std::move(tap));
  return Status();
}

Status Follower::forward(size_t number, std::span<const int32_t> words) {
  Loaded& model = loaded_[number];
  clear_columns();
  rows_.clear();
  rows_.token.assign(to_size(take(words, 1).front()), 0);  // the forward brings them
  for (std::vector<int32_t>* column : sent_columns(rows_)) {
    const auto values = take(words, to_size(take(words, 1).front()));
    column->assign(values.begin(), values.end());
  }
  const ForwardColumns columns = rows_.stage(columns_);
  SPECD_OK_OR_RETURN(columns_.status());
  Transformer& transformer = *model.transformer;
  if (device_.is_host()) {
    transformer.forward(columns, *model.kv);
    return ranks_.status();
  }
  StepShape shape{number};
  add_shape(shape, columns, transformer);
  SPECD_OK_OR_RETURN(graphs_.submit(shape, {},
                                    {.upload = [&] { columns_.upload_all(); },
                                     .announce = [] {},
                                     .forward =
                                         [&](bool) {
                                           transformer.forward(columns, *model.kv);
                                           return true;
                                         }}));
  SPECD_OK_OR_RETURN(device_.synchronize());
  return ranks_.status();
}

Status Follower::move(Loaded& model, std::span<const int32_t> words) {
  const size_t n = to_size(take(words, 1).front());
  const auto from = take(words, n), to = take(words, n);
  clear_columns();
  model.kv->move(device_, columns_,
                 {.from = {from.begin(), from.end()}, .to = {to.begin(), to.end()}});
  SPECD_OK_OR_RETURN(columns_.status());
  return device_.synchronize();
}

}  // namespace specd
