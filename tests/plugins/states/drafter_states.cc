// Writes down what update() brings, in host memory or on the fake CUDA device
// (tests/device/fake_cuda.h), where its "kernel" is a function on the stream:
//   row POSITION TOKEN NEXT_TOKEN NODE HASH    the hash is that of the row's states at both taps
//   top POSITION ELEMENT TOKEN TOKEN TOKEN     after the root (0) or a node, by the root's position
// The metric `updates` counts its calls. It proposes the root token three times, as a chain or, with
// `variable`, as a tree, whose columns must be in host memory.
#include <dlfcn.h>
#include <specd/sdk/plugin.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

using specd::sdk::Context;
using specd::sdk::Error;

using SubmitFn = void (*)(void* stream, void (*kernel)(const void*), const void* args,
                          size_t bytes);

constexpr uint32_t kTaps = 2, kTopK = 3, kNodes = 3;

const int32_t* data(const specd_tensor* tensor) {
  return tensor == nullptr ? nullptr : static_cast<const int32_t*>(tensor->data);
}

struct UpdateArgs {
  const int32_t *seq_index, *position, *token, *next_token, *node, *hidden_row, *top_row,
      *top_token;
  const float* hidden[kTaps];
  int64_t hidden_stride[kTaps], top_stride;
  uint32_t n_rows, n_seqs, width;
  std::FILE* log;
};
void update_kernel(const void* raw) {
  const auto& a = *static_cast<const UpdateArgs*>(raw);
  for (uint32_t r = 0; r < a.n_rows; ++r) {
    uint64_t hash = 0;
    for (uint32_t tap = 0; tap < kTaps; ++tap) {
      const float* state = a.hidden[tap] + a.hidden_row[r] * a.hidden_stride[tap];
      for (uint32_t i = 0; i < a.width; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, &state[i], sizeof bits);
        hash = (hash + bits) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
      }
    }
    std::fprintf(a.log, "row %d %d %d %d %016lx\n", a.position[r], a.token[r], a.next_token[r],
                 a.node[r], hash);
  }
  for (uint32_t s = 0; s < a.n_seqs && a.top_row != nullptr; ++s) {
    int32_t root = -1;  // its position
    for (uint32_t r = 0; r < a.n_rows; ++r) {
      if (a.seq_index[r] == static_cast<int32_t>(s) && a.node[r] < 0) root = a.position[r];
    }
    for (uint32_t e = 0; e <= kNodes; ++e) {
      const int32_t row = a.top_row[s * (kNodes + 1) + e];
      if (row < 0) continue;
      const int32_t* top = a.top_token + row * a.top_stride;
      std::fprintf(a.log, "top %d %u %d %d %d\n", root, e, top[0], top[1], top[2]);
    }
  }
}

struct ProposeArgs {
  const int32_t* root_token;
  int32_t* token;
  uint32_t n, capacity;
};
void propose_kernel(const void* raw) {
  const auto& a = *static_cast<const ProposeArgs*>(raw);
  for (uint32_t i = 0; i < a.n * a.capacity; ++i) a.token[i] = a.root_token[i / a.capacity];
}

