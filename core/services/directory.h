// The services that plugins may ask for; each service id has a file in this folder.
//
// Every argument comes from a plugin and is checked; report() says what was refused. Noise and
// uniform numbers use the seed in call->sampling, so they need call->batch and call->sampling.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/device/device.h"
#include "core/plugin/instance/host_context.h"

namespace specd {

class ModelService;
struct ModelConfig;
class Lead;
class Transformer;
struct ServiceState;

class Services final : public ServiceDirectory {
 public:
  // pool/1 and rng/1 use the CPU, in [step] calls only. memory/1 allocates memory of the host and
  // of `device`, and ops/1 works on both. Both must outlive this.
  Services(CpuDevice& cpu, Device& device, int32_t vocab_size);
  ~Services() override;

  // [control] The models of model/1; null = none. Must outlive their use. A plugin that runs beside it has
  // them from then on. Null REQUIRES that no plugin is running.
  void set_models(ModelService* models);
  // [control] The model of target/1; null = none. As above.
  void set_target(Transformer* target, Lead* lead = nullptr);
  // [control] Until set_target(), plugins get tables of this shape, without memory. `config` must outlive
  // that.
  void plan_target(const ModelConfig& config);

  std::span<const ServiceTable> services() const override;

 private:
  friend struct ServiceState;
  std::unique_ptr<ServiceState> state_;
};

}  // namespace specd
