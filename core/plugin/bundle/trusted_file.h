// Opening files of plugin bundles: only what nobody but root and the daemon's user can change.
//
// The path is walked from / with one open file descriptor per part, no part may be a symbolic link,
// and every part is judged by what was opened, so nothing can be swapped between check and use.
// A part is trusted when it belongs to root or to the effective user and is not writable by group
// or others. One exception, the same that ssh makes: a directory on the way that is root's and
// sticky, like /tmp, since there nobody can rename or remove what belongs to another.
#pragma once

#include <cstdint>
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
// Everything up to the end of the file; kDataLoss when that is more than `bytes_max`.
Result<std::string> read_all(const FileDescriptor& file, uint64_t bytes_max,
                             const std::string& path);

}  // namespace specd
