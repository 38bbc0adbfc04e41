// The live page: what the daemon does now, in a browser.
//
//   browser ── GET / ──> the page, one file that loads nothing else
//           ── GET /page/state, again and again ──> the engine's figures and the last draft trees, as JSON
//           ── POST /page/follow/{number} ──> whose trees
//
// The page asks for the state instead of getting a stream: then a slow or hidden page asks less often by itself,
// nothing is kept for a viewer, none holds a connection that the server could not give to an API client, and while
// nobody asks nothing is made.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine.h"
#include "host/http/http_message.h"

namespace specd::host {

// page.html.
extern const std::string_view kPageHtml;

// Must outlive the server that calls it.
class PageFront {
 public:
  struct Options {
    bool needs_key = false;  // the page asks its user for it before it asks for the state
    int32_t sequences_max = 0, queue_max = 0;
  };
  // All who ask within this time get the same state.
  static constexpr std::chrono::milliseconds kStateAge{100};

  explicit PageFront(const Options& options);

  // [control] Once, when the engine is ready; until then the state is answered by 503. `engine` must outlive the HTTP
  // server.
  void loaded(Engine& engine) { engine_ = &engine; }

  // [any thread, each] They are for those who may use the API: the state has parts of everybody's texts.
  //   GET  /                      the page, also while loading
  //   GET  /page/state            see state.h
  //   POST /page/follow/{number}  204; 400 without a number. 0 = the newest that drafts
  std::vector<HttpRoute> routes();

 private:
  HttpAnswer state();
  HttpAnswer follow(std::string_view number);

  const Options options_;
  HttpAnswer page_;
  std::atomic<Engine*> engine_{nullptr};
  Mutex mutex_;
  std::string state_ SPECD_GUARDED_BY(mutex_);  // the last one
  uint64_t made_ns_ SPECD_GUARDED_BY(mutex_) = 0;
};

}  // namespace specd::host
