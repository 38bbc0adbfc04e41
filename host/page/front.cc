#include "host/page/front.h"

#include <array>
#include <charconv>
#include <utility>

#include "core/base/clock.h"
#include "core/base/quote.h"
#include "core/base/sha256.h"
#include "host/base/out_of_memory.h"
#include "host/openai/error_answer.h"
#include "host/page/state.h"

namespace specd::host {
namespace {

std::string base64(const Sha256Digest& bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    unsigned group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (i + k < bytes.size() ? bytes[i + k] : 0U);
    for (size_t k = 0; k < 4; ++k)
      out += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// "'sha256-..'" of what is between the tags `<name>` and `</name>` of the page.
std::string hash_of(std::string_view page, const std::string& name) {
  const std::string open = "<" + name + ">";
  const size_t first = page.find(open) + open.size();
  return "'sha256-" + base64(sha256(page.substr(first, page.find("</" + name + ">") - first))) +
         "'";
}

// Texts of users are on the page: nothing but its own script and style runs there, and nothing is loaded from elsewhere.
HttpFields guards(std::string policy) {
  return {{"content-security-policy", std::move(policy)},
          {"cross-origin-resource-policy", "same-origin"},
          {"referrer-policy", "no-referrer"},
          {"x-content-type-options", "nosniff"}};
}

}  // namespace

PageFront::PageFront(const Options& options) : options_(options) {
  page_.content_type = "text/html; charset=utf-8";
  page_.body = kPageHtml;
  constexpr std::string_view kAsks = "data-key=\"no\"";
  if (options.needs_key)
    page_.body.replace(page_.body.find(kAsks), kAsks.size(), "data-key=\"yes\"");
  page_.headers =
      guards("default-src 'none'; script-src " + hash_of(kPageHtml, "script") + "; style-src " +
             hash_of(kPageHtml, "style") +
             "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
             "frame-ancestors 'none'");
}

HttpAnswer PageFront::state() {
  Engine* const engine = engine_;
  if (engine == nullptr)
    return error_answer(Status(Code::kUnavailable, "the model is being loaded"));
  const MutexLock lock(mutex_);
  const uint64_t now = now_ns();
  constexpr std::chrono::nanoseconds kAge = kStateAge;
  if (state_.empty() || now - made_ns_ >= static_cast<uint64_t>(kAge.count())) {
    state_ = page_state(*engine,
                        {.sequences_max = options_.sequences_max, .queue_max = options_.queue_max});
    made_ns_ = now;
  }
  return {
      .content_type = "application/json", .body = state_, .headers = guards("default-src 'none'")};
}

HttpAnswer PageFront::follow(std::string_view number) {
  Engine* const engine = engine_;
  if (engine == nullptr)
    return error_answer(Status(Code::kUnavailable, "the model is being loaded"));
  uint64_t value = 0;
  const char* const end = number.data() + number.size();
  const auto [at, error] = std::from_chars(number.data(), end, value);
  if (error != std::errc() || at != end)
    return error_answer(Status(Code::kInvalidArgument, "number",
                               "expected the number of a request, found " + quote(number)));
  engine->follow_drafts(value);
  return {.status = 204};
}

std::vector<HttpRoute> PageFront::routes() {
  // Without memory for an answer the reply is let go, and the connection ends.
  const auto answer = [](const std::shared_ptr<HttpReply>& reply, auto make) {
    (void)within_memory([&]() -> Status {
      reply->answer(make());
      return Status();
    });
  };
  return {{"GET", "/",
           [this, answer](const HttpRequest&, const auto& reply) {
             answer(reply, [this] { return page_; });
           }},
          {"GET", "/page/state",
           [this, answer](const HttpRequest&, const auto& reply) {
             answer(reply, [this] { return state(); });
           }},
          {"POST", "/page/follow/{number}",
           [this, answer](const HttpRequest& request, const auto& reply) {
             answer(reply, [&] { return follow(request.parameter("number")); });
           }}};
}

}  // namespace specd::host
