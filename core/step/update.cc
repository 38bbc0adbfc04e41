// update(): tells a drafter what a step has committed.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "core/base/clock.h"
#include "core/plugin/instance/tensor.h"
#include "core/step/drafting.h"
#include "core/step/losses.h"

namespace specd {
namespace {

class Update {
 public:
  Update(StepContext& step, LiveRoute& route, const Members& members, const StepInput& input,
         const StepOutput& output)
      : step_(step),
        route_(route),
        members_(members),
        output_(output),
        grant_(route.drafter->grant()),
        n_taps_((grant_.needs & SPECD_NEED_HIDDEN) != 0 ? route.drafter->caps().n_taps : 0),
        rows_max_(grant_.max_rows),
        capacity_(grant_.max_nodes),
        width_(static_cast<size_t>(step.hidden_size)) {
    for (const ActiveSequence* member : members) gather(*member, input);
    gather_top1();
    hidden_.resize(n_taps_);
    for (std::vector<float>& data : hidden_) data.resize(members.size() * rows_max_ * width_);
  }

  void run() {
    size_t longest = 0;
    for (const std::vector<Row>& rows : todo_) longest = std::max(longest, rows.size());
    for (size_t done = 0; done < longest; done += rows_max_) call(done);
  }

 private:
  // A row of the forward that was committed.
  struct Row {
    int32_t place;     // index among the member's rows
    int32_t position;  // of its token in the text
    int32_t node;
  };
  // One call's columns, [members of the call] or [members, rows_max].
  struct Columns {
    Column<int32_t> count, position, token, next_token, node, top1;
  };

  // Collects the rows that the drafter gets for the member, in order of position.
  void gather(const ActiveSequence& member, const StepInput& input) {
    std::vector<Row>& rows = todo_.emplace_back();
    const int32_t base = input.rows.position[to_size(member.place.first_row)];
    for (int32_t i = 0; i < member.n_rows; ++i) {
      const int32_t position = base + i;
      if (n_taps_ == 0 && position < member.n_begun - 1) continue;  // known from begin()
      rows.push_back({i, position, position < member.n_begun ? SPECD_NODE_NONE : SPECD_NODE_ROOT});
    }
    int32_t position = base + member.n_rows;
    for (const int32_t node : member.accepted()) {
      rows.push_back({member.n_rows + node, position++, node});
    }
  }

  // Collects the target's most likely token after each node that asked for it. top1_ stays empty
  // when none did.
  void gather_top1() {
    for (size_t s = 0; s < members_.size(); ++s) {
      const ActiveSequence& member = *members_[s];
      for (int32_t node = 0; node < member.tree.size(); ++node) {
        if ((member.tree.flags[to_size(node)] & SPECD_NODE_WANT_TOP1) == 0) continue;
        if (top1_.empty()) top1_.assign(members_.size() * capacity_, -1);
        top1_[s * capacity_ + to_size(node)] =
            output_.top1[to_size(member.place.logits_of_node[to_size(node)])];
      }
    }
  }

  // Passes rows [done, done + rows_max) of the members that still draft. Only the first call passes
  // top1.
  void call(size_t done) {
    Staging& staging = step_.call_columns();
    const size_t cells = members_.size() * rows_max_;
    Columns columns;
    columns.count = staging.add<int32_t>(members_.size());
    for (Column<int32_t>* each :
         {&columns.position, &columns.token, &columns.next_token, &columns.node}) {
      *each = staging.add<int32_t>(cells);
    }
    Members now;
    std::vector<int32_t> top1;
    for (size_t s = 0; s < members_.size(); ++s) {
      if (!members_[s]->drafts()) continue;
      fill(columns, now.size(), s, done);
      if (done == 0 && !top1_.empty()) {
        const auto from = top1_.begin() + static_cast<ptrdiff_t>(s * capacity_);
        top1.insert(top1.end(), from, from + static_cast<ptrdiff_t>(capacity_));
      }
      now.push_back(members_[s]);
    }
    if (now.empty()) return;
    PluginBatch batch(now, step_.step_id);
    columns.top1 = staging.add(top1);
    Status status = route_.on_device() ? batch.place_on(step_.device, staging) : Status();
    if (status.ok()) {
      if (route_.on_device()) staging.upload();
      const uint64_t start_ns = batch.start(route_);
      status = call_drafter(columns, now, batch);
      route_.called(DrafterCall::kUpdate, status, now_ns() - start_ns);
    }
    Losses losses;
    for (size_t s = 0; s < now.size(); ++s) {
      if (status.ok() && batch.status[s] == SPECD_OK) continue;
      losses.add(*now[s], status.ok() ? batch.why(s) : status.to_string());
      end_drafting(step_, *now[s], SPECD_END_QUARANTINED);
    }
    losses.report(route_, "update");
  }

