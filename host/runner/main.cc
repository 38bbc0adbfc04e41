// specd-runner: the process of a drafter whose route has `isolation: process`. The daemon starts it.
#include <cstdlib>

#include "core/base/log.h"
#include "core/runner/runner.h"

int main(int n, char** arguments) {
  const int parent = n > 1 ? std::atoi(arguments[1]) : 0;
  if (parent > 1) return specd::run_drafter(parent);
  specd::say(
      "specd-runner: only specd starts this program, for routes with `isolation: process`\n");
  return 2;
}
