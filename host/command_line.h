// The command lines of specd, specctl and specd-bench, read one way.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace specd::host {

// `arguments` are those behind the program's (or the command's) name. kInvalidArgument on anything
// unknown; abbreviated options are unknown.
Result<boost::program_options::variables_map> read_command_line(
    const boost::program_options::options_description& options,
    const boost::program_options::positional_options_description& positional,
    const std::vector<std::string>& arguments);

}  // namespace specd::host
