// Options of the commands that make an engine in this process.
#pragma once

#include <boost/program_options.hpp>
#include <memory>

#include "host/config/config.h"

namespace specd::host {

// --config, --set, --model and --threads.
void add_engine_options(boost::program_options::options_description& options);
// The configuration that they give. REQUIRES --config.
Result<Config> read_engine_config(const boost::program_options::variables_map& values);
// Errors name the place in the configuration.
Result<std::unique_ptr<Engine>> start_engine(const Config& config);

// Shuts the plugins down. Make it before the first engine, so that it is destroyed after the last.
struct PluginsEnd {
  PluginsEnd() = default;
  PluginsEnd(const PluginsEnd&) = delete;
  PluginsEnd& operator=(const PluginsEnd&) = delete;
  ~PluginsEnd() { shut_down_plugins(); }
};

}  // namespace specd::host
