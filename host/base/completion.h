// Shell completion, made from the description by which the program reads its command line.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "host/base/command_line.h"

namespace specd::host {

std::vector<std::string> completion_shells();  // "bash", "zsh", "fish"
// A script for the shell to read; kInvalidArgument for another shell.
Result<std::string> completion_script(const Program& program, const std::string& shell);

}  // namespace specd::host
