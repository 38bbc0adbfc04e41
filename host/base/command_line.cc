#include "host/base/command_line.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <sstream>
#include <utility>

#include "core/base/quote.h"

namespace specd::host {

namespace po = boost::program_options;

namespace {

// Opens /dev/null for each standard descriptor that the process was started without. Otherwise a
// file or socket gets its number, and text for the terminal goes there. Standard output is opened for
// reading, so that writing to it fails as it would have. Runs before the constructors of libraries,
// since gRPC's open a descriptor, and before a sanitizer has started.
__attribute__((no_sanitize("address", "undefined"))) void open_standard_descriptors() {
  for (const long standard : {0L, 1L, 2L}) {
    // A free number is the lowest, since those below are taken.
    if (syscall(SYS_fcntl, standard, F_GETFD) < 0)
      (void)!syscall(SYS_openat, AT_FDCWD, "/dev/null", standard == 1 ? O_RDONLY : O_RDWR);
  }
}
__attribute__((section(".preinit_array"),
               used)) void (*const run_before_libraries)() = open_standard_descriptors;

template <typename T>
std::string range_of(const po::option_description& option) {
  const po::value_semantic* value = option.semantic().get();
  if (dynamic_cast<const po::typed_value<T>*>(value) == nullptr) return "";
  const auto* declared = dynamic_cast<const WholeNumber<T>*>(value);
  using Limits = std::numeric_limits<T>;
  return "; expected a whole number from " +
         std::to_string(declared != nullptr ? declared->min : Limits::min()) + " to " +
         std::to_string(declared != nullptr ? declared->max : Limits::max());
}

// What the numbers of an option may be, for its error.
std::string expected_of(const po::options_description& options, const std::string& name) {
  const size_t start = name.find_first_not_of('-');
  if (start == std::string::npos) return "";
  const po::option_description* option = options.find_nothrow(name.substr(start), /*approx=*/false);
  if (option == nullptr) return "";
  return range_of<uint64_t>(*option) + range_of<int64_t>(*option) + range_of<int32_t>(*option);
}

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
  } catch (const po::multiple_occurrences& error) {
    return Status(Code::kInvalidArgument, error.what());
  } catch (const po::error_with_option_name& error) {
    return Status(Code::kInvalidArgument,
                  error.what() + expected_of(options, error.get_option_name()));
  } catch (const po::error& error) {
    return Status(Code::kInvalidArgument, error.what());
  }
  return values;
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
  if (text.ends_with(by)) parts.emplace_back();
  return parts;
}

Result<std::vector<double>> parse_list(const std::string& option, const std::string& text,
                                       double min, double max, bool whole) {
  const auto number = [](double value) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.10g", value);
    return std::string(digits);
  };
  std::vector<double> values;
  for (const std::string& part : split(text)) {
    double value = 0;
    const auto [end, bad] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (bad != std::errc() || end != part.data() + part.size() || !(value >= min && value <= max) ||
        (whole && value != std::floor(value)))
      return Status(Code::kInvalidArgument, option + ": expected " +
                                                (whole ? "whole numbers" : "numbers") + " from " +
                                                number(min) + " to " + number(max) +
                                                ", separated by commas, found " + quote(part, 60));
    values.push_back(value);
  }
  if (values.empty())
    return Status(Code::kInvalidArgument, option + ": expected at least one number");
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
