// The process of a drafter: what specd-runner runs.
#pragma once

namespace specd {

// [main] Serves the daemon that has started this process, see core/plugin/process, and returns when that closes the
// socket, which is descriptor 3. `parent`: the daemon's process number. Returns the code to exit with.
int run_drafter(int parent);

}  // namespace specd
