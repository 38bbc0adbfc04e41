#include "core/ranks/graphs.h"

#include <algorithm>
#include <optional>

#include "core/base/log.h"

namespace specd {

Status Graphs::submit(const StepShape& shape, std::span<StreamPart* const> parts,
                      const Work& work) {
  while (shapes_.size() >= kShapesMax || n_graphs_ >= kGraphsMax) forget_oldest();
  const bool is_new = !shapes_.contains(shape);
  Known& known = shapes_[shape];
  known.last_used = ++n_submitted_;
  known.blocked = known.blocked || std::any_of(parts.begin(), parts.end(), [this](StreamPart* p) {
                    return !p->may_capture() || uncapturable_.contains(p->submitter());
                  });
  std::optional<std::vector<uint64_t>> layout;
  if (!is_new && !known.blocked && known.records.size() == parts.size() &&
      n_failures_ < kFailuresMax) {
    layout.emplace();
    for (size_t i = 0; layout.has_value() && i < parts.size(); ++i) {
      const auto each = parts[i]->reserve(*known.records[i]);
      if (each.has_value()) {
        layout->insert(layout->end(), each->begin(), each->end());
      } else {
        layout.reset();
      }
    }
  }
  if (!layout.has_value()) {
    work.upload();
    known.records.clear();
    const bool noted = submit_parts(parts, known.records, false);
    if (!noted) known.records.clear();
    work.announce();
    if (!work.forward(false)) known.blocked = true;
    return Status();
  }

  Graph& graph = known.graphs[*layout];
  if (graph.id < 0) return capture(known, graph, parts, work);
  for (size_t i = 0; i < parts.size(); ++i) parts[i]->repeat(*graph.records[i]);
  work.announce();
  device_.launch(graph.id);
  return Status();
}

// False when a part failed or cannot be repeated.
bool Graphs::submit_parts(std::span<StreamPart* const> parts, Records& records, bool capturing) {
  bool ok = true;
  records.clear();
  for (StreamPart* part : parts) {
    records.push_back(part->submit(capturing));
    ok = ok && records.back() != nullptr;
  }
  return ok;
}

Status Graphs::capture(Known& known, Graph& graph, std::span<StreamPart* const> parts,
                       const Work& work) {
  SPECD_OK_OR_RETURN(device_.begin_capture());
  if (lead_ != nullptr) lead_->hold();
  bool noted = false, repeatable = false;
  try {
    work.upload();
    noted = submit_parts(parts, graph.records, true);
    work.announce();
    repeatable = work.forward(true);
  } catch (...) {
    // The stream must not go on capturing.
    release_commands(false);
    const Result<int32_t> unused = device_.end_capture();
    if (unused.ok() && device_.synchronize().ok()) device_.release_graph(unused.value());
    throw;
  }
  const Result<int32_t> captured = device_.end_capture();
  const bool commands_repeat = release_commands(captured.ok());
  if (!captured.ok()) {
    // None of the captured work has run. The step is submitted without the parts' work, and their
    // submitters are not captured again. Failures without parts are counted.
    for (StreamPart* part : parts) uncapturable_.insert(part->submitter());
    n_failures_ += parts.empty() ? 1 : 0;
    log(LogLevel::kWarn,
        "a step could not be captured; steps of its shape run without a graph from now on: " +
            captured.status().to_string());
    known.blocked = true;
    for (StreamPart* part : parts) part->drop();
    work.upload();
    work.announce();
    work.forward(false);
    return Status();
  }
  graph.id = captured.value();
  ++n_graphs_;
  device_.launch(graph.id);
  bool same = noted && repeatable && commands_repeat;
  for (size_t i = 0; same && i < parts.size(); ++i) {
    same = parts[i]->repeats(*known.records[i], *graph.records[i]);
  }
  if (!same) known.blocked = true;
  return Status();
}

void Graphs::forget_oldest() {
  const auto oldest = std::min_element(shapes_.begin(), shapes_.end(), [](auto& a, auto& b) {
    return a.second.last_used < b.second.last_used;
  });
  release(oldest->second);
  shapes_.erase(oldest);
}

void Graphs::release(Known& known) {
  for (auto& [layout, graph] : known.graphs) {
    if (graph.id < 0) continue;
    device_.release_graph(graph.id);
    --n_graphs_;
  }
}

void Graphs::clear() {
  for (auto& [shape, known] : shapes_) release(known);
  shapes_.clear();
}

}  // namespace specd
