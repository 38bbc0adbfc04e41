#include "core/exec/step_graphs.h"

#include <algorithm>
#include <optional>

#include "core/base/log.h"

namespace specd {

Status StepGraphs::submit(const Shape& shape, const std::vector<Proposer>& proposers,
                          const std::function<void()>& columns,
                          const std::function<void()>& forward) {
  while (shapes_.size() >= kShapesMax || n_graphs_ >= kGraphsMax) forget_oldest();
  const bool is_new = !shapes_.contains(shape);
  Known& known = shapes_[shape];
  known.last_used = ++n_submitted_;
  known.blocked =
      known.blocked || std::any_of(proposers.begin(), proposers.end(), [this](const Proposer& p) {
        return !p.may_capture || uncapturable_.contains(p.route);
      });
  std::optional<std::vector<uint64_t>> layout;
  if (!is_new && !known.blocked && known.records.size() == proposers.size() &&
      n_failures_ < kFailuresMax) {
    layout.emplace();
    for (size_t i = 0; layout.has_value() && i < proposers.size(); ++i) {
      const auto each = models_.reserve(known.records[i], *proposers[i].call);
      if (each.has_value()) {
        layout->insert(layout->end(), each->begin(), each->end());
      } else {
        layout.reset();
      }
    }
  }
  if (!layout.has_value()) {
    columns();
    std::vector<ModelRecord> records;
    const bool proposed = propose(proposers, records, false);
    const bool asked = run_forward(forward, false);
    if (asked) known.blocked = true;
    known.records.clear();  // without a record there is nothing to reserve by
    if (proposed) known.records = std::move(records);
    return Status();
  }

  Graph& graph = known.graphs[*layout];
  if (graph.id < 0) return capture(known, graph, proposers, columns, forward);
  for (size_t i = 0; i < proposers.size(); ++i) {
    models_.repeat(graph.records[i], *proposers[i].call);
  }
  device_.launch(graph.id);
  return Status();
}

bool StepGraphs::propose(const std::vector<Proposer>& proposers, std::vector<ModelRecord>& records,
                         bool capturing) {
  bool ok = true;
  records.assign(proposers.size(), ModelRecord());
  for (size_t i = 0; i < proposers.size(); ++i) {
    models_.watch(&records[i], capturing);
    ok = proposers[i].propose() && ok;
    models_.watch(nullptr, false);
  }
  return ok;
}

// True when somebody, a verifier, has asked models for something: that is not done again.
bool StepGraphs::run_forward(const std::function<void()>& forward, bool capturing) {
  ModelRecord record;
  models_.watch(&record, capturing);
  forward();
  models_.watch(nullptr, false);
  return !record.calls.empty() || !record.repeatable;
}

Status StepGraphs::capture(Known& known, Graph& graph, const std::vector<Proposer>& proposers,
                           const std::function<void()>& columns,
                           const std::function<void()>& forward) {
  SPECD_OK_OR_RETURN(device_.begin_capture());
  columns();
  const bool proposed = propose(proposers, graph.records, true);
  const bool asked = run_forward(forward, true);
  const Result<int32_t> captured = device_.end_capture();
  if (!captured.ok()) {
    // Nothing of it has run: the step goes without these drafts, and those who made them, or every
    // step when nobody did, without graphs.
    for (const Proposer& each : proposers) uncapturable_.insert(each.route);
    n_failures_ += proposers.empty() ? 1 : 0;
    log(LogLevel::kWarn,
        "a step could not be captured and is submitted piece by piece from now on: " +
            captured.status().to_string());
    known.blocked = true;
    for (const Proposer& each : proposers) {
      for (uint32_t s = 0; s < each.call->batch->n_seqs; ++s) {
        models_.end(each.call->batch->seq_id[s]);
      }
    }
    columns();
    forward();
    return Status();
  }
  graph.id = captured.value();
  ++n_graphs_;
  device_.launch(graph.id);
  // What was captured must be what it does every time, and what reserve() has looked at.
  bool alike = proposed && !asked;
  for (size_t i = 0; alike && i < proposers.size(); ++i) {
    const std::vector<ModelRecord::Call>&was = known.records[i].calls, &is = graph.records[i].calls;
    alike = proposers[i].is_well() && graph.records[i].repeatable &&
            std::equal(was.begin(), was.end(), is.begin(), is.end(), ModelRecord::alike);
  }
  if (!alike) known.blocked = true;
  return Status();
}

void StepGraphs::forget_oldest() {
  const auto oldest = std::min_element(shapes_.begin(), shapes_.end(), [](auto& a, auto& b) {
    return a.second.last_used < b.second.last_used;
  });
  release(oldest->second);
  shapes_.erase(oldest);
}

void StepGraphs::release(Known& known) {
  for (auto& [layout, graph] : known.graphs) {
    if (graph.id < 0) continue;
    device_.release_graph(graph.id);
    --n_graphs_;
  }
}

void StepGraphs::clear() {
  for (auto& [shape, known] : shapes_) release(known);
  shapes_.clear();
}

}  // namespace specd
