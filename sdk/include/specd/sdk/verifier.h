// C++ wrapper of a verifier: one object per instance, one call per sequence.
//
//   class Mine final : public specd::sdk::Verifier {
//    public:
//     static constexpr const char* kSchema = nullptr;
//     static void describe(const Context&, specd_verifier_caps& caps);  // see Verifier for presets
//     explicit Mine(const Context&);
//     void verify(const Nodes&, Verdict&);
//     void activated();                    // optional, [control]
//   };
//
// A verifier that only passes tensors on, without reading their values, defines instead
// of verify():
//
//   void verify_tensors(const specd_verify_args&);
//
// It may offer SPECD_DEV_CUDA and SPECD_FEATURE_CAPTURE (see drafter.h).
//
// An exception thrown for one sequence fails only that sequence: the host accepts none of its nodes
// and emits the root row's token.
#ifndef SPECD_SDK_VERIFIER_H
#define SPECD_SDK_VERIFIER_H

#include <specd/plugin_api/verifier.h>
#include <specd/sdk/column.h>
#include <specd/sdk/instance.h>
#include <specd/sdk/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

namespace specd::sdk {

// The columns of one verify() call.
struct VerifyColumns {
  // Stands for the laws that a verifier has not asked for.
  static const specd_tensor& nothing() {
    static float none = 0;
    static const specd_tensor tensor = tensor_at(&none, 1, -1, SPECD_DEV_CPU, 0);
    return tensor;
  }

  Column<const int32_t> n_nodes, token, parent, row_token, root_token, root_position;
  bool has_flags;
  Column<const int32_t> flags;  // valid only when has_flags
  Column<int64_t> state;
  Column<int32_t> n_accepted, path, next_token;
  const specd_sampling* const* sampling;
  int32_t path_capacity;
  const specd_verify_args* args;
  // The laws and, where the drafter drew, what it drew from; each three columns.
  struct Laws {
    bool are_there;
    Column<const int32_t> row;  // these three: valid only when are_there
    Column<const float> law, lse;
    const specd_tensor* tensor;

    static Laws of(const specd_tensor* row, const specd_tensor* law, const specd_tensor* lse,
                   int64_t n, int64_t columns, const specd_tensor* any_row) {
      const bool are_there = law != nullptr && law->shape[0] > 0;
      expect(!are_there || (law->rank == 2 && law->stride[1] == 1 && lse != nullptr &&
                            lse->shape[0] >= law->shape[0]),
             "verify(): a law without its columns");
      return {are_there,
              {are_there ? row : any_row, n, columns, "row"},
              {are_there ? law : &nothing(), 1, 1, "law"},
              {are_there ? lse : &nothing(), 1, 1, "lse"},
              law};
    }
  };
  Laws law, q;

  static VerifyColumns of(const specd_verify_args& args) {
    expect(args.batch != nullptr && args.proposal != nullptr && args.out != nullptr,
           "verify(): a null argument");
    const specd_proposal& p = *args.proposal;
    const specd_verdict& v = *args.out;
    const int64_t n = args.batch->n_seqs, capacity = p.node_capacity;
    return {{p.n_nodes, n, 1, "n_nodes"},
            {p.token, n, capacity, "token"},
            {p.parent, n, capacity, "parent"},
            {args.row_token, n, capacity + 1, "row_token"},
            {args.root_token, n, 1, "root_token"},
            {args.root_position, n, 1, "root_position"},
            p.flags != nullptr,
            {p.flags != nullptr ? p.flags : p.token, n, capacity, "flags"},
            {args.state, n, 1, "state"},
            {v.n_accepted, n, 1, "n_accepted"},
            {v.path, n, v.path_capacity, "path"},
            {v.next_token, n, 1, "next_token"},
            args.sampling,
            static_cast<int32_t>(v.path_capacity),
            &args,
            Laws::of(args.row, args.law, args.law_lse, n, capacity + 1, args.row_token),
            Laws::of(p.q_row, p.q, p.q_lse, n, capacity + 1, args.row_token)};
  }
};

// A distribution over the vocabulary: what the target draws from after one node, or what the first
// child of a node was drawn from.
class Law {
 public:
  Law(const float* logit, float lse, int32_t vocab_size)
      : logit_(logit), lse_(lse), vocab_size_(vocab_size) {}
  int32_t vocab_size() const { return vocab_size_; }
  double log_p(int32_t token) const { return double{logit_[token]} - lse_; }
  double p(int32_t token) const { return logit_[token] == -HUGE_VALF ? 0 : std::exp(log_p(token)); }

