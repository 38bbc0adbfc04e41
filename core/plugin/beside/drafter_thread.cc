#include "core/plugin/beside/drafter_thread.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/thread.h"

namespace specd {
// Only the header is written; the rest gets its pages as messages come to lie there.
DrafterThread::Block::Block(size_t n)
    : capacity(n), memory(std::aligned_alloc(alignof(RingHeader), sizeof(RingHeader) + n)) {
  if (memory == nullptr) throw std::bad_alloc();
  new (memory.get()) RingHeader();
}

DrafterThread::DrafterThread(Drafter& drafter, const BesideTerms& terms,
                             std::unique_ptr<CpuDevice> cpu, ShadowObserver* observer)
    : shape_(shape_of(drafter.caps(), drafter.grant(), terms.vocab_size, terms.hidden_size)),
      rows_max_(rows_max_of(drafter.grant(), shape_)),
      requests_(request_capacity(shape_, rows_max_, terms.max_positions)),
      replies_(reply_capacity(shape_)),
      counted_(terms.ring_bytes, requests_.capacity, replies_.capacity),
      cpu_(std::move(cpu)),
      lane_{*cpu_},
      reply_writer_(replies_.header(), replies_.capacity),
      reply_reader_(replies_.header(), replies_.capacity) {
  const bool is_shadow = observer != nullptr;
  if (is_shadow) score_ = score_for(drafter, shape_, *observer);
  client_ = std::make_unique<DrafterClient>(
      drafter.owner().label, shape_, terms.limits,
      RingWriter(requests_.header(), requests_.capacity), is_shadow ? nullptr : &reply_reader_,
      ClientHooks{.on_called = terms.on_called, .hidden_bytes = terms.hidden_bytes});
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

Result<std::unique_ptr<DrafterThread>> DrafterThread::start(Drafter& drafter,
                                                            const BesideTerms& terms,
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
