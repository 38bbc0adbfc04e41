// A drafter that keeps per-sequence state in device memory, by slot, and allows its propose() to be
// captured. Its "kernels" are functions that it puts on the stream of the fake CUDA device
// (tests/device/fake_cuda.h), as a plugin would launch real kernels.
//
// begin() stores the sequence's number at its slot. propose() asks for a uniform number at the root; its
// kernel proposes the root token again and writes one line per sequence to a file: the number at the
// slot, the root's position and the uniform number. The metric `calls` counts how often its host code ran.
#include <dlfcn.h>
#include <specd/plugin_api/services/memory.h>
#include <specd/plugin_api/services/rng.h>
#include <specd/sdk/plugin.h>

#include <cstdio>
#include <string>

namespace {

using specd::sdk::Context;
using specd::sdk::Error;

using SubmitFn = void (*)(void* stream, void (*kernel)(const void*), const void* args,
                          size_t bytes);

struct StoreArgs {
  int32_t* table;
  uint32_t slot;
  int32_t value;
};
void store(const void* raw) {
  const auto& a = *static_cast<const StoreArgs*>(raw);
  a.table[a.slot] = a.value;
}

struct CountArgs {
  int32_t* column;
  uint32_t n;
};
void count(const void* raw) {
  const auto& a = *static_cast<const CountArgs*>(raw);
  for (uint32_t i = 0; i < a.n; ++i) a.column[i] = static_cast<int32_t>(i);
}

struct ProposeArgs {
  const int32_t *table, *slots, *root_token, *root_position;
  const float* uniform;
  int32_t* token;
  uint32_t n, capacity;
  std::FILE* log;
};
void propose_kernel(const void* raw) {
  const auto& a = *static_cast<const ProposeArgs*>(raw);
  for (uint32_t s = 0; s < a.n; ++s) {
    for (uint32_t i = 0; i < a.capacity; ++i) a.token[s * a.capacity + i] = a.root_token[s];
    std::fprintf(a.log, "%d %d %a\n", a.table[a.slots[s]], a.root_position[s],
                 static_cast<double>(a.uniform[s]));
  }
}

class Slots final : public specd::sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false,
    "required": ["file", "library"],
    "properties": {"file": {"type": "string"}, "library": {"type": "string"}}})";

  static void describe(const Context&, specd_drafter_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_MEMORY, SPECD_SERVICE_METRICS,
                                            SPECD_SERVICE_RNG};
    caps.max_nodes = caps.max_depth = 3;
    caps.attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS;
    caps.services = kServices;
    caps.n_services = 3;
    caps.bytes_per_seq = 2 * sizeof(int32_t) + sizeof(float);
    caps.device_types = 1u << SPECD_DEV_CUDA;
    caps.features = SPECD_FEATURE_CAPTURE;
  }
  explicit Slots(const Context& context)
      : Drafter(context),
        memory_(specd::sdk::require_service<specd_memory>(host(), SPECD_SERVICE_MEMORY)),
        rng_(specd::sdk::require_service<specd_rng>(host(), SPECD_SERVICE_RNG)),
        log_(std::fopen(context.config.required_string("file").c_str(), "a")),
        calls_(*this, SPECD_METRIC_COUNTER, "calls", "Runs of the host code of propose().") {
    void* library = dlopen(context.config.required_string("library").c_str(), RTLD_NOW);
    if (library != nullptr) {
      submit_ = reinterpret_cast<SubmitFn>(dlsym(library, "specd_fake_cuda_submit"));
    }
    if (submit_ == nullptr || log_ == nullptr) throw Error(SPECD_E_CONFIG, "no library or no file");
  }
  ~Slots() {
    std::fclose(log_);
    if (table_ != nullptr) memory_->free(host(), owner(), table_);
  }

  void activated() {
    void* table = nullptr;
    if (memory_->alloc(host(), owner(), grant().device_type, grant().device_index,
                       grant().max_batch * 3 * sizeof(int32_t), 64, &table) != SPECD_OK) {
      throw Error(SPECD_E_EXHAUSTED, "no memory for the table");
    }
    table_ = static_cast<int32_t*>(table);
    index_ = table_ + grant().max_batch;
    uniform_ = reinterpret_cast<float*>(index_ + grant().max_batch);
    const CountArgs args{index_, grant().max_batch};
    submit_(grant().stream, count, &args, sizeof args);
  }

  struct Sequence {
    explicit Sequence(Slots&) {}
  };
  void begin(Sequence&, const specd::sdk::Begin& in) {
    const StoreArgs args{table_, in.slot, static_cast<int32_t>(in.seq_id)};
    submit_(grant().stream, store, &args, sizeof args);
  }
  void propose_tensors(const specd_propose_args& in) {
    calls_.record(1);
    const auto data = [](const specd_tensor* tensor) {
      return static_cast<int32_t*>(tensor->data);
    };
    specd_tensor index = *in.root_position, uniform = index;
    index.data = index_;
    uniform.data = uniform_;
    uniform.dtype_code = SPECD_DT_FLOAT;
    uniform.rank = 2;
    uniform.shape[1] = uniform.stride[0] = uniform.stride[1] = 1;
    if (rng_->uniform(host(), in.batch->call, &index, in.root_position, SPECD_PURPOSE_DRAFT,
                      &uniform) != SPECD_OK) {
      throw Error(SPECD_E_DEVICE, "no uniform numbers");
    }
    const ProposeArgs args{
        table_,   data(in.batch->slots), data(in.root_token), data(in.root_position),
        uniform_, data(in.out->token),   in.batch->n_seqs,    in.out->node_capacity,
        log_};
    submit_(in.batch->stream, propose_kernel, &args, sizeof args);
  }

 private:
  const specd_memory* memory_;
  const specd_rng* rng_;
  std::FILE* log_;
  specd::sdk::Metric calls_;
  SubmitFn submit_ = nullptr;
  int32_t* table_ = nullptr;  // [max_batch], and behind it:
  int32_t* index_ = nullptr;  // [max_batch]: 0, 1, ..
  float* uniform_ = nullptr;  // [max_batch]
};

}  // namespace

SPECD_SDK_PLUGIN("Test: state in device memory by slot, and a captured propose()",
                 specd::sdk::drafter<Slots>("slots", "The root token again"))
