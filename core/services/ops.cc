// ops/1: operations on tensors in host memory or on the models' device.
#include <string>

#include "core/services/arguments.h"
#include "core/services/tables.h"
#include "specd/kernels/ops.h"

namespace specd {
namespace {

std::string walk_fault(const specd_walk_args& a, const Device* device) {
  if (a.n_nodes == nullptr || a.token == nullptr || a.path == nullptr) {
    return "n_nodes, token or path is null";
  }
  const int64_t n = a.n_nodes->shape[0], capacity = a.token->shape[1];
  const int64_t path_capacity = a.path->shape[1];
  const auto check = [&](const char* name, const specd_tensor* tensor, uint32_t rank,
                         int64_t columns) {
    std::string fault = tensor_fault(name, tensor, SPECD_DT_INT, rank, device);
    if (!fault.empty()) return fault;
    const bool dense = tensor->stride[rank - 1] == 1 && (rank == 1 || tensor->stride[0] == columns);
    if (tensor->shape[0] != n || (rank == 2 && tensor->shape[1] != columns) || !dense) {
      return std::string(name) + " is not contiguous with shape [" + std::to_string(n) +
             (rank == 2 ? ", " + std::to_string(columns) : "") + "]";
    }
    return std::string();
  };
  std::string fault = check("n_nodes", a.n_nodes, 1, 0);
  if (fault.empty()) fault = check("token", a.token, 2, capacity);
  if (fault.empty()) fault = check("parent", a.parent, 2, capacity);
  if (fault.empty() && a.flags != nullptr) fault = check("flags", a.flags, 2, capacity);
  if (fault.empty()) fault = check("wanted", a.wanted, 2, capacity + 1);
  if (fault.empty()) fault = check("n_path", a.n_path, 1, 0);
  if (fault.empty()) fault = check("path", a.path, 2, path_capacity);
  if (fault.empty()) fault = check("last", a.last, 1, 0);
  return fault;
}

specd_status ops_walk(const specd_host* host, specd_call* call, const specd_walk_args* args) {
  if (call == nullptr || call->batch == nullptr) {
    return refuse(call, SPECD_E_PRECONDITION, "ops.walk: allowed only inside begin() to verify()");
  }
  ServiceState* state = ServiceState::of(host);
  if (state == nullptr) return refuse(call, SPECD_E_PRECONDITION, "ops.walk: unknown host");
  if (args == nullptr || args->struct_size != sizeof(specd_walk_args)) {
    return refuse(
        call, SPECD_E_INVALID,
        "ops.walk: args of struct_size " + std::to_string(sizeof(specd_walk_args)) + " expected");
  }
  const bool on_host = args->n_nodes == nullptr || args->n_nodes->device_type == SPECD_DEV_CPU;
  const std::string fault = walk_fault(*args, on_host ? nullptr : &state->device);
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "ops.walk: " + fault);
  const auto data = [](const specd_tensor* tensor) {
    return tensor == nullptr ? nullptr : static_cast<int32_t*>(tensor->data);
  };
  const kernels::WalkTreeArgs walk{.n_nodes = data(args->n_nodes),
                                   .token = data(args->token),
                                   .parent = data(args->parent),
                                   .flags = data(args->flags),
                                   .wanted = data(args->wanted),
                                   .n_path = data(args->n_path),
                                   .path = data(args->path),
                                   .last = data(args->last),
                                   .n = static_cast<int32_t>(args->n_nodes->shape[0]),
                                   .capacity = static_cast<int32_t>(args->token->shape[1]),
                                   .path_capacity = static_cast<int32_t>(args->path->shape[1]),
                                   .skip_flags = static_cast<int32_t>(args->skip_flags)};
  Device& device = on_host ? state->cpu : state->device;
  device.ops().walk_tree(device.stream(), walk);
  return SPECD_OK;
}

}  // namespace

const specd_ops kOpsService = {sizeof(specd_ops), 0, or_exhausted<ops_walk>};

}  // namespace specd
