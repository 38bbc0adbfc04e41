#include "host/bench/tensor_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace specd::host {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

Status cannot_write(const std::string& what, const std::string& path, int error) {
  return Status(error == ENOSPC ? Code::kExhausted : Code::kFailedPrecondition,
                "cannot " + what + " " + path + ": " + std::strerror(error));
}

TensorFile::TensorFile(std::string path, std::vector<NewTensor> tensors, const std::string& note,
                       std::function<void(double)> progress, const std::atomic<bool>* stop)
    : path_(std::move(path)), progress_(std::move(progress)), stop_(stop) {
  // Large items first, so that all values are aligned.
  std::ranges::stable_sort(tensors, std::greater<>(),
                           [](const NewTensor& each) { return tensor_type_bytes(each.type); });
  Json json{{"__metadata__", {{"format", "pt"}, {"specd_ballast", note}}}};
  for (const NewTensor& each : tensors) {
    json[each.name] = {{"dtype", tensor_type_name(each.type)},
                       {"shape", each.shape},
                       {"data_offsets", {bytes_, bytes_ + each.bytes()}}};
    offset_[each.name] = bytes_;
    bytes_ += each.bytes();
  }
  // The length and the JSON, padded so that the values begin at a multiple of 64.
  std::string text = json.dump();
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  header_.resize(8);
  for (size_t i = 0; i < 8; ++i) header_[i] = static_cast<char>(text.size() >> (8 * i));
  header_ += text;
  for (auto& [name, offset] : offset_) offset += header_.size();
  bytes_ += header_.size();
}

TensorFile::~TensorFile() {
  if (fd_ >= 0) close(fd_);
}

Status TensorFile::create() {
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0) return cannot_write("create", path_, errno);
  return write(header_.data(), header_.size(), 0);
}

Status TensorFile::close_synced() {
  if (fsync(fd_) != 0) return cannot_write("write", path_, errno);
  const int fd = std::exchange(fd_, -1);
  return close(fd) == 0 ? Status() : cannot_write("write", path_, errno);
}

Status TensorFile::write(const void* data, uint64_t bytes, uint64_t offset) {
  if (stop_ != nullptr && *stop_)
    return Status(Code::kCancelled, "stopped while writing " + path_ + "; it is removed");
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = pwrite(fd_, static_cast<const char*>(data) + done, bytes - done,
                             static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return cannot_write("write", path_, n < 0 ? errno : ENOSPC);
    done += static_cast<uint64_t>(n);
  }
  written_ += bytes;
  if (progress_) progress_(static_cast<double>(written_) / static_cast<double>(bytes_));
  return Status();
}

TensorWriter::TensorWriter(TensorFile& file, const std::string& name)
    : file_(file), offset_(file.offset_.find(name)->second) {
  buffer_.reserve(kBufferBytes);
}

Status TensorWriter::write(const void* data, uint64_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const uint64_t take = std::min<uint64_t>(bytes, kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), at, at + take);
    at += take;
    bytes -= take;
    if (buffer_.size() == kBufferBytes) SPECD_OK_OR_RETURN(finish());
  }
  return Status();
}

Status TensorWriter::finish() {
  SPECD_OK_OR_RETURN(file_.write(buffer_.data(), buffer_.size(), offset_));
  offset_ += buffer_.size();
  buffer_.clear();
  return Status();
}

}  // namespace specd::host
