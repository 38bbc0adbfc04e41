#include "host/base/command_line.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <utility>

namespace specd::host {

namespace po = boost::program_options;

namespace {

// Boost accepts a sign before an unsigned number and wraps it: --seed -1 would be
// 18446744073709551615.
Status check_signs(const po::parsed_options& parsed) {
  for (const po::option& option : parsed.options) {
    const po::option_description* known =
        parsed.description->find_nothrow(option.string_key, /*approx=*/false);
    if (known == nullptr || option.value.empty() || !option.value[0].starts_with('-')) continue;
    if (dynamic_cast<const po::typed_value<uint64_t>*>(known->semantic().get()) != nullptr)
      return Status(Code::kInvalidArgument, "the argument ('" + option.value[0] +
                                                "') for option '--" + option.string_key +
                                                "' is invalid: expected 0 or more");
  }
  return {};
}

}  // namespace

Result<po::variables_map> read_command_line(const po::options_description& options,
                                            const po::positional_options_description& positional,
                                            const std::vector<std::string>& arguments) {
  po::variables_map values;
  try {
    namespace style = po::command_line_style;
    const po::parsed_options parsed = po::command_line_parser(arguments)
                                          .options(options)
                                          .positional(positional)
                                          .style(style::unix_style & ~style::allow_guessing)
                                          .run();
    SPECD_OK_OR_RETURN(check_signs(parsed));
    po::store(parsed, values);
    po::notify(values);
  } catch (const po::error& error) {
    return Status(Code::kInvalidArgument, error.what());
  }
  return values;
}

const Command* Program::find(const std::string& command) const {
  for (const Command& one : commands)
    if (one.name == command) return &one;
  return nullptr;
}

bool Program::takes(const std::string& command, const std::string& option) const {
  for (const auto& [taken, list] : taken_by) {
    if (taken != option) continue;
    std::istringstream words(list);
    for (std::string word; words >> word;)
      if (word == command) return true;
    return false;
  }
  return true;
}

std::vector<std::string> Program::command_names() const {
  std::vector<std::string> names;
  for (const Command& one : commands) names.push_back(one.name);
  return names;
}

std::string option_of_another_command(const Program& program, const po::variables_map& values,
                                      const std::string& command) {
  for (const auto& [option, commands] : program.taken_by)
    if (values.count(option) != 0 && !values[option].defaulted() && !program.takes(command, option))
      return option;
  return "";
}

std::string commands_help(const Program& program) {
  const auto left = [&](const Command& one) {
    return "  " + program.name + " " + one.name + (one.arguments.empty() ? "" : " ") +
           one.arguments;
  };
  // A command with many arguments has its meaning on the next line.
  constexpr size_t kWidest = 32;
  size_t column = 0;
  for (const Command& one : program.commands)
    if (left(one).size() <= kWidest) column = std::max(column, left(one).size() + 3);
  std::string help;
  for (const Command& one : program.commands) {
    std::string text = left(one);
    if (text.size() > kWidest) help += std::exchange(text, "") + "\n";
    std::istringstream lines(one.meaning);
    for (std::string line; std::getline(lines, line);) {
      text.resize(column, ' ');
      help += text + line + "\n";
      text.clear();
    }
  }
  return help;
}

std::string options_text(const Program& program) {
  std::ostringstream text;
  text << program.options;
  return text.str();
}

}  // namespace specd::host
