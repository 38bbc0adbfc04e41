// A new safetensors file. Its header is known before its values, which are written tensor by tensor, also
// several at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "host/bench/weight_format.h"

namespace specd::host {

class TensorFile {
 public:
  // `note`: for the metadata's key "specd_ballast". `progress` receives a fraction in [0, 1] and may be
  // empty; *stop, unless null, ends the writing with kCancelled.
  TensorFile(std::string path, std::vector<NewTensor> tensors, const std::string& note,
             std::function<void(double)> progress, const std::atomic<bool>* stop);
  ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  uint64_t bytes() const { return bytes_; }
  Status create();  // with the header; the path must not exist
  Status close_synced();

 private:
  friend class TensorWriter;
  Status write(const void* data, uint64_t bytes, uint64_t offset);

  const std::string path_;
  const std::function<void(double)> progress_;
  const std::atomic<bool>* const stop_;
  std::string header_;
  std::map<std::string, uint64_t, std::less<>> offset_;  // of a tensor's values in the file
  uint64_t bytes_ = 0, written_ = 0;
  int fd_ = -1;
};

// The values of one tensor, from the first to the last.
class TensorWriter {
 public:
  // REQUIRES a tensor of the file, which outlives this.
  TensorWriter(TensorFile& file, const std::string& name);

  Status write(const void* data, uint64_t bytes);
  Status finish();

 private:
  TensorFile& file_;
  uint64_t offset_;
  std::vector<char> buffer_;
};

// kExhausted when the disk is full, else kFailedPrecondition: "cannot create PATH: Permission denied".
Status cannot_write(const std::string& what, const std::string& path, int error);

}  // namespace specd::host
