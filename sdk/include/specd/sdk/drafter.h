// C++ wrapper of a drafter: one object per instance, one object per sequence, one call
// per sequence.
//
//   class Mine final : public specd::sdk::Drafter {
//    public:
//     static constexpr const char* kSchema = R"({...JSON Schema...})";  // or nullptr
//     static void describe(const Context&, specd_drafter_caps& caps);   // see Drafter for presets
//     explicit Mine(const Context&);
//     struct Sequence { ... };             // built as Sequence(Mine&), destroyed at end()
//     void begin(Sequence&, const Begin&);
//     void update(Sequence&, const Rows&);
//     void propose(Sequence&, Proposal&);
//     void activated();                    // optional, [control]
//     void deactivated() noexcept;         // optional, [control]
//     void end(Sequence&, uint32_t reason) noexcept;  // optional
//     std::vector<int32_t> static_tree();  // SPECD_TREE_STATIC only
//   };
//
// A drafter that works on the whole batch at once defines instead of propose():
//
//   void propose_all(const specd_batch&, std::vector<Draft<Sequence>>&);
//
// It receives every sequence of the batch that has not failed, in batch order, including
// sequences with budget 0. An exception fails the call: no sequence is drafted in this step, and
// none is disabled.
//
// A drafter that passes tensors on, to host services or to its own work on batch->stream,
// defines instead:
//
//   void propose_tensors(const specd_propose_args&);
//   void update_tensors(const specd_update_args&);   // instead of update()
//   void begin_tensors(const specd_begin_args&);     // optional, besides begin()
//
// It needs neither of the two updates when it keeps no state. If it never reads the values of the
// tensors, it sets the bit of SPECD_DEV_CUDA in caps.device_types. If it also enqueues the same
// work every time, it sets SPECD_FEATURE_CAPTURE. All other drafters run on the CPU. An exception
// of either fails the call for all its sequences.
//
// Every function may throw specd::sdk::Error. An exception for one sequence fails only that
// sequence: it is reported once, its proposal is empty, and the drafter is not called for it again
// before end(), because its state may be incomplete.
#ifndef SPECD_SDK_DRAFTER_H
#define SPECD_SDK_DRAFTER_H

#include <specd/sdk/column.h>
#include <specd/sdk/instance.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace specd::sdk {

// Committed tokens of a sequence; borrowed.
struct Tokens {
  const int32_t* data;
  std::size_t size;
  const int32_t* begin() const { return data; }
  const int32_t* end() const { return data + size; }
  int32_t operator[](std::size_t i) const { return data[i]; }
};

struct Begin {
  Tokens tokens;         // every committed token: the prompt for FRESH
  uint32_t attach_mode;  // SPECD_ATTACH_*
  uint32_t slot;
  uint64_t seq_id;
  const specd_sampling* sampling;
  // Equal for requests that may share text, 0 without a cache salt. No proposal may depend on the
  // text of another tenant: see specd_begin_args.
  uint64_t tenant;
};

struct Row {
  int32_t position;
  int32_t token;       // at the position
  int32_t next_token;  // committed after it
  int32_t node;        // index in the last proposal, or SPECD_NODE_*
};

// The rows of one sequence in one update(), in order and without gaps.
class Rows {
 public:
  Rows(const specd_update_args& args, uint32_t seq_index)
      : args_(&args), seq_(seq_index), first_(args.row_offsets[seq_index]) {
    const uint32_t end = args.row_offsets[seq_index + 1];
    expect(first_ <= end && end <= args.n_rows, "update(): row_offsets are not in [0, n_rows]");
    count_ = static_cast<int32_t>(end - first_);
  }

