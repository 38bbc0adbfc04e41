#include "core/exec/step_calls.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <utility>

#include "core/base/clock.h"

namespace specd {

uint32_t StepRunner::update_rows_max(uint32_t max_depth) { return std::max(max_depth + 1, 16u); }

StepRunner::StepRunner(Device& device, Transformer& model, KvStore& kv, ModelService& draft_models)
    : device_(device),
      model_(model),
      kv_(kv),
      draft_models_(draft_models),
      graphs_(device, draft_models) {}

StepRunner::~StepRunner() = default;

Result<std::unique_ptr<StepRunner>> StepRunner::create(Device& device, Transformer& model,
                                                       KvStore& kv, ModelService& draft_models) {
  std::unique_ptr<StepRunner> runner(new StepRunner(device, model, kv, draft_models));
  constexpr uint64_t kFirstBytes = uint64_t{1} << 20;  // grows with the steps
  SPECD_TRY(runner->staging_, Staging::create(device, kFirstBytes, "columns of a step"));
  SPECD_TRY(runner->behind_, Staging::create(device, kFirstBytes, "columns between steps"));
  return runner;
}

Result<StepCounters> StepRunner::run(const StepPlan& plan, std::vector<ActiveSequence>& running,
                                     const std::function<void()>& meanwhile) {
  ++step_id_;
  StepCounters counters;
  bool called = device_.is_host();
  const auto call_meanwhile = [&] {
    if (!std::exchange(called, true)) meanwhile();
  };
  if (plan.items.empty()) {
    call_meanwhile();
    return counters;
  }
  const uint64_t start_ns = now_ns();

  Members members, drafting, routed;
  const auto ended = [](const ActiveSequence* member) {
    return member->request->must_end(now_ns());
  };
  for (const PlanItem& item : plan.items) {
    ActiveSequence& sequence = running[at(item.sequence)];
    sequence.n_rows = item.n_rows;
    sequence.wants_token = item.wants_token;
    sequence.draft_nodes = item.draft_nodes;
    sequence.tree.clear();
    sequence.accepted.clear();
    sequence.n_taken = 0;
    members.push_back(&sequence);
  }
  begin_new(running);
  for (ActiveSequence* member : members) {
    if (member->drafts() && member->draft_nodes > 0 && !ended(member)) drafting.push_back(member);
  }
  if (const Status room = make_room(members, drafting); !room.ok()) {
    if (room.code() != Code::kExhausted) return room;
    for (ActiveSequence* member : members) {
      if (!ended(member)) member->request->fail(FinishReason::kError, room);
    }
    call_meanwhile();
    return counters;
  }
  by_route(drafting, [&](LiveRoute& route, const Members& group) {
    if (route.on_device()) return;
    call_meanwhile();  // this may take its time on the host
    Proposal proposal(route, group, step_id_);
    prepare(proposal);
    if (propose(proposal)) take(proposal);
  });
  std::erase_if(members, ended);
  if (members.empty()) {
    call_meanwhile();
    return counters;
  }
  // Those on the device come last: from here on the members stay the same.
  std::erase_if(drafting, [&](ActiveSequence* member) {
    return !member->drafts() || std::find(members.begin(), members.end(), member) == members.end();
  });
  proposals_.clear();
  by_route(drafting, [&](LiveRoute& route, const Members& group) {
    if (!route.on_device()) return;
    prepare(proposals_.emplace_back(route, group, step_id_));
    expect_tree(proposals_.back());
  });
  build_rows(members);
  SPECD_OK_OR_RETURN(compute(members, call_meanwhile));
  for (Proposal& proposal : proposals_) {
    take(proposal);
    if (proposal.verification.has_value() && !proposal.failed) judge(*proposal.verification);
  }
  proposals_.clear();
  for (ActiveSequence* member : members) {
    if (!ended(member) && member->route != nullptr && member->wants_token &&
        !member->route->verifies_on_device) {
      routed.push_back(member);
    }
  }
  Status verified;
  by_route(routed, [&](LiveRoute& route, const Members& group) {
    if (verified.ok()) verified = verify(route, group);
  });
  SPECD_OK_OR_RETURN(verified);
  counters.rows = static_cast<uint64_t>(rows_.n_rows());
  SPECD_TRY(counters.kv_moves, commit(members));

  Members updating;
  for (ActiveSequence* member : members) {
    counters.tokens += static_cast<uint64_t>(member->n_taken);
    if (member->request->finish() == FinishReason::kNone && member->drafts() &&
        member->route->drafter->has_update()) {
      updating.push_back(member);
    }
  }
  Status updated;
  by_route(updating, [&](LiveRoute& route, const Members& group) {
    if (updated.ok()) updated = update(route, group);
  });
  SPECD_OK_OR_RETURN(updated);
  metrics_.step_time.record(now_ns() - start_ns);
  return counters;
}

// As much as the step can need at most. The stream has passed what the last one used.
Status StepRunner::make_room(const Members& members, const Members& drafting) {
  int64_t rows = 0, nodes = 0, pages = 0;
  size_t seen = 0;
  for (const ActiveSequence* member : members) {
    rows += member->n_rows;
    seen += member->request->seen().size();
    pages += static_cast<int64_t>(member->table.pages.size());
  }
  uint64_t bytes = 0;
  const auto columns = [](int64_t n) { return Staging::bytes_of<int32_t>(static_cast<size_t>(n)); };
  by_route(drafting, [&](LiveRoute& route, const Members& group) {
    const auto n = static_cast<int64_t>(group.size());
    const int64_t cells = n * route.drafter->grant().max_nodes;
    // Inputs, slots, counts; tokens, parents, flags; where tokens go; the verdict.
    bytes += 5 * columns(n) + 5 * columns(cells);
    if (route.verifies_on_device) {
      bytes +=
          5 * columns(n) + 3 * columns(cells + n) + columns(n * route.drafter->grant().max_depth);
    }
    for (const ActiveSequence* member : group) nodes += member->draft_nodes;
  });
  rows += nodes;
  bytes += ForwardRows::staging_bytes(rows, pages, nodes * (SPECD_MAX_TREE_DEPTH + 1)) +
           Staging::bytes_of<kernels::DrawRow>(static_cast<size_t>(rows)) * 2 + 2 * columns(rows);
  if (seen > 0) {
    bytes += Staging::bytes_of<kernels::PenaltyRow>(static_cast<size_t>(rows)) +
             Staging::bytes_of<kernels::PenaltySeen>(std::bit_ceil(seen)) +
             columns(static_cast<int64_t>(
                 std::bit_ceil(static_cast<uint64_t>(nodes) * SPECD_MAX_TREE_DEPTH)));
  }
  if (!device_.is_host()) {
    bytes += model_.n_taps() * columns(rows * model_.config().hidden_size);
  }
  SPECD_TRY(const bool moved, staging_.reserve(bytes));
  if (moved) graphs_.clear();
  // What comes behind, each alone: verdicts, moves, updates.
  uint64_t behind = 2 * columns(static_cast<int64_t>(members.size()) * SPECD_MAX_TREE_DEPTH);
  Members routed;
  std::copy_if(members.begin(), members.end(), std::back_inserter(routed),
               [](const ActiveSequence* member) { return !(member->route == nullptr); });
  by_route(routed, [&](LiveRoute& route, const Members& group) {
    const specd_drafter_grant& grant = route.drafter->grant();
    const auto n = static_cast<int64_t>(group.size());
    const int64_t cells = n * grant.max_nodes;
    const uint64_t verdict = 9 * columns(n) + 5 * columns(cells + n) + columns(n * grant.max_depth);
    const uint64_t update = 4 * columns(n) + 4 * columns(n * grant.max_rows) + columns(cells);
    behind = std::max({behind, verdict, update});
  });
  if (behind <= behind_.capacity()) return Status();
  SPECD_OK_OR_RETURN(device_.synchronize());
  return behind_.reserve(behind).status();
}

void StepRunner::build_rows(const Members& members) {
  rows_.clear();
  tap_row_of_.clear();
  std::vector<int32_t> path;
  const auto add_row = [&](const ActiveSequence& member, int32_t token, int32_t position,
                           int32_t slot, int32_t span, int32_t table) {
    const bool tapped =
        member.drafts() && (member.route->drafter->grant().needs & SPECD_NEED_HIDDEN) != 0;
    tap_row_of_.push_back(tapped ? static_cast<int32_t>(rows_.tap_rows.size()) : -1);
    if (tapped) rows_.tap_rows.push_back(rows_.n_rows());
    rows_.token.push_back(token);
    rows_.position.push_back(position);
    rows_.slot.push_back(member.table.physical(slot));
    rows_.span.push_back(span);
    rows_.table.push_back(table);
    rows_.tail_begin.push_back(static_cast<int32_t>(rows_.tail.size()));
  };
  const auto want_logits = [&] {
    rows_.logits_rows.push_back(rows_.n_rows() - 1);
    return static_cast<int32_t>(rows_.logits_rows.size()) - 1;
  };

  for (ActiveSequence* member : members) {
    const std::vector<int32_t>& tokens = member->request->tokens();
    const int32_t table = static_cast<int32_t>(rows_.pages.size());
    rows_.pages.insert(rows_.pages.end(), member->table.pages.begin(), member->table.pages.end());
    member->first_row = rows_.n_rows();
    for (int32_t i = 0; i < member->n_rows; ++i) {
      const int32_t position = member->n_computed + i;
      add_row(*member, tokens[at(position)], position, position, position + 1, table);
    }
    member->logits_of_node.clear();
    if (!member->wants_token) continue;
    member->first_logits = want_logits();

    const DraftTree& tree = member->tree;
    const int32_t root = member->n_computed;
    for (int32_t node = 0; node < tree.size(); ++node) {
      const int32_t position = root + tree.depth[at(node)];
      if (tree.in_place(node)) {
        add_row(*member, tree.token[at(node)], position, position, position + 1, table);
      } else {
        add_row(*member, tree.token[at(node)], position, root + 1 + node, root + 1, table);
        tree.path_to(node, path);
        for (const int32_t each : path)
          rows_.tail.push_back(member->table.physical(root + 1 + each));
      }
      const bool silent = (tree.flags[at(node)] & SPECD_NODE_PROBE) != 0 &&
                          (tree.flags[at(node)] & SPECD_NODE_WANT_TOP1) == 0;
      member->logits_of_node.push_back(silent ? -1 : want_logits());
    }
  }
}

// What every row's text holds, for the rows that want logits; nothing when nobody penalizes.
StepRunner::Penalties StepRunner::stage_penalties(const Members& members) {
  std::vector<kernels::PenaltyRow> row(rows_.logits_rows.size());
  std::vector<kernels::PenaltySeen> seen;
  std::vector<int32_t> path, nodes;
  const auto end = [](const auto& column) { return static_cast<int32_t>(column.size()); };
  for (const ActiveSequence* member : members) {
    const SamplingParams& params = member->request->sampling();
    if (!member->wants_token || !params.penalizes()) continue;
    kernels::PenaltyRow each{.repetition = params.repetition_penalty,
                             .frequency = params.frequency_penalty,
                             .presence = params.presence_penalty,
                             .seen_begin = end(seen)};
    const std::vector<kernels::PenaltySeen>& own = member->request->seen();
    seen.insert(seen.end(), own.begin(), own.end());
    each.seen_end = end(seen);
    row[at(member->first_logits)] = each;
    for (int32_t node = 0; node < member->tree.size(); ++node) {
      if (member->logits_of_node[at(node)] < 0) continue;
      member->tree.path_to(node, nodes);
      each.path_begin = end(path);
      for (const int32_t on_path : nodes)
        path.push_back(member->first_row + member->n_rows + on_path);
      each.path_end = end(path);
      row[at(member->logits_of_node[at(node)])] = each;
    }
  }
  if (seen.empty()) return {};
  // They grow with the text, see ForwardRows::stage().
  seen.resize(std::bit_ceil(seen.size()));
  path.resize(std::bit_ceil(path.size()));
  return {staging_.add(row), staging_.add(seen), staging_.add(path)};
}

// Submits what the device has to do for this step, does what can be done meanwhile, and waits.
Status StepRunner::compute(const Members& members, const std::function<void()>& meanwhile) {
  draw_rows_.assign(rows_.logits_rows.size(), {});
  bool wants_top1 = false;
  for (const ActiveSequence* member : members) {
    if (!member->wants_token) continue;
    const SamplingParams& params = member->request->sampling();
    const auto fill = [&](int32_t logits) {
      draw_rows_[at(logits)] = {.temperature = params.temperature,
                                .top_p = params.top_p,
                                .min_p = params.min_p,
                                .top_k = params.top_k,
                                .position = rows_.position[at(rows_.logits_rows[at(logits)])] + 1,
                                .seed = params.seed,
                                .greedy = params.temperature == 0};
    };
    fill(member->first_logits);
    for (const int32_t logits : member->logits_of_node) {
      if (logits >= 0) fill(logits);
    }
    for (const int32_t flags : member->tree.flags) {
      wants_top1 = wants_top1 || (flags & SPECD_NODE_WANT_TOP1) != 0;
    }
  }
  struct Pick {
    Column<int32_t> source, from, to;
  };
  std::vector<Pick> picks;
  for (const Proposal& proposal : proposals_) {
    std::vector<int32_t> from, to;
    for (size_t s = 0; s < proposal.members.size(); ++s) {
      const ActiveSequence& member = *proposal.members[s];
      for (int32_t node = 0; node < member.tree.size(); ++node) {
        from.push_back(static_cast<int32_t>(static_cast<int64_t>(s) * proposal.capacity()) + node);
        to.push_back(member.first_row + member.n_rows + node);
      }
    }
    picks.push_back({proposal.token, staging_.add(from), staging_.add(to)});
  }
  for (Proposal& proposal : proposals_) {
    if (proposal.route.verifies_on_device) prepare_verdict(proposal);
  }
  const ForwardColumns columns = rows_.stage(staging_);
  const auto draws = staging_.add(draw_rows_);
  const std::vector<kernels::DrawRow> greedy(wants_top1 ? draw_rows_.size() : 0);
  const auto greedy_draws = staging_.add(greedy);
  const Penalties penalties = stage_penalties(members);
  const uint64_t end_of_inputs = staging_.used();
  const auto tokens = staging_.add<int32_t>(draw_rows_.size());
  const auto top1 = staging_.add<int32_t>(greedy.size());
  const auto width = static_cast<size_t>(model_.config().hidden_size);
  std::vector<Column<float>> taps;
  for (size_t i = 0; i < model_.n_taps() && !device_.is_host(); ++i) {
    taps.push_back(staging_.add<float>(rows_.tap_rows.size() * width));
  }

  const uint64_t start_ns = now_ns();
  const auto upload = [&] { staging_.upload_first(end_of_inputs); };  // twice if a capture fails
  const auto forward = [&] {
    const kernels::Ops& ops = device_.ops();
    for (const Pick& pick : picks) {
      ops.pick_tokens(device_.stream(), {.source = pick.source.device,
                                         .from = pick.from.device,
                                         .target = columns.token.device,
                                         .to = pick.to.device,
                                         .n = static_cast<int32_t>(pick.from.n),
                                         .vocab = model_.config().vocab_size,
                                         .otherwise = 0});
      staging_.download(pick.source);
    }
    model_.forward(columns, kv_);
    const auto draw = [&](const Column<kernels::DrawRow>& rows, const Column<int32_t>& out) {
      if (rows.n == 0) return;
      ops.draw(device_.stream(), {.logits = model_.logits(),
                                  .row = rows.device,
                                  .token = out.device,
                                  .n_rows = static_cast<int32_t>(rows.n),
                                  .vocab = model_.config().vocab_size});
      staging_.download(out);
    };
    draw(greedy_draws, top1);
    if (penalties.row.n > 0) {
      ops.penalize(device_.stream(), {.logits = model_.logits(),
                                      .row = penalties.row.device,
                                      .seen = penalties.seen.device,
                                      .path = penalties.path.device,
                                      .token = columns.token.device,
                                      .n_rows = static_cast<int32_t>(penalties.row.n),
                                      .vocab = model_.config().vocab_size});
    }
    draw(draws, tokens);
    for (Proposal& proposal : proposals_) {
      if (proposal.verification.has_value()) submit_verdict(*proposal.verification, tokens);
    }
    for (size_t i = 0; i < taps.size(); ++i) {
      device_.copy_out(taps[i].host, model_.tap(i), taps[i].bytes());
    }
  };
  if (device_.is_host()) {
    forward();
  } else {
    // All that decides the arguments of what is submitted: how many, and where they lie.
    StepGraphs::Shape shape{static_cast<uint64_t>(columns.n_rows),
                            static_cast<uint64_t>(columns.n_logits),
                            static_cast<uint64_t>(columns.n_taps),
                            model_.n_taps(),
                            greedy.size(),
                            penalties.row.n};
    const auto lies_at = [&](const void* column) {
      shape.push_back(reinterpret_cast<uintptr_t>(column));
    };
    lies_at(columns.token.device);
    lies_at(columns.pages);
    lies_at(columns.tail);
    lies_at(columns.logits_rows);
    lies_at(draws.device);
    lies_at(penalties.seen.device);
    lies_at(penalties.path.device);
    lies_at(tokens.device);
    std::vector<StepGraphs::Proposer> proposers;
    for (Proposal& proposal : proposals_) {
      shape.push_back(proposal.route.number);
      lies_at(proposal.token.device);
      if (proposal.verification.has_value()) lies_at(proposal.verification->row_token.device);
      shape.insert(shape.end(), proposal.given.begin(), proposal.given.end());
      proposal.group.call.committed = &proposal.group.committed;
      proposers.push_back({.route = proposal.route.number,
                           .call = &proposal.group.call,
                           .may_capture = proposal.route.may_capture(),
                           .propose = [this, &proposal] { return propose(proposal); },
                           .is_well = [&proposal] { return proposal.is_well(); }});
    }
    SPECD_OK_OR_RETURN(graphs_.submit(shape, proposers, upload, forward));
    meanwhile();
    SPECD_OK_OR_RETURN(device_.synchronize());
    draft_models_.passed();
    draft_models_.step_is_over();
    behind_.clear();
  }
  const uint64_t ns = now_ns() - start_ns;
  metrics_.forward_ns += ns;
  const double ns_per_row = static_cast<double>(ns) / rows_.n_rows();
  for (const ActiveSequence* member : members) {
    if (member->route == nullptr) continue;
    const int32_t rows = member->n_rows + member->tree.size();
    member->route->counters.forward_ns += static_cast<uint64_t>(ns_per_row * rows);
  }
  row_token_.assign(tokens.host, tokens.host + tokens.n);
  top1_.assign(top1.host, top1.host + top1.n);
  tap_rows_.clear();
  for (size_t i = 0; i < model_.n_taps(); ++i) {
    tap_rows_.push_back(device_.is_host() ? model_.tap(i) : taps[i].host);
  }
  return Status();
}

Result<uint64_t> StepRunner::commit(const Members& members) {
  std::vector<int32_t> from, to, tokens;
  for (ActiveSequence* member : members) {
    const int32_t root = member->n_computed;
    member->n_computed += member->n_rows;
    if (!member->wants_token) continue;

    const int32_t next = row_token_[at(member->first_logits)];
    const bool ended = member->request->finish() != FinishReason::kNone;
    if (ended) {
      member->accepted.clear();
    } else if (next < 0) {
      member->request->fail(
          FinishReason::kError,
          Status(Code::kInternal, "the model's logits at position " +
                                      std::to_string(member->n_computed) + " are not finite"));
      member->accepted.clear();
    } else {
      tokens.clear();
      for (const int32_t node : member->accepted) tokens.push_back(member->tree.token[at(node)]);
      tokens.push_back(next);
      member->n_taken = member->request->append(tokens.data(), static_cast<int32_t>(tokens.size()));
      plan_compaction(member->table, root, member->accepted, from, to);
      member->n_computed += static_cast<int32_t>(member->accepted.size());
    }

    Usage& usage = member->request->usage;
    const auto probes = std::count_if(member->tree.flags.begin(), member->tree.flags.end(),
                                      [](int32_t f) { return (f & SPECD_NODE_PROBE) != 0; });
    const int64_t drafted = member->tree.size();
    const int64_t passed = static_cast<int64_t>(member->accepted.size());
    const int64_t kept = std::min<int64_t>(passed, member->n_taken);
    const int64_t discarded = ended ? drafted : probes + (passed - kept);
    const int64_t rejected = drafted - discarded - kept;
    usage.steps += ended ? 0 : 1;
    usage.draft_tokens += drafted;
    usage.accepted_tokens += kept;
    usage.rejected_tokens += rejected;
    usage.discarded_tokens += discarded;
    if (member->route == nullptr) continue;
    RouteCounters& counters = member->route->counters;
    counters.steps += ended ? 0 : 1;
    if (drafted > 0) ++counters.drafts;
    for (int64_t i = 0; i < kept; ++i) ++counters.accepted_at[static_cast<size_t>(i)];
    counters.drafted += static_cast<uint64_t>(drafted);
    counters.accepted += static_cast<uint64_t>(kept);
    counters.rejected += static_cast<uint64_t>(rejected);
    counters.discarded += static_cast<uint64_t>(discarded);
  }
  SPECD_OK_OR_RETURN(move(from, to));
  return from.size();
}

// Room for columns of what runs before the next step's work.
Status StepRunner::room_behind(uint64_t bytes) {
  if (device_.is_host()) behind_.clear();  // its work is done
  if (bytes <= behind_.room()) return Status();
  SPECD_OK_OR_RETURN(device_.synchronize());
  return behind_.reserve(bytes).status();
}

Status StepRunner::move(const std::vector<int32_t>& from, const std::vector<int32_t>& to) {
  if (from.empty()) return Status();
  SPECD_OK_OR_RETURN(room_behind(2 * Staging::bytes_of<int32_t>(from.size())));
  kv_.move(device_, behind_, from, to);
  return Status();
}

Status StepRunner::copy_page(int32_t from, int32_t to) {
  std::vector<int32_t> source, target;
  for (int32_t i = 0; i < kernels::kPageTokens; ++i) {
    source.push_back(from * kernels::kPageTokens + i);
    target.push_back(to * kernels::kPageTokens + i);
  }
  return move(source, target);
}

}  // namespace specd
