#include "core/plugin/process/shadow_reports.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

#include "core/base/bad_alloc.h"

namespace specd {
namespace {

enum class What : uint32_t { kCalled = 1, kLost, kRefused, kScored };

struct Report {
  What what = What::kCalled;
  CallKind kind = CallKind::kEnd;  // called
  uint32_t code = 0;               // called: a Code
  uint32_t n = 0;                  // lost, refused
  int32_t n_nodes = 0, n_accepted = 0;
  uint64_t took_ns = 0;
  uint32_t text_bytes = 0;
  uint32_t reserved0 = 0;
};

constexpr std::chrono::milliseconds kPause{1};
// Reports that the step takes at once, for each sequence: no writer may keep it.
constexpr uint32_t kReportsMax = 8;

void write(RingWriter& replies, const std::atomic<bool>& stop, Report report,
           std::string_view text) {
  report.text_bytes = static_cast<uint32_t>(std::min(text.size(), kReplyTextMax));
  std::byte* to = nullptr;
  while ((to = replies.reserve(sizeof(report) + report.text_bytes)) == nullptr) {
    if (stop) return;
    std::this_thread::sleep_for(kPause);
  }
  std::memcpy(to, &report, sizeof(report));
  std::memcpy(to + sizeof(report), text.data(), report.text_bytes);
  replies.publish();
}

void tell(const Report& report, std::string text, const ShadowReportLimits& limits,
          ShadowObserver& observer, const OnCalled& on_answered) {
  switch (report.what) {
    case What::kCalled: {
      const bool is_call = report.kind == CallKind::kBegin || report.kind == CallKind::kUpdate ||
                           report.kind == CallKind::kPropose;
      if (!is_call || report.code > static_cast<uint32_t>(Code::kInternal)) return;
      const Status status =
          report.code == 0 ? Status() : Status(static_cast<Code>(report.code), std::move(text));
      const uint64_t took_ns = std::min(report.took_ns, kTookNsMax);
      if (on_answered) on_answered(report.kind, status, took_ns);
      return observer.called(report.kind, status, took_ns);
    }
    case What::kLost:
      return observer.lost(std::min(report.n, limits.max_batch), text);
    case What::kRefused:
      return observer.refused(std::min(report.n, limits.max_batch), text);
    case What::kScored:
      if (report.n_nodes < 0 || report.n_nodes > limits.node_capacity || report.n_accepted < 0 ||
          report.n_accepted > std::min(report.n_nodes, limits.max_depth))
        return;
      return observer.scored(report.n_nodes, report.n_accepted);
  }
}

}  // namespace

void ShadowReportWriter::called(CallKind kind, const Status& status, uint64_t took_ns) {
  write(replies_, stop_,
        {.what = What::kCalled,
         .kind = kind,
         .code = static_cast<uint32_t>(status.code()),
         .took_ns = took_ns},
        status.message());
}

void ShadowReportWriter::lost(uint32_t n_sequences, const std::string& why) {
  write(replies_, stop_, {.what = What::kLost, .n = n_sequences}, why);
}

void ShadowReportWriter::refused(uint32_t n_proposals, const std::string& defect) {
  write(replies_, stop_, {.what = What::kRefused, .n = n_proposals}, defect);
}

void ShadowReportWriter::scored(int32_t n_nodes, int32_t n_accepted) {
  write(replies_, stop_, {.what = What::kScored, .n_nodes = n_nodes, .n_accepted = n_accepted}, "");
}

void take_shadow_reports(RingReader& replies, const ShadowReportLimits& limits,
                         ShadowObserver& observer, const OnCalled& on_answered) {
  for (uint32_t n = 0; n < kReportsMax * limits.max_batch; ++n) {
    const std::span<const std::byte> bytes = replies.front();
    if (bytes.empty()) return;
    Report report;
    std::memcpy(&report, bytes.data(), std::min(sizeof(report), bytes.size()));
    if (bytes.size() >= sizeof(report) && report.text_bytes <= kReplyTextMax &&
        bytes.size() == sizeof(report) + report.text_bytes) {
      or_drop([&] {
        const auto* const text = reinterpret_cast<const char*>(bytes.data() + sizeof(report));
        tell(report, std::string(text, report.text_bytes), limits, observer, on_answered);
      });
    }
    replies.pop();
  }
}

}  // namespace specd