  int32_t size() const { return count_; }
  Row operator[](int32_t r) const {
    const std::size_t at = index(r);
    return {args_->host_position[at], args_->host_token[at], args_->host_next_token[at],
            args_->host_node[at]};
  }
  // Hidden state of row r at tap `tap`: hidden_size floats.
  const float* hidden(uint32_t tap, int32_t r) const {
    const specd_tensor* h = args_->hidden == nullptr ? nullptr : args_->hidden[tap];
    expect(h != nullptr && h->data != nullptr && h->rank == 2 && h->device_type == SPECD_DEV_CPU &&
               h->dtype_code == SPECD_DT_FLOAT && h->dtype_bits == 32 && h->stride[1] == 1 &&
               args_->host_hidden_row != nullptr,
           "update(): hidden: expected CPU float32 of [.., hidden_size], and its rows");
    const int32_t row = args_->host_hidden_row[index(r)];
    expect(row >= 0 && row < h->shape[0], "update(): hidden_row is beyond hidden");
    return static_cast<const float*>(h->data) + row * h->stride[0];
  }
  // The target's most likely tokens after node i of the last proposal, -1 = after the root: top_k of
  // them, most likely first. Null when the target did not compute them.
  const int32_t* top(int32_t node) const {
    if (args_->host_top_row == nullptr) return nullptr;
    const std::size_t elements = static_cast<std::size_t>(args_->top_row->shape[1]);
    const std::size_t at = static_cast<std::size_t>(node + 1);
    expect(at < elements, "top(): no such node");
    const int32_t row = args_->host_top_row[std::size_t{seq_} * elements + at];
    return row < 0 ? nullptr : args_->host_top_token + row * args_->top_token->stride[0];
  }
  const specd_update_args& args() const { return *args_; }
  uint32_t seq_index() const { return seq_; }

 private:
  std::size_t index(int32_t r) const { return first_ + static_cast<std::size_t>(r); }

  const specd_update_args* args_;
  uint32_t seq_;
  uint32_t first_;
  int32_t count_ = 0;
};

// The proposal of one sequence. Push parents before children. A node beyond the budget is refused
// and nothing is written for it.
class Proposal {
 public:
  Proposal(const specd_propose_args& args, const Column<int32_t>& token,
           const Column<int32_t>* parent, const Column<int32_t>* flags, uint32_t seq_index,
           uint32_t max_nodes)
      : args_(&args), token_(token), parent_(parent), flags_(flags), seq_(seq_index) {
    const int32_t limit =
        static_cast<int32_t>(std::min<uint32_t>(max_nodes, args.out->node_capacity));
    budget_ = std::max(0, std::min(args.host_node_budget[seq_index], limit));
  }

  int32_t root_token() const { return args_->host_root_token[seq_]; }  // last committed token
  // The position of root_token().
  int32_t root_position() const { return args_->host_root_position[seq_]; }
  int32_t budget() const { return budget_; }  // nodes this sequence may propose in this step
  int32_t size() const { return size_; }
  const specd_sampling* sampling() const { return args_->sampling[seq_]; }
  bool probes_granted() const { return flags_ != nullptr; }
  const specd_propose_args& args() const { return *args_; }
  uint32_t seq_index() const { return seq_; }

  // CHAIN and STATIC: appends the next node of the fixed topology. Returns false when the budget is
  // used up.
  bool push(int32_t token) {
    if (size_ >= budget_) return false;
    token_(seq_, size_++) = token;
    return true;
  }
  // VARIABLE: appends a child of node `parent`, or of the root for -1. Returns its index, or -1
  // when the budget is used up. `flags` is SPECD_NODE_*, ignored when probes were not granted.
  int32_t push(int32_t token, int32_t parent, int32_t flags = 0) {
    if (parent_ == nullptr) {
      throw Error(SPECD_E_PRECONDITION, "push() with a parent needs SPECD_TREE_VARIABLE");
    }
    if (size_ >= budget_) return -1;
    token_(seq_, size_) = token;
    (*parent_)(seq_, size_) = parent;
    if (flags_ != nullptr) (*flags_)(seq_, size_) = flags;
    return size_++;
  }
  void clear() { size_ = 0; }

 private:
  const specd_propose_args* args_;
  const Column<int32_t>& token_;
  const Column<int32_t>* parent_;
  const Column<int32_t>* flags_;
  uint32_t seq_;
  int32_t budget_ = 0;
  int32_t size_ = 0;
};

// One sequence of propose_all().
template <class Sequence>
struct Draft {
  Sequence* sequence;
  Proposal proposal;
};

// Base of every drafter. describe() finds these presets in `caps`: CHAIN, POINT_MASS, host tokens,
// CPU, no services. The drafter sets max_nodes, max_depth and whatever differs. Unless it sets
// attach_modes, it attaches in every mode, or with hidden states in FRESH only, because it must
// know how to begin without the earlier ones.
class Drafter : public Instance {
 public:
  explicit Drafter(const Context& context) : Instance(context) {}

  // Valid after activate(). `stream` is null on the CPU.
  const specd_drafter_grant& grant() const { return grant_; }
  void activated() {}
  // Stop the drafter's own threads here.
  void deactivated() noexcept {}
  template <class Sequence>
  void end(Sequence&, uint32_t) noexcept {}

 protected:
  ~Drafter() = default;

