// specd-bench ballast.
#include <unistd.h>

#include <cstdio>

#include "host/bench/ballast.h"
#include "host/bench/command.h"
#include "host/base/output.h"
#include "host/base/table.h"

namespace specd::host {

namespace po = boost::program_options;

int ballast_command(const std::vector<std::string>& arguments) {
  po::options_description options(
      "specd-bench ballast --bytes SIZE MODEL OUT: a checkpoint that reads SIZE of weights a "
      "forward\nand writes the tokens of MODEL, to the bit; with --weights those of MODEL quantized so");
  auto add = options.add_options();
  add("help,h", "this text");
  add("bytes", po::value<std::string>(), "size of the new model.safetensors: 2GB, 512MiB");
  add("context", po::value<int32_t>(), "new max_position_embeddings, for long prompts");
  add("hidden", po::value<int32_t>(),
      "new hidden_size, 4 or 16 times that of MODEL: fewer, wider layers");
  add("weights", po::value<std::string>(),
      "quantize the linear layers: int8 (W8A8), int4 (W4A16) or fp8; default: as in MODEL");
  add("model", po::value<std::string>(), "a Hugging Face folder with a plain Llama");
  add("out", po::value<std::string>(), "the new folder; must not exist");
  po::positional_options_description positional;
  positional.add("model", 1).add("out", 1);
  const auto parsed = read_command_line(options, positional, arguments);
  if (!parsed.ok()) return bench_usage("ballast", parsed.status().message());
  const po::variables_map& values = parsed.value();
  if (values.count("help") != 0) {
    print_options(options);
    return kBenchOk;
  }
  for (const char* need : {"bytes", "model", "out"})
    if (values.count(need) == 0)
      return bench_usage("ballast",
                         std::string("expected --bytes SIZE MODEL OUT; missing: ") + need);
  const auto bytes = parse_bytes("--bytes", values["bytes"].as<std::string>());
  if (!bytes.ok()) return bench_usage("ballast", bytes.status().message());
  BallastOptions wanted{.model = values["model"].as<std::string>(),
                        .out = values["out"].as<std::string>(),
                        .bytes = bytes.value(),
                        .context = 0,
                        .hidden = 0,
                        .weights = WeightFormat::kOwn,
                        .progress = {},
                        .stop = &bench_stop};
  if (values.count("context") != 0) {
    wanted.context = values["context"].as<int32_t>();
    if (wanted.context < 1) return bench_usage("ballast", "--context: expected at least 1");
  }
  if (values.count("hidden") != 0) {
    wanted.hidden = values["hidden"].as<int32_t>();
    if (wanted.hidden < 1) return bench_usage("ballast", "--hidden: expected at least 1");
  }
  if (values.count("weights") != 0) {
    const auto format = parse_weight_format("--weights", values["weights"].as<std::string>());
    if (!format.ok()) return bench_usage("ballast", format.status().message());
    wanted.weights = format.value();
  }
  const bool is_terminal = isatty(STDERR_FILENO) == 1;
  if (is_terminal)
    wanted.progress = [](double fraction) {
      std::fprintf(stderr, "\r[%3d %%] writing", static_cast<int>(fraction * 100));
    };
  const auto made = write_ballast(wanted);
  if (is_terminal) std::fputc('\n', stderr);
  if (!made.ok()) return bench_fail(made.status());
  const BallastReport& report = made.value();
  write_output(printable(wanted.out) + ": ballast of " + printable(wanted.model) + ", " +
               bytes_text(report.bytes) + " of weights (the source has " +
               bytes_text(report.source_bytes) + "), " + std::to_string(report.shape.n_layers) +
               " layers, hidden " + std::to_string(report.shape.hidden_size) + ", FFN " +
               std::to_string(report.shape.intermediate_size) + "\n");
  return kBenchOk;
}

}  // namespace specd::host
