#include "core/plugin/beside/drafter_thread.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/thread.h"

namespace specd {
namespace {

// Of the rows of one update(): the hidden states of a long prompt come in several.
constexpr uint64_t kRowBytes = uint64_t{4} << 20;

CallShape shape_of(const Drafter& drafter, uint32_t vocab_size, uint32_t hidden_size) {
  const specd_drafter_caps& caps = drafter.caps();
  const specd_drafter_grant& grant = drafter.grant();
  const bool reads_hidden = (grant.needs & SPECD_NEED_HIDDEN) != 0;
  return {.max_batch = grant.max_batch,
          .node_capacity = grant.max_nodes,
          .n_taps = reads_hidden ? caps.n_taps : 0,
          .hidden_size = reads_hidden ? hidden_size : 0,
          .top_k = caps.top_k,
          .vocab_size = vocab_size,
          .sends_parents = caps.tree_mode == SPECD_TREE_VARIABLE,
          .sends_flags = (grant.needs & SPECD_NEED_PROBES) != 0};
}

uint32_t rows_of(const Drafter& drafter, const CallShape& shape) {
  const uint64_t words = 4 + uint64_t{shape.n_taps} * shape.hidden_size;
  const uint64_t most = std::max<uint64_t>(kRowBytes / (words * sizeof(int32_t)), 1);
  return static_cast<uint32_t>(std::min<uint64_t>(most, drafter.grant().max_rows));
}

size_t request_bytes(const CallShape& shape, uint32_t max_rows, uint32_t max_positions) {
  const uint32_t cells = shape.max_batch * (shape.node_capacity + 1);
  const MessageHead update{.kind = CallKind::kUpdate,
                           .n_seqs = shape.max_batch,
                           .n_rows = max_rows,
                           .n_top = shape.top_k > 0 ? cells : 0};
  const MessageHead begin{.kind = CallKind::kBegin, .n_seqs = 1, .n_rows = max_positions};
  return std::max(MessageLayout(update, shape).bytes, MessageLayout(begin, shape).bytes);
}

size_t reply_bytes(const CallShape& shape) {
  return ReplyLayout({.kind = CallKind::kPropose,
                      .n_seqs = shape.max_batch,
                      .text_bytes = static_cast<uint32_t>(kReplyTextMax)},
                     shape)
      .bytes;
}

TreeLimits limits_of(const Drafter& drafter, uint32_t vocab_size) {
  const specd_drafter_grant& grant = drafter.grant();
  return {.vocab_size = static_cast<int32_t>(vocab_size),
          .node_budget = 0,
          .max_depth = static_cast<int32_t>(grant.max_depth),
          .probes = (grant.needs & SPECD_NEED_PROBES) != 0};
}

}  // namespace

// Only the header is written; the rest gets its pages as messages come to lie there.
DrafterThread::Block::Block(size_t n)
    : capacity(n), memory(std::aligned_alloc(alignof(RingHeader), sizeof(RingHeader) + n)) {
  if (memory == nullptr) throw std::bad_alloc();
  new (memory.get()) RingHeader();
}

DrafterThread::DrafterThread(Drafter& drafter, const Terms& terms, std::unique_ptr<CpuDevice> cpu,
                             ShadowObserver* observer)
    : shape_(shape_of(drafter, terms.vocab_size, terms.hidden_size)),
      rows_max_(rows_of(drafter, shape_)),
      // At least three of the largest, so that a drafter may be some calls behind.
      requests_(2 * ring_capacity(request_bytes(shape_, rows_max_, terms.max_positions))),
      replies_(2 * ring_capacity(reply_bytes(shape_))),
      cpu_(std::move(cpu)),
      lane_{*cpu_},
      reply_writer_(replies_.header(), replies_.capacity),
      reply_reader_(replies_.header(), replies_.capacity) {
  const bool is_shadow = observer != nullptr;
  if (is_shadow) {
    score_ = std::make_unique<ProposalScore>(
        shape_.max_batch, limits_of(drafter, terms.vocab_size),
        [observer](int32_t n_nodes, int32_t n_accepted) { observer->scored(n_nodes, n_accepted); },
        [observer](const char* defect, int32_t node) {
          observer->refused(1, std::string(defect) + " at node " + std::to_string(node));
        });
  }
  client_ = std::make_unique<DrafterClient>(drafter.owner().label, shape_, terms.limits,
                                            RingWriter(requests_.header(), requests_.capacity),
                                            is_shadow ? nullptr : &reply_reader_, terms.on_called);
  server_ = std::make_unique<DrafterServer>(
      drafter, shape_, lane_, RingReader(requests_.header(), requests_.capacity),
      is_shadow ? nullptr : &reply_writer_, score_.get(), observer);
  const auto serve = [this] {
    server_->run(stop_, abandoned_);
    has_ended_.release();
  };
  thread_ = is_shadow ? try_start_thread("specd-shadow", serve)
                      : try_start_thread("specd-drafter", serve);
}

Result<std::unique_ptr<DrafterThread>> DrafterThread::start(Drafter& drafter, const Terms& terms,
                                                            std::unique_ptr<CpuDevice> cpu,
                                                            ShadowObserver* observer) {
  try {
    return std::unique_ptr<DrafterThread>(
        new DrafterThread(drafter, terms, std::move(cpu), observer));
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, "there is no memory for the drafter's calls");
  } catch (const std::system_error& error) {
    return Status(Code::kExhausted, std::string("cannot start the drafter's thread: ") +
                                        error.what() + " (ulimit -u, pids.max of the cgroup)");
  }
}

DrafterThread::~DrafterThread() {
  stop_ = true;
  ring_bell(requests_.header());
  thread_.join();
}

bool DrafterThread::stop(std::chrono::milliseconds limit) {
  stop_ = true;
  ring_bell(requests_.header());
  return has_ended_.try_acquire_for(limit);
}

void DrafterThread::abandon() {
  abandoned_ = true;
  ring_bell(requests_.header());
}

}  // namespace specd
