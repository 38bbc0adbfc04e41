// Reads the command lines of specd, specctl and specd-bench the same way. One description of a
// program serves its help, its checks and the completion of shells.
#pragma once

#include <boost/program_options.hpp>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace specd::host {

// `arguments` are those after the program's (or the command's) name. kInvalidArgument on anything
// unknown; abbreviated options are unknown.
Result<boost::program_options::variables_map> read_command_line(
    const boost::program_options::options_description& options,
    const boost::program_options::positional_options_description& positional,
    const std::vector<std::string>& arguments);

// The value of an option: a whole number within [min, max], which errors name.
//
//   options.add_options()("rounds", whole_number<int32_t>(1)->default_value(3), "how often");
template <typename T>
class WholeNumber : public boost::program_options::typed_value<T> {
 public:
  WholeNumber(T least, T most)
      : boost::program_options::typed_value<T>(nullptr), min(least), max(most) {}
  void xparse(boost::any& value, const std::vector<std::string>& words) const override {
    boost::program_options::typed_value<T>::xparse(value, words);
    const T number = boost::any_cast<T>(value);
    if (number < min || number > max)
      throw boost::program_options::invalid_option_value(words.at(0));
  }
  const T min, max;
};
template <typename T>
boost::program_options::typed_value<T>* whole_number(T min, T max = std::numeric_limits<T>::max()) {
  return new WholeNumber<T>(min, max);  // whoever takes the option owns it
}

// "a,b,c"; an empty part stays, an empty text has none.
std::vector<std::string> split(const std::string& text, char by = ',');
// "1,4,8", each within [min, max]. kInvalidArgument naming `option`.
Result<std::vector<double>> parse_list(const std::string& option, const std::string& text,
                                       double min, double max, bool whole);

struct Command {
  std::string name;
  std::string arguments;                // as the help shows them: "--config FILE"
  std::string meaning;                  // may have several lines
  std::vector<std::string> words = {};  // one of them follows: "apply", "delete"
};

struct Program {
  std::string name;
  std::vector<Command> commands;
  // value_name() says what a value is: FILE and PATH are files, "a|b" are words.
  boost::program_options::options_description options;
  // The commands that take an option, separated by spaces. Every command takes the options that are
  // not listed.
  std::vector<std::pair<std::string, std::string>> taken_by;
  // Values that a shell may offer for an option, in addition to value_name().
  std::vector<std::pair<std::string, std::vector<std::string>>> values = {};

  const Command* find(const std::string& command) const;  // null when there is none
  bool takes(const std::string& command, const std::string& option) const;
  std::vector<std::string> command_names() const;
};

// The first option that was given and that `command` does not take, or "".
std::string option_of_another_command(const Program& program,
                                      const boost::program_options::variables_map& values,
                                      const std::string& command);

// "  specd serve --config FILE   load ..." a line each, with the meanings aligned.
std::string commands_help(const Program& program);
// The options, as boost shows them.
std::string options_text(const Program& program);

}  // namespace specd::host