 private:
  template <class T>
  friend struct DrafterTable;
  specd_drafter_grant grant_{};
  uint32_t tree_mode_ = SPECD_TREE_CHAIN;
};

// The C table of drafter class T.
template <class T>
struct DrafterTable {
  using Sequence = typename T::Sequence;
  struct Box {
    explicit Box(T& drafter) : sequence(drafter) {}
    Sequence sequence;
    bool failed = false;
  };

  static T* self(specd_drafter* drafter) { return reinterpret_cast<T*>(drafter); }

  static specd_drafter_caps caps_of(const Context& context) {
    specd_drafter_caps caps{};
    caps.struct_size = sizeof caps;
    caps.tree_mode = SPECD_TREE_CHAIN;
    caps.needs = SPECD_NEED_HOST_TOKENS;
    caps.draft_rule = SPECD_RULE_POINT_MASS;
    caps.device_types = 1u << SPECD_DEV_CPU;
    T::describe(context, caps);
    if (caps.attach_modes == 0) {
      caps.attach_modes = SPECD_ATTACH_FRESH;
      if ((caps.needs & SPECD_NEED_HIDDEN) == 0) {
        caps.attach_modes |= SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD;
      }
    }
    if (caps.max_nodes < 1 || caps.max_nodes > SPECD_MAX_TREE_NODES || caps.max_depth < 1 ||
        caps.max_depth > SPECD_MAX_TREE_DEPTH) {
      throw Error(SPECD_E_INTERNAL,
                  "describe() must set max_nodes in [1, 1024] and max_depth in [1, 64]");
    }
    return caps;
  }

  static specd_status describe(const specd_factory*, const specd_host* host,
                               const specd_target_info* target, const specd_config* config,
                               specd_drafter_caps* out) noexcept {
    return guard(host, nullptr, -1, [&] {
      expect(target != nullptr && out != nullptr, "describe(): a null argument");
      *out = caps_of(Context{host, target, Config(config), nullptr, "", ""});
    });
  }

  static specd_status create(const specd_factory*, const specd_host* host,
                             const specd_create_args* args, specd_drafter** out) noexcept {
    return guard(host, args == nullptr ? nullptr : args->call, -1, [&] {
      expect(args != nullptr && out != nullptr && args->target != nullptr,
             "create(): a null argument");
      const Context context{host,
                            args->target,
                            Config(args->config),
                            args->owner,
                            args->instance_name == nullptr ? "" : args->instance_name,
                            args->data_dir == nullptr ? "" : args->data_dir};
      const uint32_t tree_mode = caps_of(context).tree_mode;
      auto drafter = std::make_unique<T>(context);
      static_cast<Drafter*>(drafter.get())->tree_mode_ = tree_mode;
      *out = reinterpret_cast<specd_drafter*>(drafter.release());
    });
  }

  static specd_status activate(specd_drafter* drafter, const specd_drafter_grant* grant) noexcept {
    T* t = self(drafter);
    return guard(t->host(), nullptr, -1, [&] {
      expect(grant != nullptr, "activate(): a null argument");
      if (grant->device_type != SPECD_DEV_CPU && (!has_propose_tensors<T>(0) || has_update<T>(0))) {
        throw Error(SPECD_E_UNSUPPORTED, "this drafter runs on the CPU only");
      }
      expect((grant->needs & SPECD_NEED_HOST_TOKENS) != 0,
             "activate(): SPECD_NEED_HOST_TOKENS was requested but not granted");
      static_cast<Drafter*>(t)->grant_ = *grant;
      t->activated();
    });
  }

  static uint32_t static_tree(specd_drafter* drafter, int32_t* parent, uint32_t capacity) noexcept {
    uint32_t n = 0;
    if constexpr (has_static_tree<T>(0)) {
      T* t = self(drafter);
      guard(t->host(), nullptr, -1, [&] {
        const std::vector<int32_t> tree = t->static_tree();
        n = static_cast<uint32_t>(std::min<std::size_t>(tree.size(), capacity));
        std::copy_n(tree.begin(), n, parent);
      });
    }
    return n;
  }