class States final : public specd::sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false,
    "required": ["file", "library"],
    "properties": {"file": {"type": "string"}, "library": {"type": "string"},
                   "variable": {"type": "boolean"},
                   "rows_max": {"type": "integer", "minimum": 0, "maximum": 65536}}})";

  static void describe(const Context& context, specd_drafter_caps& caps) {
    caps.max_nodes = caps.max_depth = kNodes;
    caps.attach_modes = SPECD_ATTACH_FRESH;
    caps.needs |= SPECD_NEED_HIDDEN;
    caps.taps[0] = context.target->n_layers + 1;
    caps.taps[1] = 1;
    caps.n_taps = kTaps;
    caps.top_k = kTopK;
    caps.rows_max = static_cast<uint32_t>(context.config.i64("rows_max", 0, 0, 65536));
    if (context.config.boolean("variable", false)) caps.tree_mode = SPECD_TREE_VARIABLE;
    caps.device_types = 1u << SPECD_DEV_CPU | 1u << SPECD_DEV_CUDA;
    caps.features = SPECD_FEATURE_CAPTURE;
  }
  explicit States(const Context& context)
      : Drafter(context),
        width_(context.target->hidden_size),
        is_variable_(context.config.boolean("variable", false)),
        log_(std::fopen(context.config.required_string("file").c_str(), "a")),
        updates_(*this, SPECD_METRIC_COUNTER, "updates", "Calls of update().") {
    void* library = dlopen(context.config.required_string("library").c_str(), RTLD_NOW);
    if (library != nullptr) {
      submit_ = reinterpret_cast<SubmitFn>(dlsym(library, "specd_fake_cuda_submit"));
    }
    if (submit_ == nullptr || log_ == nullptr) throw Error(SPECD_E_CONFIG, "no library or no file");
  }
  ~States() { std::fclose(log_); }

  struct Sequence {
    explicit Sequence(States&) {}
  };
  void begin(Sequence&, const specd::sdk::Begin&) {}

  void update_tensors(const specd_update_args& in) {
    updates_.record(1);
    if (in.n_rows > grant().max_rows) throw Error(SPECD_E_INVALID, "more rows than granted");
    UpdateArgs args{data(in.seq_index),
                    data(in.position),
                    data(in.token),
                    data(in.next_token),
                    data(in.node),
                    data(in.hidden_row),
                    data(in.top_row),
                    data(in.top_token),
                    {},
                    {},
                    in.top_token == nullptr ? 0 : in.top_token->stride[0],
                    in.n_rows,
                    in.batch->n_seqs,
                    width_,
                    log_};
    for (uint32_t tap = 0; tap < kTaps; ++tap) {
      const specd_tensor& hidden = *in.hidden[tap];
      if (hidden.device_type != grant().device_type) throw Error(SPECD_E_INVALID, "wrong memory");
      args.hidden[tap] = static_cast<const float*>(hidden.data);
      args.hidden_stride[tap] = hidden.stride[0];
    }
    run(in.batch->stream, update_kernel, args);
  }
  void propose_tensors(const specd_propose_args& in) {
    const int32_t proposals = is_variable_ ? SPECD_DEV_CPU : grant().device_type;
    if (in.root_token->device_type != grant().device_type ||
        in.out->token->device_type != proposals || in.out->parent->device_type != proposals) {
      throw Error(SPECD_E_INVALID, "wrong memory");
    }
    if (is_variable_) return propose_tree(in);
    const ProposeArgs args{data(in.root_token), static_cast<int32_t*>(in.out->token->data),
                           in.batch->n_seqs, in.out->node_capacity};
    run(in.batch->stream, propose_kernel, args);
  }

 private:
  void propose_tree(const specd_propose_args& in) {
    for (uint32_t i = 0; i < in.batch->n_seqs * in.out->node_capacity; ++i) {
      static_cast<int32_t*>(in.out->token->data)[i] = in.host_root_token[i / in.out->node_capacity];
      static_cast<int32_t*>(in.out->parent->data)[i] =
          static_cast<int32_t>(i % in.out->node_capacity) - 1;
    }
  }
  template <class Args>
  void run(void* stream, void (*kernel)(const void*), const Args& args) {
    if (grant().device_type == SPECD_DEV_CPU) {
      kernel(&args);
    } else {
      submit_(stream, kernel, &args, sizeof args);
    }
  }

  uint32_t width_;
  bool is_variable_;
  std::FILE* log_;
  specd::sdk::Metric updates_;
  SubmitFn submit_ = nullptr;
};

}  // namespace

SPECD_SDK_PLUGIN("Test: writes down what update() brings",
                 specd::sdk::drafter<States>("states", "The root token three times"))
