// update(): tells a drafter what a step has committed.
#include <algorithm>
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
        output_(output),
        top_k_(input.top_k),
        rows_max_(route.rows_max()),
        capacity_(route.drafter->grant().max_nodes) {
    for (ActiveSequence* member : members) {
      DrafterSession& session = member->session(route);
      todo_.push_back({member, &session, rows_of(*member, session.n_begun, input), 0});
    }
  }

  void run() {
    const auto is_left = [](const Todo& each) {
      return each.session->is_on() && each.n_done < each.rows.size();
    };
    while (std::any_of(todo_.begin(), todo_.end(), is_left)) call();
  }

 private:
  // A row of the forward that was committed.
  struct Row {
    int32_t place;     // index among the member's rows
    int32_t position;  // of its token in the text
    int32_t node;
  };
  struct Todo {
    ActiveSequence* member;
    DrafterSession* session;
    std::vector<Row> rows;  // in order of position
    size_t n_done;
  };
  // The arguments of one call.
  struct Rows {
    Members members;
    std::vector<uint32_t> offsets{0};
    std::vector<int32_t> seq_index, position, token, next_token, node, hidden_row, last_row,
        last_hidden_row, top_row;
  };
  struct Columns {
    Column<int32_t> seq_index, position, token, next_token, node, hidden_row, last_row,
        last_hidden_row, top_row;
  };

  std::vector<Row> rows_of(const ActiveSequence& member, int32_t n_begun,
                           const StepInput& input) const {
    std::vector<Row> rows;
    const int32_t base = input.rows.position[to_size(member.place.first_row)];
    for (int32_t i = 0; i < member.n_rows; ++i) {
      const int32_t position = base + i;
      // The drafter knows these tokens from begin().
      if (!route_.reads_hidden() && position < n_begun - 1) continue;
      rows.push_back({i, position, position < n_begun ? SPECD_NODE_NONE : SPECD_NODE_ROOT});
    }
    int32_t position = base + member.n_rows;
    for (const int32_t node : member.accepted()) {
      // The nodes are not a shadow's.
      const int32_t of_drafter = route_.is_shadow() ? int32_t{SPECD_NODE_NONE} : node;
      rows.push_back({member.n_rows + node, position++, of_drafter});
    }
    return rows;
  }

  // Passes the next rows of the members that still draft.
  void call() {
    Rows rows;
    for (Todo& each : todo_) {
      if (each.session->is_on()) add(each, rows);
    }
    Staging& staging = step_.call_columns();
    const Columns columns{staging.add(rows.seq_index), staging.add(rows.position),
                          staging.add(rows.token),     staging.add(rows.next_token),
                          staging.add(rows.node),      staging.add(rows.hidden_row),
                          staging.add(rows.last_row),  staging.add(rows.last_hidden_row),
                          staging.add(rows.top_row)};
    PluginBatch batch(rows.members, step_.step_id);
    Status status = route_.on_device() ? batch.place_on(step_.device, staging) : Status();
    if (status.ok()) {
      if (route_.on_device()) staging.upload();
      const uint64_t start_ns = batch.start(route_);
      status = call_drafter(rows, columns, batch);
      if (route_.calls().is_immediate())
        route_.called(DrafterCall::kUpdate, status, now_ns() - start_ns);
    }
    Losses losses(route_);
    for (size_t s = 0; s < rows.members.size(); ++s) {
      if (status.ok() && batch.status[s] == SPECD_OK) continue;
      losses.add(*rows.members[s], status.ok() ? batch.why(s) : status.to_string());
      end_session(step_, route_, *rows.members[s], SPECD_END_QUARANTINED);
    }
    losses.report("update");
  }

  // Adds the member, and as many of its rows as the call has room for.
  void add(Todo& todo, Rows& rows) const {
    const ActiveSequence& member = *todo.member;
    const std::vector<int32_t>& tokens = member.sequence->tokens();
    const size_t room = rows_max_ - rows.position.size();
    const size_t end = std::min(todo.n_done + room, todo.rows.size());
    const auto index = static_cast<int32_t>(rows.members.size());
    bool has_root = false;
    for (size_t i = todo.n_done; i < end; ++i) {
      const Row& row = todo.rows[i];
      rows.seq_index.push_back(index);
      rows.position.push_back(row.position);
      rows.token.push_back(tokens[to_size(row.position)]);
      rows.next_token.push_back(tokens[to_size(row.position + 1)]);
      rows.node.push_back(row.node);
      has_root = has_root || row.place == member.n_rows - 1;
      if (route_.reads_hidden()) rows.hidden_row.push_back(member.place.first_tap + row.place);
    }
    const auto n_rows = static_cast<int32_t>(rows.position.size());
    const bool has_rows = end > todo.n_done;
    rows.last_row.push_back(has_rows ? n_rows - 1 : -1);
    if (route_.reads_hidden()) {
      rows.last_hidden_row.push_back(has_rows ? rows.hidden_row.back() : -1);
    }
    rows.offsets.push_back(static_cast<uint32_t>(n_rows));
    rows.members.push_back(todo.member);
    if (has_top()) {
      const RowPlace& place = member.place;
      if (has_root && place.root_logits >= 0) {
        rows.top_row.push_back(place.root_logits);
        if (!route_.is_shadow()) {
          rows.top_row.insert(rows.top_row.end(), place.logits_of_node.begin(),
                              place.logits_of_node.end());
        }
      }
      rows.top_row.resize(rows.members.size() * (capacity_ + 1), -1);
    }
    todo.n_done = end;
  }
  bool has_top() const { return route_.drafter->caps().top_k > 0 && output_.top.n > 0; }

  // A result of the forward where the drafter works.
  template <typename T>
  specd_tensor result(const Column<const T>& column, uint8_t code, int64_t stride,
                      int64_t width) const {
    const bool on_device = route_.on_device();
    const T* data = on_device ? column.device : column.host;
    const auto n = static_cast<int64_t>(column.n) / stride;
    // Tensors have no const; the header forbids writing.
    specd_tensor tensor = host_tensor(const_cast<T*>(data), code, 32, {n, width});
    tensor.stride[0] = stride;
    tensor.byte_capacity = column.bytes();
    return on_device ? in_device_memory(tensor, step_.device.index()) : tensor;
  }

  Status call_drafter(const Rows& rows, const Columns& columns, PluginBatch& batch) {
    const auto n_seqs = static_cast<int64_t>(rows.members.size());
    const auto n_rows = static_cast<int64_t>(rows.position.size());
    const auto tensor = [&](const Column<int32_t>& column, std::initializer_list<int64_t> shape) {
      return tensor_of(step_.device, route_.on_device(), column, shape);
    };
    const specd_tensor seq_index = tensor(columns.seq_index, {n_rows});
    const specd_tensor position = tensor(columns.position, {n_rows});
    const specd_tensor token = tensor(columns.token, {n_rows});
    const specd_tensor next_token = tensor(columns.next_token, {n_rows});
    const specd_tensor node = tensor(columns.node, {n_rows});
    const specd_tensor last_row = tensor(columns.last_row, {n_seqs});
    specd_update_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = static_cast<uint32_t>(n_rows);
    args.batch = &batch.batch;
    args.row_offsets = rows.offsets.data();
    args.seq_index = &seq_index;
    args.position = &position;
    args.token = &token;
    args.next_token = &next_token;
    args.node = &node;
    args.last_row = &last_row;
    const bool mirrors = (route_.drafter->grant().needs & SPECD_NEED_HOST_TOKENS) != 0;
    if (mirrors) {
      args.host_position = columns.position.host;
      args.host_token = columns.token.host;
      args.host_next_token = columns.next_token.host;
      args.host_node = columns.node.host;
    }
    specd_tensor hidden_row{}, last_hidden_row{};
    std::vector<specd_tensor> hidden;
    std::vector<const specd_tensor*> hidden_ptr;
    if (route_.reads_hidden()) {
      for (const size_t tap : route_.tap_index) {
        hidden.push_back(
            result(output_.taps[tap], SPECD_DT_FLOAT, step_.hidden_size, step_.hidden_size));
      }
      for (const specd_tensor& each : hidden) hidden_ptr.push_back(&each);
      hidden_row = tensor(columns.hidden_row, {n_rows});
      last_hidden_row = tensor(columns.last_hidden_row, {n_seqs});
      args.hidden_row = &hidden_row;
      args.last_hidden_row = &last_hidden_row;
      args.hidden = hidden_ptr.data();
      if (mirrors) args.host_hidden_row = columns.hidden_row.host;
    }
    specd_tensor top_row{}, top_token{};
    if (has_top()) {
      top_row = tensor(columns.top_row, {n_seqs, static_cast<int64_t>(capacity_) + 1});
      top_token = result(output_.top, SPECD_DT_INT, top_k_,
                         static_cast<int64_t>(route_.drafter->caps().top_k));
      args.top_row = &top_row;
      args.top_token = &top_token;
      if (mirrors) {
        args.host_top_row = columns.top_row.host;
        args.host_top_token = output_.top.host;
      }
    }
    return route_.calls().update(args, batch.call);
  }

  StepContext& step_;
  LiveRoute& route_;
  const StepOutput& output_;
  const int32_t top_k_;  // of output_.top
  const size_t rows_max_;
  const size_t capacity_;
  std::vector<Todo> todo_;
};

}  // namespace

void update(StepContext& step, LiveRoute& route, const Members& members, const StepInput& input,
            const StepOutput& output) {
  try {
    Update(step, route, members, input, output).run();
  } catch (const std::bad_alloc&) {
    Losses losses(route);
    const std::string why = no_memory_for("the columns").to_string();
    for (ActiveSequence* member : members) {
      if (!member->session(route).is_on()) continue;
      losses.add(*member, why);
      end_session(step, route, *member, SPECD_END_QUARANTINED);
      if (route.is_shadow()) member->session(route) = {};  // it begins again
    }
    losses.report("update");
  }
}

}  // namespace specd