 private:
  const float* logit_;
  float lse_;
  int32_t vocab_size_;
};

// The proposal of one sequence, with the target's tokens for it. Node -1 is the root.
class Nodes {
 public:
  Nodes(const VerifyColumns& columns, uint32_t seq_index) : c_(&columns), seq_(seq_index) {}
  int32_t size() const { return c_->n_nodes(seq_); }
  int32_t token(int32_t node) const { return c_->token(seq_, node); }
  int32_t parent(int32_t node) const { return c_->parent(seq_, node); }
  bool is_probe(int32_t node) const {
    return c_->has_flags && (c_->flags(seq_, node) & SPECD_NODE_PROBE) != 0;
  }
  // The token that plain decoding emits after `node`.
  int32_t row_token(int32_t node) const { return c_->row_token(seq_, node + 1); }
  int32_t root_token() const { return c_->root_token(seq_); }
  int32_t root_position() const { return c_->root_position(seq_); }
  // Null when the host gives no sampling parameters.
  const specd_sampling* sampling() const {
    return c_->sampling == nullptr ? nullptr : c_->sampling[seq_];
  }
  int64_t& state() const { return c_->state(seq_); }
  // Of SPECD_NEED_LAW. False when the target's logits behind the node are not finite: do not accept it.
  bool can_draw(int32_t node) const { return std::isfinite(lse(c_->law, node)); }
  // Throws when the target can draw nothing there.
  Law law(int32_t node) const { return row_of(c_->law, node); }
  // Of SPECD_NEED_Q and a draft rule other than POINT_MASS: what the first child of the node was drawn
  // from. REQUIRES children.
  Law q(int32_t node) const { return row_of(c_->q, node); }
  uint32_t index() const { return seq_; }  // in the batch
  const specd_batch& batch() const { return *c_->args->batch; }
  // Every committed token, the root last.
  const int32_t* text() const { return c_->args->text[seq_]; }
  uint32_t text_len() const { return c_->args->text_len[seq_]; }

 private:
  int32_t row_number(const VerifyColumns::Laws& laws, int32_t node) const {
    expect(
        laws.are_there,
        "verify(): there are no distributions in this call; they come with SPECD_NEED_LAW or SPECD_NEED_Q in caps.needs");
    const int32_t row = laws.row(seq_, node + 1);
    expect(row >= 0 && row < laws.tensor->shape[0], "verify(): a node without a distribution");
    return row;
  }
  float lse(const VerifyColumns::Laws& laws, int32_t node) const {
    return laws.lse(row_number(laws, node));
  }
  Law row_of(const VerifyColumns::Laws& laws, int32_t node) const {
    const int32_t row = row_number(laws, node);
    expect(std::isfinite(laws.lse(row)), "verify(): a row from which nothing can be drawn");
    return {&laws.law(row, 0), laws.lse(row), static_cast<int32_t>(laws.tensor->shape[1])};
  }
  const VerifyColumns* c_;
  uint32_t seq_;
};

class Verdict {
 public:
  Verdict(const VerifyColumns& columns, uint32_t seq_index) : c_(&columns), seq_(seq_index) {
    c_->n_accepted(seq_) = 0;
  }
  // Appends a node to the path, root side first. Throws when the path is full.
  void accept(int32_t node) {
    int32_t& n = c_->n_accepted(seq_);
    expect(n < c_->path_capacity, "verify(): the path is full");
    c_->path(seq_, n++) = node;
  }
  // Sets the token after the last accepted node, or after the root.
  void next_token(int32_t token) { c_->next_token(seq_) = token; }

 private:
  const VerifyColumns* c_;
  uint32_t seq_;
};

// Base of every verifier. describe() finds these presets in `caps`: every tree mode, CPU, no node
// limit, no services, and SPECD_GUARANTEE_UNUSABLE for every draft rule until the verifier states
// its guarantees.
class Verifier : public Instance {
 public:
  explicit Verifier(const Context& context) : Instance(context) {}
  const specd_verifier_grant& grant() const { return grant_; }
  void activated() {}

