// Descriptors that belong to the daemon alone. A child that a plugin forks would otherwise keep the
// daemon's lock, its listening sockets and its clients' connections after the daemon's end. Only
// these are closed: the child may use pipes and sockets that its plugin made before.
#pragma once

namespace specd::host {

// [any] A child of fork() closes `fd` at once, until forget_descriptor(). Numbers above 65535 stay.
void keep_from_children(int fd);
// [any] Call before `fd` is closed.
void forget_descriptor(int fd);

}  // namespace specd::host
