#include "core/services/directory.h"

#include "core/services/tables.h"

namespace specd {

Services::Services(CpuDevice& cpu, Device& device, int32_t vocab_size)
    : state_(new ServiceState{{cpu}, device, vocab_size, WeightService(cpu, device)}) {}

Services::~Services() { retire_host(this); }

void Services::set_models(ModelService* models) { state_->models = models; }
void Services::set_target(Transformer* target, Lead* lead) {
  state_->weights.set_target(target, lead);
}
void Services::plan_target(const ModelConfig& config) { state_->weights.plan_target(config); }

std::span<const ServiceTable> Services::services() const {
  static const ServiceTable all[] = {
      {SPECD_SERVICE_MEMORY, &kMemoryService},   {SPECD_SERVICE_RNG, &kRngService},
      {SPECD_SERVICE_METRICS, &kMetricsService}, {SPECD_SERVICE_POOL, &kPoolService},
      {SPECD_SERVICE_OPS, &kOpsService},         {SPECD_SERVICE_MODEL, &kModelService},
      {SPECD_SERVICE_PARTS, &kPartsService},     {SPECD_SERVICE_WEIGHTS, &kWeightsService},
      {SPECD_SERVICE_TARGET, &kTargetService},   {SPECD_SERVICE_KV, &kKvService},
  };
  return all;
}

Result<Staging*> ServiceState::results() {
  constexpr uint64_t kFirstBytes = uint64_t{1} << 18;  // grows with the calls
  if (staging.room() == 0) {
    SPECD_TRY(staging, Staging::create(device, kFirstBytes, "results of plugin calls"));
  }
  return &staging;
}

ServiceState* ServiceState::of(const specd_host* host) {
  const auto* services = dynamic_cast<const Services*>(host_services(host));
  return services == nullptr ? nullptr : services->state_.get();
}

ModelService* ServiceState::models_of(const specd_host* host) {
  ServiceState* state = of(host);
  return state == nullptr ? nullptr : state->models.load();
}

}  // namespace specd
