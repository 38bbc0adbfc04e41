#include "core/device/staging.h"

#include <algorithm>
#include <bit>

namespace specd {

Result<Staging::Block> Staging::make_block(Device& device, uint64_t bytes,
                                           const std::string& what) {
  Block block;
  block.capacity = bytes;
  SPECD_TRY(block.host, device.allocate_pinned(bytes, what));
  if (!device.is_host()) {
    SPECD_TRY(block.memory, device.allocate(bytes, what));
  }
  return block;
}

Result<Staging> Staging::create(Device& device, uint64_t bytes, const std::string& what) {
  Staging staging;
  staging.device_ = &device;
  staging.what_ = what;
  SPECD_TRY(Block block, make_block(device, bytes, what));
  staging.blocks_.push_back(std::move(block));
  return staging;
}

Staging::Place Staging::take(uint64_t bytes) {
  if (bytes > room() && status_.ok()) {
    Result<Block> block =
        make_block(*device_, std::bit_ceil(std::max(bytes, blocks_.back().capacity)), what_);
    if (block.ok()) {
      blocks_.push_back(std::move(block).value());
    } else {
      status_ = block.status();
    }
  }
  if (bytes > room()) {
    stranded_.push_back(std::make_unique<char[]>(bytes));
    return {stranded_.back().get(), stranded_.back().get()};
  }
  Block& block = blocks_.back();
  char* host = static_cast<char*>(block.host.data()) + block.used;
  char* device = device_->is_host() ? host : static_cast<char*>(block.memory.data()) + block.used;
  block.used += bytes;
  return {host, device};
}

void Staging::send(Block& block, uint64_t from) {
  if (!device_->is_host()) {
    device_->copy_in(static_cast<char*>(block.memory.data()) + from,
                     static_cast<char*>(block.host.data()) + from, block.used - from);
  }
  block.uploaded = block.used;
}

void Staging::upload() {
  for (Block& block : blocks_) send(block, block.uploaded);
}

void Staging::upload_all() {
  for (Block& block : blocks_) send(block, 0);
}

bool Staging::clear() {
  stranded_.clear();
  status_ = Status();
  const bool moved = blocks_.size() > 1;
  if (moved) {
    // If there is no memory for one block of all columns, only the largest block is kept.
    Result<Block> merged = make_block(*device_, std::bit_ceil(used()), what_);
    Block largest = merged.ok() ? std::move(merged).value()
                                : std::move(*std::max_element(
                                      blocks_.begin(), blocks_.end(),
                                      [](auto& a, auto& b) { return a.capacity < b.capacity; }));
    blocks_.clear();
    blocks_.push_back(std::move(largest));
  }
  for (Block& block : blocks_) block.used = block.uploaded = 0;
  return moved;
}

uint64_t Staging::capacity() const {
  uint64_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.capacity;
  return bytes;
}

uint64_t Staging::used() const {
  uint64_t bytes = 0;
  for (const Block& block : blocks_) bytes += block.used;
  return bytes;
}

}  // namespace specd
