#include "core/plugin/process/process_drafter.h"

#include <algorithm>
#include <utility>

#include "core/plugin/beside/call_shape.h"
#include "core/plugin/instance/caps.h"
#include "core/plugin/process/shadow_reports.h"

namespace specd {
namespace {

// For a drafter that hangs when its sequences are to end.
constexpr std::chrono::milliseconds kPauseLimit{1000};

std::unique_ptr<specd_owner> make_owner(const DrafterOrder& order) {
  auto owner = std::make_unique<specd_owner>();
  owner->name = order.instance_name;
  owner->label = order.plugin + " (" + order.instance_name + ")";
  owner->plugin = order.plugin;
  return owner;
}

// The step's end of the process that lives now. Between two lives the drafter has no sequence.
class ProcessBeside final : public DrafterBeside, public DrafterCalls {
 public:
  ProcessBeside(ProcessKeeper& keeper, uint32_t rows_max, const ShadowReportLimits& limits,
                ShadowObserver* observer, OnCalled on_answered)
      : keeper_(keeper),
        rows_max_(rows_max),
        limits_(limits),
        observer_(observer),
        on_answered_(std::move(on_answered)) {}
  ~ProcessBeside() override { keeper_.pause(kPauseLimit); }

  LinkSlot& links() { return links_; }
  DrafterCalls& calls() override { return *this; }
  uint32_t rows_max() const override { return rows_max_; }
  // A process that does not end its sequences in time is killed.
  bool stop(std::chrono::milliseconds limit) override {
    keeper_.pause(std::max(limit, kPauseLimit));
    return true;
  }
  void abandon() override { keeper_.abandon(); }

  Status begin(const specd_begin_args& args, specd_call& call) override {
    if (link_ != nullptr) return link_->client->begin(args, call);
    for (uint32_t s = 0; s < args.batch->n_seqs; ++s) args.batch->seq_status[s] = SPECD_E_EXHAUSTED;
    return Status();
  }
  Status update(const specd_update_args& args, specd_call& call) override {
    return link_ == nullptr ? Status() : link_->client->update(args, call);
  }
  Status propose(const specd_propose_args& args, specd_call& call) override {
    return link_ == nullptr ? Status() : link_->client->propose(args, call);
  }
  void end(const specd_end_args& args, specd_call& call) override {
    if (link_ != nullptr) link_->client->end(args, call);
  }
  bool is_immediate() const override { return false; }
  Status take_answers() override;
  bool may_begin() const override { return link_ != nullptr && link_->client->may_begin(); }
  bool is_ready() const override { return link_ != nullptr && link_->client->is_ready(); }
  SequenceLoss loss_of(uint32_t slot, uint64_t seq_id) override {
    return link_ == nullptr ? SequenceLoss::kMayBegin : link_->client->loss_of(slot, seq_id);
  }
  const char* why_lost() const override {
    return link_ == nullptr ? "the drafter's process has ended" : link_->client->why_lost();
  }

