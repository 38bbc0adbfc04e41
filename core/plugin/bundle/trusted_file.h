// Opens files of plugin bundles, and only those that nobody but root and the daemon's user can
// change.
//
// The path is walked from / and each part is opened and then checked through its descriptor, so
// nothing can be swapped between check and use. No part may be a symbolic link. A part is trusted
// when it belongs to root or to the effective user and is not writable by group or others. One
// exception, which ssh makes too: a directory on the way that is sticky and belongs to root, like
// /tmp, since nobody can rename or remove another user's files there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "core/base/file_descriptor.h"
#include "core/base/status.h"

namespace specd {

// `path` is absolute without "." and ".." parts. Errors name the offending part, what is wrong with
// it and how to fix it: kNotFound, kFailedPrecondition (not trusted), kInvalidArgument.
Result<FileDescriptor> open_trusted_directory(const std::string& path);
// A regular file, for reading, of at most `bytes_max` bytes.
Result<FileDescriptor> open_trusted_file(const std::string& path, uint64_t bytes_max);

// The size that fstat() gives.
Result<uint64_t> file_bytes(const FileDescriptor& file, const std::string& path);
// Compares the file's SHA-256 with `expected`, the lower-case hex of plugin.json. `take`, if there is
// one, gets the bytes in order. kDataLoss: they differ, or there are more than `bytes_max`.
Status check_hash(const FileDescriptor& file, uint64_t bytes_max, const std::string& path,
                  const std::string& expected,
                  const std::function<Status(std::span<const std::byte>)>& take = {});
// Everything up to the end of the file; kDataLoss when that is more than `bytes_max`.
Result<std::string> read_all(const FileDescriptor& file, uint64_t bytes_max,
                             const std::string& path);

}  // namespace specd
