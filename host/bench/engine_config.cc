#include "host/bench/engine_config.h"

namespace specd::host {

namespace po = boost::program_options;

void add_engine_options(po::options_description& options) {
  auto add = options.add_options();
  add("config", po::value<std::string>(), "a configuration of specd: an engine in this process");
  add("set", po::value<std::vector<std::string>>()->composing(),
      "with --config: KEY=VALUE instead of the file's value; may be repeated");
  add("model", po::value<std::string>(), "with --config: another model folder than the file's");
  add("threads", po::value<int32_t>(), "with --config: threads of the engine");
}

Result<Config> read_engine_config(const po::variables_map& values) {
  SPECD_TRY(Config config,
            load_config(values["config"].as<std::string>(),
                        overrides_of_process(values.count("set") != 0
                                                 ? values["set"].as<std::vector<std::string>>()
                                                 : std::vector<std::string>())));
  if (values.count("model") != 0) config.engine.model.path = values["model"].as<std::string>();
  if (values.count("threads") != 0) {
    config.engine.threads = values["threads"].as<int32_t>();
    if (config.engine.threads < 1 || config.engine.threads > EngineLimits::kThreads)
      return Status(Code::kInvalidArgument, "--threads: expected 1 to " +
                                                std::to_string(EngineLimits::kThreads) +
                                                ", found " + std::to_string(config.engine.threads));
  }
  return config;
}

Result<std::unique_ptr<Engine>> start_engine(const Config& config) {
  auto engine = Engine::create(config.engine, {});
  if (!engine.ok()) return with_place(config, engine.status());
  return engine;
}

}  // namespace specd::host