 private:
  ProcessKeeper& keeper_;
  const uint32_t rows_max_;
  const ShadowReportLimits limits_;
  ShadowObserver* const observer_;
  const OnCalled on_answered_;
  LinkSlot links_;
  std::shared_ptr<ProcessLink> link_;  // [step]
};

Status ProcessBeside::take_answers() {
  links_.take(link_);
  if (link_ == nullptr || link_->is_gone) {
    links_.give_back(link_);
    return Status();
  }
  if (observer_ != nullptr) take_shadow_reports(*link_->replies, limits_, *observer_, on_answered_);
  const Status status = link_->replies->is_broken()
                            ? Status(Code::kDataLoss, "it has written what is no message")
                            : link_->client->take_answers();
  if (!status.ok()) {  // the keeper starts it again
    link_->child->kill(status.message());
    links_.give_back(link_);
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<ProcessDrafter>> ProcessDrafter::make(ProcessKeeper::Terms terms,
                                                             const specd_host& host) {
  const DrafterOrder order = terms.order;
  SPECD_TRY(std::unique_ptr<ProcessKeeper> keeper, ProcessKeeper::start(std::move(terms)));
  SPECD_TRY(CreatedDrafter created, keeper->create());
  SPECD_OK_OR_RETURN(check_caps(created.caps, order.target_info(), host, "plugin " + order.plugin));
  return std::unique_ptr<ProcessDrafter>(
      new ProcessDrafter(std::move(created), make_owner(order), std::move(keeper)));
}

Result<specd_drafter_caps> ProcessDrafter::describe(ProcessKeeper::Terms terms,
                                                    const specd_host& host) {
  terms.order.describes_only = true;
  const DrafterOrder order = terms.order;
  SPECD_TRY(const std::unique_ptr<ProcessKeeper> keeper, ProcessKeeper::start(std::move(terms)));
  SPECD_TRY(CreatedDrafter created, keeper->create());
  SPECD_OK_OR_RETURN(check_caps(created.caps, order.target_info(), host, "plugin " + order.plugin));
  created.caps.services = nullptr;
  created.caps.n_services = 0;
  return created.caps;
}

ProcessDrafter::ProcessDrafter(CreatedDrafter created, std::unique_ptr<specd_owner> owner,
                               std::unique_ptr<ProcessKeeper> keeper)
    : Drafter(created.caps, std::move(owner),
              [&created] {
                std::vector<UsedPlugin> parts;
                for (const std::string& id : created.parts) parts.push_back({.id = id});
                return parts;
              }()),
      services_(std::move(created.services)),
      has_update_(created.has_update),
      contents_(std::move(created.contents)),
      keeper_(std::move(keeper)) {
  keeper_->set_owner(owner_.get());
}

// The process tells figures until it has ended.
ProcessDrafter::~ProcessDrafter() { keeper_.reset(); }

Status ProcessDrafter::activate(const specd_drafter_grant& grant,
                                const std::atomic<bool>& /*is_late*/) {
  SPECD_TRY(std::vector<int32_t> parents, keeper_->activate(grant));
  grant_ = grant;
  if (caps_.tree_mode != SPECD_TREE_STATIC) return Status();
  const auto n = static_cast<uint32_t>(parents.size());
  return take_parents(std::move(parents), n, grant);
}

void ProcessDrafter::count(CallKind kind, const Status& status, uint64_t took_ns) {
  CallStats& stats = kind == CallKind::kBegin    ? begin_stats
                     : kind == CallKind::kUpdate ? update_stats
                                                 : propose_stats;
  ++stats.calls;
  stats.total_ns += took_ns;
  if (!status.ok()) ++stats.failures;
}

Result<std::unique_ptr<DrafterBeside>> ProcessDrafter::serve(const BesideTerms& terms,
                                                             ShadowObserver* observer,
                                                             ProcessKeeper::Hooks hooks) {
  const CallShape shape = shape_of(caps_, grant_, terms.vocab_size, terms.hidden_size);
  const bool is_shadow = observer != nullptr;
  const OnCalled on_answered = [this](CallKind kind, const Status& status, uint64_t took_ns) {
    count(kind, status, took_ns);
  };
  const uint32_t rows_max = rows_max_of(grant_, shape);
  auto beside = std::make_unique<ProcessBeside>(
      *keeper_, rows_max,
      ShadowReportLimits{.max_batch = shape.max_batch,
                         .node_capacity = static_cast<int32_t>(shape.node_capacity),
                         .max_depth = static_cast<int32_t>(grant_.max_depth)},
      observer, on_answered);
  const auto connect = [=, name = owner_->label](std::unique_ptr<SharedRings> rings,
                                                 std::shared_ptr<DrafterChild> child) {
    auto link = std::make_unique<ProcessLink>();
    link->counted.emplace(terms.ring_bytes, rings->request_capacity, rings->reply_capacity);
    link->rings = std::move(rings);
    link->child = std::move(child);
    link->replies =
        std::make_unique<RingReader>(link->rings->replies(), link->rings->reply_capacity);
    link->client = std::make_unique<DrafterClient>(
        name, shape, terms.limits,
        RingWriter(link->rings->requests(), link->rings->request_capacity),
        is_shadow ? nullptr : link->replies.get(),
        ClientHooks{.on_called = terms.on_called,
                    .on_answered = on_answered,
                    .hidden_bytes = terms.hidden_bytes,
                    .is_gone = &link->is_gone});
    return link;
  };
  SPECD_OK_OR_RETURN(
      keeper_->serve({.request_capacity = request_capacity(shape, rows_max, terms.max_positions),
                      .reply_capacity = reply_capacity(shape),
                      .is_shadow = is_shadow,
                      .connect = connect,
                      .links = &beside->links(),
                      .hooks = std::move(hooks)}));
  return std::unique_ptr<DrafterBeside>(std::move(beside));
}

namespace {

Status works_beside() {
  return Status(Code::kFailedPrecondition, "the drafter works in a process of its own");
}

}  // namespace

Status ProcessDrafter::begin(const specd_begin_args&, specd_call&) { return works_beside(); }
Status ProcessDrafter::update(const specd_update_args&, specd_call&) { return works_beside(); }
Status ProcessDrafter::propose(const specd_propose_args&, specd_call&) { return works_beside(); }
void ProcessDrafter::end(const specd_end_args&, specd_call&) {}

}  // namespace specd
