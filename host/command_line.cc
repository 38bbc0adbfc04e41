#include "host/command_line.h"

namespace specd::host {

namespace po = boost::program_options;

Result<po::variables_map> read_command_line(const po::options_description& options,
                                            const po::positional_options_description& positional,
                                            const std::vector<std::string>& arguments) {
  po::variables_map values;
  try {
    namespace style = po::command_line_style;
    po::store(po::command_line_parser(arguments)
                  .options(options)
                  .positional(positional)
                  .style(style::unix_style & ~style::allow_guessing)
                  .run(),
              values);
    po::notify(values);
  } catch (const po::error& error) {
    return Status(Code::kInvalidArgument, error.what());
  }
  return values;
}

}  // namespace specd::host
