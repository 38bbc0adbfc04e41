#include "core/runner/runner.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/last_words.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/plugin/beside/call_shape.h"
#include "core/plugin/beside/server.h"
#include "core/plugin/bundle/registry.h"
#include "core/plugin/instance/caps.h"
#include "core/plugin/process/child.h"
#include "core/plugin/process/protocol.h"
#include "core/plugin/process/shadow_reports.h"
#include "core/plugin/process/shared_rings.h"
#include "core/runner/confine.h"
#include "core/services/directory.h"
#include "specd/plugin_api/services/kv.h"
#include "specd/plugin_api/services/model.h"
#include "specd/plugin_api/services/target.h"

namespace specd {
namespace {

// On top of the drafter's quota: for what it allocates without memory/1, and for the rings.
constexpr uint64_t kFreeBytes = uint64_t{1} << 30;
constexpr int kFiguresPauseMs = 250;

// Whether it uses a service that works on the daemon's models.
bool needs_the_daemon(const specd_drafter_caps& caps) {
  return requires_service(caps, SPECD_SERVICE_MODEL) || requires_service(caps, SPECD_SERVICE_KV) ||
         requires_service(caps, SPECD_SERVICE_TARGET);
}

// What the drafter's thread serves until pause(). The thread is there before any of it, since no thread can be
// started once the process is confined.
class Serving {
 public:
  explicit Serving(CpuDevice& cpu) : lane_{cpu} {
    thread_ = start_thread("specd-drafter", [this] { run(); });
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  void start(Drafter& drafter, const CallShape& shape, std::unique_ptr<SharedRings> rings,
             bool is_shadow) {
    rings_ = std::move(rings);
    replies_ = std::make_unique<RingWriter>(rings_->replies(), rings_->reply_capacity);
    stop_ = false;
    if (is_shadow) {
      reports_ = std::make_unique<ShadowReportWriter>(*replies_, stop_);
      score_ = score_for(drafter, shape, *reports_);
    }
    server_ = std::make_unique<DrafterServer>(
        drafter, shape, lane_, RingReader(rings_->requests(), rings_->request_capacity),
        is_shadow ? nullptr : replies_.get(), score_.get(), reports_.get());
    begins_.release();
  }
  // Ends the sequences. Waits for the call that runs.
  void stop() {
    if (server_ == nullptr) return;
    stop_ = true;
    ring_bell(rings_->requests());
    has_ended_.acquire();
    server_.reset();
    score_.reset();
    reports_.reset();
    replies_.reset();
    rings_.reset();
  }

 private:
  void run() {
    while (true) {
      begins_.acquire();
      server_->run(stop_, never_);
      has_ended_.release();
    }
  }

  ServiceLane lane_;
  std::unique_ptr<SharedRings> rings_;
  std::unique_ptr<RingWriter> replies_;
  std::unique_ptr<ShadowReportWriter> reports_;
  std::unique_ptr<ProposalScore> score_;
  std::unique_ptr<DrafterServer> server_;
  std::atomic<bool> stop_{false};
  const std::atomic<bool> never_{false};
  std::binary_semaphore begins_{0}, has_ended_{0};
  std::thread thread_;  // ends with the process
};

class Runner {
 public:
  Runner() : socket_(FileDescriptor(DrafterChild::kControlFd), DrafterChild::kQuestionBytesMax) {}
  int run();

 private:
  Json answer(const Json& question, FileDescriptor descriptor);
  Result<Json> create(const Json& question);
  Result<Json> activate(const Json& question);
  Status serve(const Json& question, FileDescriptor descriptor);
  Status end();

