// The calls of the CUDA runtime.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/device/emulated/machine.h"

using specd::emulated::Machine;
using specd::emulated::shared_max_of;
using specd::emulated::use;

namespace {

// Of this thread, as cudaGetLastError() returns it.
thread_local cudaError_t t_last = cudaSuccess;

cudaError_t said(cudaError_t error) {
  if (error != cudaSuccess) t_last = error;
  return error;
}

bool is_pinned(const Machine& machine, const void* data) {
  const auto* at = static_cast<const char*>(data);
  auto after = machine.pinned.upper_bound(at);
  if (after == machine.pinned.begin()) return false;
  --after;
  return static_cast<size_t>(at - after->first) < after->second;
}

cudaError_t copy_now(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool into = kind != cudaMemcpyDeviceToHost, out_of = kind != cudaMemcpyHostToDevice;
  if ((into && !use("cudaMemcpyAsync", to, bytes, true)) ||
      (out_of && !use("cudaMemcpyAsync", from, bytes, false))) {
    return cudaErrorIllegalAddress;
  }
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

}  // namespace

namespace specd::emulated {

thread_local int t_device = 0;

void note_error(cudaError_t error) { said(error); }

bool use(const char* call, const void* data, size_t bytes, bool write) {
  Memory& memory = Machine::get().memory;
  if (!memory.is_live(data, bytes)) {
    std::fprintf(stderr,
                 "emulated CUDA: %s: %zu bytes at %p are not in one block of device memory\n", call,
                 bytes, data);
    return false;
  }
  if (write) memory.defined(data, bytes);
  return true;
}

}  // namespace specd::emulated

// ---- errors and devices ------------------------------------------------------------------------

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
  }
  return "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetLastError() { return std::exchange(t_last, cudaSuccess); }

// Unlike on a device, streams and pinned memory stay.
cudaError_t cudaDeviceReset() {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  for (EmulatedStream* each : machine.streams) {
    each->work.clear();
    each->capture = nullptr;
  }
  machine.memory.release_all();
  machine.asked.clear();
  machine.error = t_last = cudaSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* n) {
  *n = Machine::get().settings.devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= Machine::get().settings.devices) return said(cudaErrorInvalidDevice);
  specd::emulated::t_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const auto& settings = Machine::get().settings;
  if (device < 0 || device >= settings.devices) return said(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated device");
  properties->major = settings.architecture / 10;
  properties->minor = settings.architecture % 10;
  properties->multiProcessorCount = settings.multiprocessors;
  properties->sharedMemPerBlockOptin = shared_max_of(settings.architecture);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {};
  return said(kernel != nullptr ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  if (kernel == nullptr || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > shared_max_of(machine.settings.architecture)) {
    return said(cudaErrorInvalidValue);
  }
  machine.asked[kernel] = static_cast<size_t>(value);
  return said(cudaSuccess);
}

// ---- memory ------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** data, size_t bytes) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  if (machine.error != cudaSuccess) return said(machine.error);
  *data = machine.memory.allocate(bytes);
  return said(*data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}

// Waits for the device, as the real one does.
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  for (EmulatedStream* each : std::set(machine.streams)) {  // others may end meanwhile
    if (machine.streams.count(each) > 0 && each->device == specd::emulated::t_device) {
      machine.drain(each);
    }
  }
  if (machine.error != cudaSuccess) return said(machine.error);
  return said(machine.memory.release(data) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  *data = std::malloc(std::max<size_t>(bytes, 1));
  if (*data == nullptr) return said(cudaErrorMemoryAllocation);
  machine.pinned[static_cast<const char*>(*data)] = std::max<size_t>(bytes, 1);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  if (machine.pinned.erase(static_cast<const char*>(data)) == 0) return said(cudaErrorInvalidValue);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  *free_bytes = machine.memory.free_bytes();
  *total_bytes = machine.memory.total_bytes();
  return said(machine.error);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  attributes->type = machine.memory.is_device(data) ? cudaMemoryTypeDevice
                     : is_pinned(machine, data)     ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

// Pinned memory is read when the stream gets there. Other host memory is read before this returns,
// and written only then: that waits.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  if (machine.streams.count(stream) == 0) return said(cudaErrorInvalidResourceHandle);
  const void* host = kind == cudaMemcpyHostToDevice   ? from
                     : kind == cudaMemcpyDeviceToHost ? to
                                                      : nullptr;
  const bool staged = host != nullptr && !is_pinned(machine, host);
  if (staged && stream->capture != nullptr) return said(cudaErrorStreamCaptureUnsupported);
  if (staged && kind == cudaMemcpyHostToDevice) {
    std::vector<char> copy(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    return said(machine.submit(stream, [=, staging = std::move(copy)] {
      return copy_now(to, staging.data(), bytes, kind);
    }));
  }
  const cudaError_t error = machine.submit(stream, [=] { return copy_now(to, from, bytes, kind); });
  return said(staged && error == cudaSuccess ? machine.drain(stream) : error);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride, const void* from, size_t from_stride,
                              size_t bytes, size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  cudaError_t error =
      bytes > to_stride || bytes > from_stride ? said(cudaErrorInvalidValue) : cudaSuccess;
  for (size_t i = 0; i < rows && error == cudaSuccess; ++i) {
    error = cudaMemcpyAsync(static_cast<char*>(to) + i * to_stride,
                            static_cast<const char*>(from) + i * from_stride, bytes, kind, stream);
  }
  return error;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  return said(machine.submit(stream, [=] {
    if (!use("cudaMemsetAsync", data, bytes, true)) {
      return cudaErrorIllegalAddress;
    }
    if (value == 0) {
      Machine::get().memory.zero(data, bytes);
    } else {
      std::memset(data, value, bytes);
    }
    return cudaSuccess;
  }));
}

// ---- streams, graphs, events -------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  if (machine.error != cudaSuccess) return said(machine.error);
  *stream = *machine.streams.insert(new EmulatedStream()).first;
  (*stream)->device = specd::emulated::t_device;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  const cudaError_t error = machine.drain(stream);
  if (machine.streams.erase(stream) == 0) return said(cudaErrorInvalidResourceHandle);
  delete stream;
  return said(error);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  return said(machine.drain(stream));
}

// Work is done while somebody waits, or looks.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  const cudaError_t error = machine.advance(stream);
  return said(error == cudaSuccess && !stream->work.empty() ? cudaErrorNotReady : error);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  if (machine.streams.count(stream) == 0) return said(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return said(cudaErrorStreamCaptureInvalidated);
  stream->capture = new EmulatedGraph();
  return said(machine.error);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  if (machine.streams.count(stream) == 0) return said(cudaErrorInvalidResourceHandle);
  *graph = std::exchange(stream->capture, nullptr);
  if (*graph == nullptr) return said(cudaErrorStreamCaptureInvalidated);
  return said(machine.error);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned) {
  *ready = new EmulatedGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
// REQUIRES that its launches have completed; a device needs the same.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  delete ready;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  for (const EmulatedWork& each : ready->work) {
    if (const cudaError_t error = machine.submit(stream, each)) return said(error);
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  const cudaError_t error = machine.submit(stream, [event] {
    ++event->n_done;
    event->time = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
  if (error == cudaSuccess) ++event->n_recorded;
  return said(error);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  for (EmulatedStream* each : std::set(machine.streams)) {
    if (event->n_done < event->n_recorded) machine.drain(each);
  }
  return said(machine.error);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}
