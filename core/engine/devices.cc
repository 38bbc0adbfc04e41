#include "core/engine/devices.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/base/log.h"
#include "core/base/quote.h"
#include "core/base/to_size.h"
#include "core/device/cuda_device.h"
#include "core/engine/options.h"

namespace specd {
namespace {

std::string device_field(size_t index) { return "devices[" + std::to_string(index) + "]"; }

Status check_rows(const EngineOptions& options, const std::string& device) {
  constexpr int32_t kCudaRows = 65535;  // kernels/cuda.h
  if (device == "cpu" || options.step_tokens_max <= kCudaRows) return Status();
  return out_of_range("engine.step_tokens_max",
                      "at most " + std::to_string(kCudaRows) + " on " + device,
                      std::to_string(options.step_tokens_max));
}

Status check_draft_device(const EngineOptions& options, const DraftModelOptions& draft) {
  if (!is_elsewhere(options, draft)) return Status();
  const std::string& device = draft.device;
  const bool is_cuda = cuda_index(device) >= 0;
  if (device != "cpu" && !is_cuda)
    return out_of_range("", "cpu or cuda:N (N as CUDA numbers devices)", quote(device));
  for (const std::string& of_rank : options.devices) {
    if (of_rank == device || of_rank == "auto")
      return out_of_range("", "a device that no rank has (devices: has " + of_rank + ")", device);
  }
  if (draft.tensor_parallel_size > 1)
    return out_of_range("",
                        "the target's, because ranks share the model (tensor_parallel_size " +
                            std::to_string(draft.tensor_parallel_size) + ")",
                        device);
  return Status();
}

}  // namespace

bool is_device_name(const std::string& name) {
  return name == "cpu" || name == "auto" || cuda_index(name) >= 0;
}

Status check_devices(const EngineOptions& options) {
  const std::vector<std::string>& devices = options.devices;
  const int32_t n_ranks = n_ranks_of(options);
  SPECD_OK_OR_RETURN(check_range("devices", static_cast<int64_t>(devices.size()), 1,
                                 EngineLimits::kRanks * EngineLimits::kStages));
  std::set<std::string> seen;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!is_device_name(devices[i]))
      return out_of_range(device_field(i), "cpu, cuda:N (N as CUDA numbers devices) or auto",
                          quote(devices[i]));
    if (devices.size() > 1 && cuda_index(devices[i]) < 0)
      return out_of_range(device_field(i), "cuda:N, because there are several", devices[i]);
    if (!seen.insert(devices[i]).second)
      return out_of_range(device_field(i), "a device that is named once", devices[i]);
  }
  const std::string& device = devices.front();
  if (n_ranks > 1 && device == "auto")
    return out_of_range(device_field(0),
                        "cpu, or a cuda:N for each rank, because there are several", device);
  if (cuda_index(device) >= 0 && to_size(n_ranks) % devices.size() != 0)
    return out_of_range("devices",
                        "one for each of the " + std::to_string(n_ranks) +
                            " ranks, or under mpirun for each rank of a machine",
                        std::to_string(devices.size()));
  SPECD_OK_OR_RETURN(check_rows(options, device));
  for (size_t i = 0; i < options.draft_models.size(); ++i) {
    SPECD_OK_OR_RETURN(check_draft_device(options, options.draft_models[i])
                           .in_field(draft_model_field(i) + ".device"));
    if (is_elsewhere(options, options.draft_models[i]))
      SPECD_OK_OR_RETURN(check_rows(options, options.draft_models[i].device));
  }
  if (options.numerics == Numerics::kFast && cuda_index(device) < 0)
    return out_of_range("engine.numerics", "strict or bf16 on " + device + " (fast is for cuda:N)",
                        "fast");
  if (options.numerics == Numerics::kBf16 && device != "cpu")
    return out_of_range("engine.numerics", "strict or fast on " + device + " (bf16 is for cpu)",
                        "bf16");
  return Status();
}

