// Descriptors that belong to the daemon alone. A child that a plugin forks would otherwise keep the
// daemon's lock and its listening sockets after the daemon's end.
#pragma once

namespace specd::host {

// [any] A child of fork() closes `fd` at once, until forget_descriptor(). At most 16 descriptors.
void keep_from_children(int fd);
// [any] Call before `fd` is closed.
void forget_descriptor(int fd);

}  // namespace specd::host
