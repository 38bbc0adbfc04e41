// What OpenAI's clients, and vLLM's, ask of a server over HTTP.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/engine.h"
#include "host/http/http_message.h"
#include "host/serve/sessions.h"

namespace specd::host {

// Must outlive the server that calls it.
class OpenAiFront {
 public:
  struct Options {
    std::string model;  // its name and folder
    std::string model_folder;
    int64_t choices_max = 0;              // texts of one request
    bool rejects_unknown_fields = false;  // else a header of the answer names them
  };

  explicit OpenAiFront(Options options) : options_(std::move(options)) {}

  // [control] Once, when the engine is ready, while the server may already call: until then every
  // route but /version answers 503. `engine` and `sessions` must outlive the HTTP server.
  void loaded(Engine& engine, Sessions& sessions);

  // [any thread, each]
  //   GET  /v1/models, /v1/models/{id}, /version, /tokenizer_info
  //   POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize
  std::vector<HttpRoute> routes() const;

 private:
  struct Served;
  const Options options_;
  std::shared_ptr<const Served> made_;
  std::atomic<const Served*> served_{nullptr};  // made_, once it is complete
};

}  // namespace specd::host
