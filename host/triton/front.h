// Triton's protocol over HTTP: KServe's, with its `generate` extension
// (github.com/triton-inference-server/server, docs/protocol/).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/engine.h"
#include "host/http/http_message.h"
#include "host/serve/sessions.h"
#include "host/triton/contract.h"

namespace specd::host {

// Must outlive the server that calls it.
class TritonFront {
 public:
  struct Options {
    TritonModel model;
    bool rejects_unknown_names = false;  // else a header of the answer names them
    std::function<bool()> is_live, is_ready;
  };

  explicit TritonFront(Options options) : options_(std::move(options)) {}

  // [control] Once, when the engine is ready, while the server may already call: until then the model is not ready.
  // `engine` and `sessions` must outlive the HTTP server.
  void loaded(Engine& engine, Sessions& sessions);

  // [any thread, each]
  //   GET  /v2, /v2/health/live, /v2/health/ready, /v2/models/stats
  //   GET  /v2/models/{model}[/versions/{version}][/ready|/config|/stats]
  //   POST /v2/models/{model}[/versions/{version}]/generate|generate_stream|infer
  //   POST /v2/repository/index
  std::vector<HttpRoute> routes() const;

 private:
  struct Served;
  const Options options_;
  std::shared_ptr<const Served> made_;
  std::atomic<const Served*> served_{nullptr};  // made_, once it is complete
};

// Whether errors on this path are Triton's.
bool is_triton_path(std::string_view path);
// {"error": text}, as Triton's clients read it.
HttpAnswer triton_error(const Status& status);
HttpAnswer triton_refusal(const HttpRefusal& why);

}  // namespace specd::host