Status check_places(const EngineOptions& options, int32_t n_here) {
  const size_t n = options.devices.size();
  if (cuda_index(options.devices.front()) < 0 || n == to_size(n_here)) return Status();
  return out_of_range("devices",
                      "one for each of the " + std::to_string(n_here) + " ranks of this machine",
                      std::to_string(n));
}

kernels::CudaLimits device_limits(const EngineOptions& options, const ModelConfig& target,
                                  const DraftModels& drafts) {
  kernels::CudaLimits limits{.rows_max = options.step_tokens_max,
                             .width_max = 0,
                             .positions_max = 0,
                             .fast = options.numerics == Numerics::kFast};
  const auto widen = [&](const ModelConfig& each) {
    limits.width_max = std::max(
        {limits.width_max, each.hidden_size, each.intermediate_size, each.n_heads * each.head_dim});
    limits.positions_max = std::max(limits.positions_max, each.positions_end());
  };
  widen(target);
  for (const std::unique_ptr<DraftModel>& draft : drafts) {
    if (draft->status.ok()) widen(draft->config);
  }
  return limits;
}

Result<std::unique_ptr<Device>> open_model_device(const EngineOptions& options, int32_t place,
                                                  const kernels::CudaLimits& limits) {
  const size_t index = options.devices.size() == 1 ? 0 : to_size(place);
  const std::string& name = options.devices[index];
  if (name == "cpu") return std::unique_ptr<Device>();
  Result<std::unique_ptr<Device>> opened =
      open_cuda_device(name == "auto" ? 0 : cuda_index(name), limits);
  if (!opened.ok() && name == "auto") {
    log(LogLevel::kInfo, "devices: auto: models run on the CPU: " + opened.status().text());
    return std::unique_ptr<Device>();
  }
  return std::move(opened).in_field(device_field(index));
}

Result<std::vector<std::unique_ptr<Device>>> open_model_devices(const EngineOptions& options,
                                                                const kernels::CudaLimits& limits) {
  std::vector<std::unique_ptr<Device>> devices;
  for (int32_t i = 0; i < static_cast<int32_t>(options.devices.size()); ++i) {
    SPECD_TRY(std::unique_ptr<Device> device, open_model_device(options, i, limits));
    if (device != nullptr) devices.push_back(std::move(device));
  }
  return devices;
}

bool is_elsewhere(const EngineOptions& options, const DraftModelOptions& draft) {
  const bool is_target = options.devices == std::vector<std::string>{draft.device} &&
                         (n_ranks_of(options) == 1 || draft.device == "cpu");
  return !draft.device.empty() && !is_target;
}

Status open_draft_devices(const EngineOptions& options, const ModelConfig& target, CpuDevice& cpu,
                          DraftModels& drafts, std::vector<std::unique_ptr<Device>>& opened) {
  const kernels::CudaLimits limits = device_limits(options, target, drafts);
  for (size_t i = 0; i < drafts.size(); ++i) {
    DraftModel& draft = *drafts[i];
    if (!draft.is_elsewhere || !draft.status.ok()) continue;
    const std::string& name = options.draft_models[i].device;
    if (name == "cpu") draft.device = &cpu;
    for (const std::unique_ptr<Device>& each : opened) {
      if (each->name() == name) draft.device = each.get();
    }
    if (draft.device != nullptr) continue;
    SPECD_TRY(
        std::unique_ptr<Device> device,
        open_cuda_device(cuda_index(name), limits).in_field(draft_model_field(i) + ".device"));
    draft.device = opened.emplace_back(std::move(device)).get();
  }
  return Status();
}

Result<std::unique_ptr<Device>> open_rank_device(const EngineOptions& options, int32_t place,
                                                 int32_t threads,
                                                 const kernels::CudaLimits& limits) {
  SPECD_TRY(std::unique_ptr<Device> device, open_model_device(options, place, limits));
  if (device != nullptr) return device;
  SPECD_TRY(device, CpuDevice::create(options.isa, threads, options.numerics == Numerics::kBf16));
  return device;
}

}  // namespace specd