 protected:
  ~Verifier() = default;

 private:
  template <class T>
  friend struct VerifierTable;
  specd_verifier_grant grant_{};
};

// The C table of verifier class T.
template <class T>
struct VerifierTable {
  static T* self(specd_verifier* verifier) { return reinterpret_cast<T*>(verifier); }

  static specd_status describe(const specd_factory*, const specd_host* host,
                               const specd_target_info* target, const specd_config* config,
                               specd_verifier_caps* out) noexcept {
    return guard(host, nullptr, -1, [&] {
      expect(target != nullptr && out != nullptr, "describe(): a null argument");
      specd_verifier_caps caps{};
      caps.struct_size = sizeof caps;
      caps.tree_modes =
          (1u << SPECD_TREE_CHAIN) | (1u << SPECD_TREE_STATIC) | (1u << SPECD_TREE_VARIABLE);
      caps.device_types = 1u << SPECD_DEV_CPU;
      T::describe(Context{host, target, Config(config), nullptr, "", ""}, caps);
      *out = caps;
    });
  }

  static specd_status create(const specd_factory*, const specd_host* host,
                             const specd_create_args* args, specd_verifier** out) noexcept {
    return guard(host, args == nullptr ? nullptr : args->call, -1, [&] {
      expect(args != nullptr && out != nullptr && args->target != nullptr,
             "create(): a null argument");
      const Context context{host,
                            args->target,
                            Config(args->config),
                            args->owner,
                            args->instance_name == nullptr ? "" : args->instance_name,
                            args->data_dir == nullptr ? "" : args->data_dir};
      *out = reinterpret_cast<specd_verifier*>(std::make_unique<T>(context).release());
    });
  }

  static specd_status activate(specd_verifier* verifier,
                               const specd_verifier_grant* grant) noexcept {
    T* t = self(verifier);
    return guard(t->host(), nullptr, -1, [&] {
      expect(grant != nullptr, "activate(): a null argument");
      if (grant->device_type != SPECD_DEV_CPU && !has_verify_tensors<T>(0)) {
        throw Error(SPECD_E_UNSUPPORTED, "this verifier runs on the CPU only");
      }
      static_cast<Verifier*>(t)->grant_ = *grant;
      t->activated();
    });
  }

  static specd_status verify(specd_verifier* verifier, const specd_verify_args* args) noexcept {
    T* t = self(verifier);
    const specd_batch* batch = args == nullptr ? nullptr : args->batch;
    return guard(t->host(), batch == nullptr ? nullptr : batch->call, -1, [&] {
      expect(args != nullptr && batch != nullptr, "verify(): a null argument");
      if constexpr (has_verify_tensors<T>(0)) {
        t->verify_tensors(*args);
        return;
      } else {
        const VerifyColumns columns = VerifyColumns::of(*args);
        for (uint32_t i = 0; i < batch->n_seqs; ++i) {
          const specd_status status = guard(t->host(), batch->call, static_cast<int32_t>(i), [&] {
            Verdict verdict(columns, i);
            t->verify(Nodes(columns, i), verdict);
          });
          if (status != SPECD_OK) {
            columns.n_accepted(i) = 0;
            batch->seq_status[i] = status;
          }
        }
      }
    });
  }

  static void deactivate(specd_verifier*) noexcept {}
  static void destroy(specd_verifier* verifier) noexcept { delete self(verifier); }

  static constexpr specd_verifier_api make() {
    return {sizeof(specd_verifier_api),
            0,
            &describe,
            &create,
            &activate,
            &verify,
            &deactivate,
            &destroy};
  }

 private:
  template <class U>
  static constexpr auto has_verify_tensors(int)
      -> decltype(std::declval<U&>().verify_tensors(std::declval<const specd_verify_args&>()),
                  bool()) {
    return true;
  }
  template <class U>
  static constexpr bool has_verify_tensors(long) {
    return false;
  }
};

template <class T>
inline constexpr specd_verifier_api kVerifierApi = VerifierTable<T>::make();

template <class T>
constexpr specd_factory verifier(const char* id, const char* description) {
  return {sizeof(specd_factory), 0, id, description, T::kSchema, nullptr, &kVerifierApi<T>};
}

}  // namespace specd::sdk

#endif
