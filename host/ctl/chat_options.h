// specctl's options for conversations: --message, --messages, --tools, --template-arguments.
#pragma once

#include <boost/program_options.hpp>

#include "core/base/status.h"
#include "host/proto/specd.pb.h"

namespace specd::host {

void add_chat_options(boost::program_options::options_description& options);
// Whether any of them was given.
bool has_chat_options(const boost::program_options::variables_map& values);
Result<v1::ChatPrompt> read_chat_options(const boost::program_options::variables_map& values);

}  // namespace specd::host