  void fill(const Columns& columns, size_t index, size_t s, size_t done) {
    const ActiveSequence& member = *members_[s];
    const std::vector<int32_t>& tokens = member.sequence->tokens();
    const size_t begin = std::min(done, todo_[s].size());
    const size_t end = std::min(begin + rows_max_, todo_[s].size());
    columns.count.host[index] = static_cast<int32_t>(end - begin);
    for (size_t i = begin; i < end; ++i) {
      const Row& row = todo_[s][i];
      const size_t cell = index * rows_max_ + (i - begin);
      columns.position.host[cell] = row.position;
      columns.token.host[cell] = tokens[to_size(row.position)];
      columns.next_token.host[cell] = tokens[to_size(row.position + 1)];
      columns.node.host[cell] = row.node;
      for (size_t t = 0; t < n_taps_; ++t) {
        const auto tap_row = to_size(member.place.first_tap + row.place);
        std::memcpy(&hidden_[t][cell * width_],
                    &output_.taps[route_.tap_index[t]][tap_row * width_], width_ * sizeof(float));
      }
    }
  }

  Status call_drafter(const Columns& columns, const Members& now, PluginBatch& batch) {
    const auto n = static_cast<int64_t>(now.size());
    const auto rows_max = static_cast<int64_t>(rows_max_);
    const auto tensor = [&](const Column<int32_t>& column, std::initializer_list<int64_t> shape) {
      return tensor_of(step_.device, route_.on_device(), column, shape);
    };
    specd_tensor count_t = tensor(columns.count, {n});
    specd_tensor position_t = tensor(columns.position, {n, rows_max});
    specd_tensor token_t = tensor(columns.token, {n, rows_max});
    specd_tensor next_token_t = tensor(columns.next_token, {n, rows_max});
    specd_tensor node_t = tensor(columns.node, {n, rows_max});
    specd_tensor top1_t = tensor(columns.top1, {n, static_cast<int64_t>(capacity_)});
    std::vector<specd_tensor> hidden_tensor;
    hidden_tensor.reserve(hidden_.size());
    for (std::vector<float>& data : hidden_) {
      hidden_tensor.push_back(host_tensor(data.data(), SPECD_DT_FLOAT, 32,
                                          {n, rows_max, static_cast<int64_t>(width_)}));
    }
    std::vector<const specd_tensor*> hidden_ptr;
    hidden_ptr.reserve(hidden_.size());
    for (const specd_tensor& each : hidden_tensor) hidden_ptr.push_back(&each);
    specd_update_args args{};
    args.struct_size = sizeof(args);
    args.max_rows = static_cast<uint32_t>(rows_max);
    args.batch = &batch.batch;
    args.count = &count_t;
    args.position = &position_t;
    args.token = &token_t;
    args.next_token = &next_token_t;
    args.node = &node_t;
    const bool mirrors = (grant_.needs & SPECD_NEED_HOST_TOKENS) != 0;
    if (mirrors) {
      args.host_count = columns.count.host;
      args.host_position = columns.position.host;
      args.host_token = columns.token.host;
      args.host_next_token = columns.next_token.host;
      args.host_node = columns.node.host;
    }
    args.hidden = hidden_ptr.data();
    const bool has_top1 = columns.top1.n > 0;
    args.top1 = has_top1 ? &top1_t : nullptr;
    args.host_top1 = has_top1 && mirrors ? columns.top1.host : nullptr;
    return route_.drafter->update(args, batch.call);
  }

  StepContext& step_;
  LiveRoute& route_;
  const Members& members_;
  const StepOutput& output_;
  const specd_drafter_grant& grant_;
  const size_t n_taps_, rows_max_, capacity_, width_;
  std::vector<std::vector<Row>> todo_;      // [members]
  std::vector<int32_t> top1_;               // [members, capacity], or empty
  std::vector<std::vector<float>> hidden_;  // [taps], each [members, rows_max, width]
};

}  // namespace

void update(StepContext& step, LiveRoute& route, const Members& members, const StepInput& input,
            const StepOutput& output) {
  try {
    Update(step, route, members, input, output).run();
  } catch (const std::bad_alloc&) {
    Losses losses;
    const std::string why = no_memory_for("the columns").to_string();
    for (ActiveSequence* member : members) {
      if (!member->drafts()) continue;
      losses.add(*member, why);
      end_drafting(step, *member, SPECD_END_QUARANTINED);
    }
    losses.report(route, "update");
  }
}

}  // namespace specd
