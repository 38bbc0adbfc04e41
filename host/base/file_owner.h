// Whether a file can be trusted, or kept secret, by who may change or read it.
#pragma once

#include <string>

#include "core/base/status.h"

namespace specd::host {

// kInvalidArgument, quoting `path`, when the file belongs to neither the user of specd nor root, when others may
// change it, or, if it is secret, when users outside of its group may read it. A file that does not exist is fine:
// reading it says why. The folders above are not looked at.
Status check_file_owner(const std::string& path, bool is_secret);

}  // namespace specd::host