  static specd_status begin(specd_drafter* drafter, const specd_begin_args* args) noexcept {
    T* t = self(drafter);
    const specd_batch* batch = args == nullptr ? nullptr : args->batch;
    if constexpr (has_begin_tensors<T>(0)) {
      const specd_status status =
          guard(t->host(), batch == nullptr ? nullptr : batch->call, -1, [&] {
            expect(batch != nullptr, "begin(): a null argument");
            t->begin_tensors(*args);
          });
      if (status != SPECD_OK) return status;
    }
    return per_sequence(t, batch, [&](uint32_t i) {
      expect(args->token_offsets != nullptr && args->tokens != nullptr &&
                 args->seq_state != nullptr && args->sampling != nullptr && args->tenant != nullptr,
             "begin(): a null argument");
      args->seq_state[i] = nullptr;
      auto box = std::make_unique<Box>(*t);
      const uint64_t from = args->token_offsets[i], to = args->token_offsets[i + 1];
      expect(from <= to, "begin(): token_offsets decrease");
      Begin in{{args->tokens + from, static_cast<std::size_t>(to - from)},
               args->attach_mode,
               args->batch->slot == nullptr ? 0 : args->batch->slot[i],
               args->batch->seq_id[i],
               args->sampling[i],
               args->tenant[i]};
      t->begin(box->sequence, static_cast<const Begin&>(in));
      args->seq_state[i] = box.release();
    });
  }

  static specd_status update(specd_drafter* drafter, const specd_update_args* args) noexcept {
    T* t = self(drafter);
    if constexpr (has_update_tensors<T>(0)) {
      const specd_batch* batch = args == nullptr ? nullptr : args->batch;
      return guard(t->host(), batch == nullptr ? nullptr : batch->call, -1, [&] {
        expect(batch != nullptr && args->row_offsets != nullptr, "update(): a null argument");
        t->update_tensors(*args);
      });
    } else {
      return per_sequence(t, args == nullptr ? nullptr : args->batch, [&](uint32_t i) {
        expect(args->row_offsets != nullptr && args->host_position != nullptr &&
                   args->host_token != nullptr && args->host_next_token != nullptr &&
                   args->host_node != nullptr,
               "update(): the host mirrors are missing");
        Box* box = box_of(args->batch, i);
        const Rows rows(*args, i);
        if (box->failed || rows.size() == 0) return;
        box->failed = true;  // reset when update() returns without an exception
        t->update(box->sequence, rows);
        box->failed = false;
      });
    }
  }

  static specd_status propose(specd_drafter* drafter, const specd_propose_args* args) noexcept {
    T* t = self(drafter);
    specd_status status = SPECD_OK;
    const specd_batch* batch = args == nullptr ? nullptr : args->batch;
    const specd_status outer = guard(t->host(), batch == nullptr ? nullptr : batch->call, -1, [&] {
      expect(batch != nullptr && args->out != nullptr && args->host_root_token != nullptr &&
                 args->host_root_position != nullptr && args->host_node_budget != nullptr &&
                 args->sampling != nullptr,
             "propose(): a null argument");
      if constexpr (has_propose_tensors<T>(0)) {
        t->propose_tensors(*args);
      } else {
        const specd_proposal& out = *args->out;
        const int64_t n = batch->n_seqs, capacity = out.node_capacity;
        const Column<int32_t> count(out.n_nodes, n, 1, "n_nodes");
        const Column<int32_t> token(out.token, n, capacity, "token");
        const bool variable = static_cast<Drafter*>(t)->tree_mode_ == SPECD_TREE_VARIABLE;
        const Column<int32_t> parent = variable ? Column<int32_t>(out.parent, n, capacity, "parent")
                                                : token;  // unused, never written
        const Column<int32_t> flags = out.flags != nullptr
                                          ? Column<int32_t>(out.flags, n, capacity, "flags")
                                          : token;  // unused, never written
        if constexpr (has_propose_all<T>(0)) {
          std::vector<Draft<Sequence>> drafts;
          for (uint32_t i = 0; i < batch->n_seqs; ++i) {
            count(i) = 0;
            Box* box = box_of(batch, i);
            if (box->failed) continue;
            drafts.push_back({&box->sequence, Proposal(*args, token, variable ? &parent : nullptr,
                                                       out.flags != nullptr ? &flags : nullptr, i,
                                                       t->grant().max_nodes)});
          }
          t->propose_all(*batch, drafts);
          for (const Draft<Sequence>& draft : drafts) {
            count(draft.proposal.seq_index()) = draft.proposal.size();
          }
        } else {
          status = per_sequence(t, batch, [&](uint32_t i) {
            count(i) = 0;
            Box* box = box_of(batch, i);
            Proposal proposal(*args, token, variable ? &parent : nullptr,
                              out.flags != nullptr ? &flags : nullptr, i, t->grant().max_nodes);
            if (box->failed || proposal.budget() == 0) return;
            box->failed = true;  // reset when propose() returns without an exception
            t->propose(box->sequence, proposal);
            box->failed = false;
            count(i) = proposal.size();
          });
        }
      }
    });
    return outer != SPECD_OK ? outer : status;
  }