  ControlSocket socket_;
  DrafterOrder order_;
  std::unique_ptr<CpuDevice> cpu_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<PluginRegistry> registry_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Serving> serving_;
  bool has_ended_ = false;
};

int Runner::run() {
  while (!has_ended_) {
    auto message = socket_.take(true);
    if (!message.ok()) return 1;  // the daemon is gone
    if (message.value().has_value()) {
      const Json reply = answer(message.value()->json, std::move(message.value()->descriptor));
      if (!socket_.send(reply, UINT64_MAX).ok()) return 1;
      continue;
    }
    pollfd question{socket_.fd(), POLLIN, 0};
    if (poll(&question, 1, kFiguresPauseMs) == 0 && drafter_ != nullptr) {
      if (!socket_.send({{"figures", figures_to_json(drafter_->owner())}}, UINT64_MAX).ok())
        return 1;
    }
  }
  return 0;
}

Json Runner::answer(const Json& question, FileDescriptor descriptor) {
  const std::string wanted = question.value("do", "");
  Result<Json> done = Json::object();
  try {
    const auto plain = [](Status status) -> Result<Json> {
      if (status.ok()) return Json::object();
      return status;
    };
    if (wanted == "create") {
      done = create(question);
    } else if (wanted == "activate") {
      done = activate(question);
    } else if (wanted == "serve") {
      done = plain(serve(question, std::move(descriptor)));
    } else if (wanted == "pause") {
      if (serving_ != nullptr) serving_->stop();
    } else {
      done = plain(end());
    }
  } catch (const std::bad_alloc&) {
    done = Status(Code::kExhausted, "no memory left");
  }
  Json reply = done.ok() ? done.value() : Json::object();
  reply["status"] = status_to_json(done.status());
  return reply;
}

Result<Json> Runner::create(const Json& question) {
  SPECD_TRY(order_, order_from_json(question));
  set_log_level(order_.log_level);
  SPECD_TRY(cpu_, CpuDevice::create(order_.isa, 1, order_.bf16));
  services_ =
      std::make_unique<Services>(*cpu_, *cpu_, static_cast<int32_t>(order_.target.vocab_size));
  SPECD_TRY(registry_,
            PluginRegistry::open(order_.registry, make_host(services_.get())).in_field("plugins"));
  for (const auto& [plugin, content] : order_.contents) {
    const auto bundle = registry_->find(plugin);
    if (bundle.has_value() && bundle->content_sha256 != content)
      return Status(Code::kFailedPrecondition, "plugin",
                    "the files of plugin " + plugin + " have changed");
  }
  const specd_target_info target = order_.target_info();
  CreatedDrafter created;
  SPECD_TRY(created.caps,
            registry_->drafter_caps(order_.plugin, order_.factory, order_.config, target));
  // One that needs what is not here is refused by the daemon, which knows for whom.
  if (!order_.describes_only && !needs_the_daemon(created.caps)) {
    SPECD_TRY(drafter_, registry_->make_drafter(order_.plugin, order_.factory, order_.config,
                                                target, order_.instance_name));
    created.caps = drafter_->caps();
    created.has_update = drafter_->has_update();
    for (const UsedPlugin& part : drafter_->parts()) created.parts.push_back(part.id);
  }
  std::vector<std::string> used = created.parts;
  used.push_back(order_.plugin);
  for (const std::string& plugin : used) {
    const auto bundle = registry_->find(plugin);
    if (bundle.has_value()) created.contents[plugin] = bundle->content_sha256;
  }
  return created_to_json(created);
}

Result<Json> Runner::activate(const Json& question) {
  if (drafter_ == nullptr) return Status(Code::kFailedPrecondition, "there is no drafter");
  SPECD_TRY(const specd_drafter_grant grant, grant_from_json(question["grant"]));
  SPECD_OK_OR_RETURN(drafter_->activate(grant));
  serving_ = std::make_unique<Serving>(*cpu_);
  SPECD_OK_OR_RETURN(confine(grant.memory_bytes_max + kFreeBytes));
  return Json{{"parents", drafter_->static_parents()}};
}

Status Runner::serve(const Json& question, FileDescriptor descriptor) {
  if (serving_ == nullptr) return Status(Code::kFailedPrecondition, "the drafter is not active");
  serving_->stop();
  const auto bytes = [&](const char* key) {
    return json_int(question, key, 0, INT64_MAX, "serve");
  };
  SPECD_TRY(const int64_t requests, bytes("request_capacity"));
  SPECD_TRY(const int64_t replies, bytes("reply_capacity"));
  SPECD_TRY(const bool is_shadow, json_bool_or(question, "is_shadow", false, "serve"));
  SPECD_TRY(std::unique_ptr<SharedRings> rings,
            SharedRings::map(std::move(descriptor), static_cast<size_t>(requests),
                             static_cast<size_t>(replies)));
  rings->close_file();
  serving_->start(*drafter_,
                  shape_of(drafter_->caps(), drafter_->grant(), order_.target.vocab_size,
                           order_.target.hidden_size),
                  std::move(rings), is_shadow);
  return Status();
}

Status Runner::end() {
  if (serving_ != nullptr) serving_->stop();
  drafter_.reset();
  has_ended_ = true;
  return Status();
}

}  // namespace

int run_drafter(int parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return 1;  // it is gone already
  // The daemon decides when this process ends, also when a supervisor signals all of the service.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) (void)::signal(signal, SIG_IGN);
  const rlimit none{0, 0};
  (void)setrlimit(RLIMIT_CORE, &none);
  install_last_words();
  // Never destroyed: plugin code may run on threads of its own until the process ends.
  static Runner* const runner = new Runner;
  const int code = runner->run();
  flush_log(kLastWriteLimit);
  expect_end();
  _exit(code);
}

}  // namespace specd
