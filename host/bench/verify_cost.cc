#include "host/bench/verify_cost.h"

#include <algorithm>
#include <numeric>

#include "core/base/clock.h"
#include "core/device/device.h"
#include "core/kv/block_table.h"
#include "core/model/transformer.h"
#include "host/bench/statistics.h"

namespace specd::host {
namespace {

constexpr int kTimesPerRound = 5;

}  // namespace

struct VerifyCost::Impl {
  std::vector<int> rows;
  std::unique_ptr<CpuDevice> device;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvStore> kv;
  BlockTable table;
  std::map<int, std::vector<double>> ms;  // by rows, 1 among them

  double forward(int32_t position, int32_t n, bool with_logits) {
    ForwardRows in;
    in.pages = table.pages;
    for (int32_t i = 0; i < n; ++i) {
      if (with_logits) in.logits_rows.push_back(i);
      in.token.push_back((position + i) % model->config().vocab_size);
      in.position.push_back(position + i);
      in.slot.push_back(table.physical(position + i));
      in.span.push_back(position + i + 1);
      in.table.push_back(0);
      in.tail_begin.push_back(0);
    }
    const uint64_t start = now_ns();
    model->forward(in.in_place(), *kv);
    return static_cast<double>(now_ns() - start) / 1e6;
  }
};

VerifyCost::VerifyCost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VerifyCost::~VerifyCost() = default;

Result<std::unique_ptr<VerifyCost>> VerifyCost::create(const EngineOptions& options,
                                                       const std::string& device,
                                                       const std::vector<int>& rows) {
  if (!device.starts_with("cpu"))
    return Status(Code::kUnsupported,
                  "--verify-cost: expected devices: [cpu], the engine runs on " + device +
                      ": forwards are timed on the processor");
  const int32_t most = *std::max_element(rows.begin(), rows.end());
  SPECD_TRY(const ModelConfig config, load_model_config(options.model.path));
  if (config.max_positions < kContext + most)
    return Status(Code::kInvalidArgument, "--verify-cost: expected a context of at least " +
                                              std::to_string(kContext + most) + ", the model has " +
                                              std::to_string(config.max_positions));
  auto impl = std::make_unique<Impl>();
  impl->rows = rows;
  SPECD_TRY(impl->device,
            CpuDevice::create(options.isa, options.threads, options.numerics == Numerics::kBf16));
  SPECD_TRY(impl->model, Transformer::load(*impl->device, options.model.path, config,
                                           std::max(kContext, most), most, {}));
  const int32_t n_pages = pages_for(kContext + most);
  SPECD_TRY(KvStore kv, KvStore::create(*impl->device, config, options.model.kv_dtype, n_pages));
  impl->kv = std::make_unique<KvStore>(std::move(kv));
  impl->table.pages.resize(static_cast<size_t>(n_pages));
  std::iota(impl->table.pages.begin(), impl->table.pages.end(), 0);
  impl->forward(0, kContext, false);
  return std::unique_ptr<VerifyCost>(new VerifyCost(std::move(impl)));
}

void VerifyCost::measure() {
  impl_->forward(kContext, 1, true);  // the engine's weights have gone through the caches since
  for (int i = 0; i < kTimesPerRound; ++i) {
    for (const int n : impl_->rows) {
      impl_->ms[1].push_back(impl_->forward(kContext, 1, true));
      impl_->ms[n].push_back(impl_->forward(kContext, n, true));
    }
  }
}

std::map<int, double> VerifyCost::result() const {
  std::map<int, double> cost;
  if (impl_->ms.empty()) return cost;
  const double one = median(impl_->ms.at(1));
  for (const int n : impl_->rows) cost[n] = median(impl_->ms.at(n)) / one;
  return cost;
}

}  // namespace specd::host