  static void end(specd_drafter* drafter, const specd_end_args* args) noexcept {
    T* t = self(drafter);
    for (uint32_t i = 0; i < args->batch->n_seqs; ++i) {
      Box* box = static_cast<Box*>(args->batch->seq_state[i]);
      if (box == nullptr) continue;
      t->end(box->sequence, args->reason);
      delete box;
    }
  }

  static void deactivate(specd_drafter* drafter) noexcept { self(drafter)->deactivated(); }
  static void destroy(specd_drafter* drafter) noexcept { delete self(drafter); }

  static constexpr specd_drafter_api make() {
    return {sizeof(specd_drafter_api),
            0,
            &describe,
            &create,
            &activate,
            has_static_tree<T>(0) ? &static_tree : nullptr,
            &begin,
            update_or_null(),
            &propose,
            &end,
            &deactivate,
            &destroy};
  }

 private:
  static constexpr auto update_or_null() {
    if constexpr (has_update<T>(0) || has_update_tensors<T>(0)) {
      return &update;
    } else {
      return nullptr;
    }
  }
  template <class U>
  static constexpr auto has_static_tree(int) -> decltype(std::declval<U&>().static_tree(), bool()) {
    return true;
  }
  template <class U>
  static constexpr bool has_static_tree(long) {
    return false;
  }
  template <class U>
  static constexpr auto has_update(int)
      -> decltype(std::declval<U&>().update(std::declval<typename U::Sequence&>(),
                                            std::declval<const Rows&>()),
                  bool()) {
    return true;
  }
  template <class U>
  static constexpr bool has_update(long) {
    // Without a form of update() one is required; the compiler reports its absence.
    return !has_propose_tensors<U>(0) && !has_update_tensors<U>(0);
  }
  template <class U>
  static constexpr auto has_update_tensors(int)
      -> decltype(std::declval<U&>().update_tensors(std::declval<const specd_update_args&>()),
                  bool()) {
    return true;
  }
  template <class U>
  static constexpr bool has_update_tensors(long) {
    return false;
  }
  template <class U>
  static constexpr auto has_begin_tensors(int)
      -> decltype(std::declval<U&>().begin_tensors(std::declval<const specd_begin_args&>()),
                  bool()) {
    return true;
  }
  template <class U>
  static constexpr bool has_begin_tensors(long) {
    return false;
  }
  template <class U>
  static constexpr auto has_propose_tensors(int)
      -> decltype(std::declval<U&>().propose_tensors(std::declval<const specd_propose_args&>()),
                  bool()) {
    return true;
  }
  template <class U>
  static constexpr bool has_propose_tensors(long) {
    return false;
  }
  template <class U>
  static constexpr auto has_propose_all(int)
      -> decltype(std::declval<U&>().propose_all(
                      std::declval<const specd_batch&>(),
                      std::declval<std::vector<Draft<typename U::Sequence>>&>()),
                  bool()) {
    return true;
  }
  template <class U>
  static constexpr bool has_propose_all(long) {
    return false;
  }

  static Box* box_of(const specd_batch* batch, uint32_t i) {
    Box* box = static_cast<Box*>(batch->seq_state[i]);
    expect(box != nullptr, "a sequence that never began");
    return box;
  }

  template <class Body>
  static specd_status per_sequence(T* t, const specd_batch* batch, Body&& body) noexcept {
    if (batch == nullptr || batch->seq_status == nullptr) {
      report(t->host(), nullptr, -1, "a step call without a batch");
      return SPECD_E_INVALID;
    }
    for (uint32_t i = 0; i < batch->n_seqs; ++i) {
      const specd_status status =
          guard(t->host(), batch->call, static_cast<int32_t>(i), [&] { body(i); });
      if (status != SPECD_OK) batch->seq_status[i] = status;
    }
    return SPECD_OK;
  }
};

template <class T>
inline constexpr specd_drafter_api kDrafterApi = DrafterTable<T>::make();

// A factory for the plugin's table; `id` is unique inside the plugin.
template <class T>
constexpr specd_factory drafter(const char* id, const char* description) {
  return {sizeof(specd_factory), 0, id, description, T::kSchema, &kDrafterApi<T>, nullptr};
}

}  // namespace specd::sdk

#endif
