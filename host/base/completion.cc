#include "host/base/completion.h"

#include "core/base/words.h"

namespace specd::host {
namespace {

namespace po = boost::program_options;

// An option as shells see it.
struct Option {
  std::string name;        // without dashes
  std::string letter;      // "h", or empty
  std::string meaning;     // one line
  std::string value_name;  // empty = takes no value
  bool is_file = false;
  std::vector<std::string> words;  // values to offer

  std::vector<std::string> spellings() const {
    std::vector<std::string> all{"--" + name};
    if (!letter.empty()) all.push_back("-" + letter);
    return all;
  }
};

std::vector<Option> options_of(const Program& program) {
  std::vector<Option> options;
  for (const auto& described : program.options.options()) {
    Option option;
    option.name = described->long_name();
    // "-h [ --help ]"
    const std::string format = described->format_name();
    if (format.size() > 2 && format[0] == '-' && format[1] != '-') option.letter = format[1];
    option.meaning = described->description();
    if (described->semantic()->max_tokens() > 0) {
      option.value_name = described->format_parameter();
      // "FILE (=default)"
      option.value_name = option.value_name.substr(0, option.value_name.find(' '));
      option.is_file = option.value_name == "FILE" || option.value_name == "PATH";
      if (option.value_name.find('|') != std::string::npos)
        option.words = split(option.value_name, '|');
      for (const auto& [valued, words] : program.values)
        if (valued == option.name) option.words = words;
    }
    options.push_back(std::move(option));
  }
  return options;
}

std::vector<Option> options_for(const Program& program, const std::string& command) {
  std::vector<Option> taken;
  for (Option& option : options_of(program))
    if (program.takes(command, option.name)) taken.push_back(std::move(option));
  return taken;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// ---- bash --------------------------------------------------------------------------------------

// Names of commands and options, and words, are plain: no quoting is needed for them.
std::string bash_script(const Program& program) {
  const std::string function = "_" + program.name;
  std::vector<std::string> with_value, values;
  for (const Option& option : options_of(program)) {
    if (option.value_name.empty()) continue;
    for (const std::string& one : option.spellings()) with_value.push_back(one);
    const std::string names = "    " + joined(option.spellings(), "|") + ") ";
    if (option.is_file) {
      values.push_back(names +
                       "compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < "
                       "<(compgen -f -- \"$current\"); return ;;");
    } else {
      const bool is_open = !option.words.empty() && option.words[0].back() == '=';
      values.push_back(names + (is_open ? "compopt -o nospace 2> /dev/null; " : "") +
                       "mapfile -t COMPREPLY < <(compgen -W '" + joined(option.words, " ") +
                       "' -- \"$current\"); return ;;");
    }
  }
  std::string script = "# Completion of " + program.name + " in bash: source it, or save it as\n" +
                       "# ~/.local/share/bash-completion/completions/" + program.name + "\n" +
                       function + "() {\n" +
                       "  local current=${COMP_WORDS[COMP_CWORD]} previous= command= words= i\n"
                       "  COMPREPLY=()\n"
                       "  # bash splits words at = and :\n"
                       "  previous=${COMP_WORDS[COMP_CWORD-1]}\n"
                       "  [[ $current == = ]] && current=\n"
                       "  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}\n"
                       "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
                       "    case ${COMP_WORDS[i]} in\n"
                       "      " +
                       joined(with_value, "|") +
                       ")\n"
                       "        ((++i))\n"
                       "        [[ ${COMP_WORDS[i]} == = ]] && ((++i))\n"
                       "        while [[ ${COMP_WORDS[i+1]} == [=:] ]]; do ((i += 2)); done ;;\n"
                       "      " +
                       joined(program.command_names(), "|") +
                       ") command=${COMP_WORDS[i]}; break ;;\n"
                       "    esac\n"
                       "  done\n"
                       "  case $previous in\n" +
                       joined(values, "\n") + "\n  esac\n" +
                       "  [[ ${COMP_WORDS[COMP_CWORD-1]} == [=:] || ${COMP_WORDS[COMP_CWORD]} == "
                       "[=:] ]] && return\n"
                       "  case $command in\n";
  std::vector<std::string> always{"--help", "--version"};
  script += "    '') words='" + joined(program.command_names(), " ") + " " + joined(always, " ") +
            "' ;;\n";
  for (const Command& command : program.commands) {
    std::vector<std::string> words = command.words;
    for (const Option& option : options_for(program, command.name))
      words.push_back("--" + option.name);
    script += "    " + command.name + ") words='" + joined(words, " ") + "' ;;\n";
  }
  return script + "  esac\n  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n}\n" +
         "complete -F " + function + " " + program.name + "\n";
}

// ---- zsh ---------------------------------------------------------------------------------------

// Inside single quotes, in the list syntax of _arguments and _describe.
std::string zsh_text(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted;
}

std::string zsh_option(const Option& option) {
  std::string action;
  if (!option.value_name.empty()) {
    action = ":" + zsh_text(option.value_name) + ":";
    if (option.is_file) action += "_files";
    if (!option.words.empty()) action += "(" + joined(option.words, " ") + ")";
  }
  std::string lines;
  for (const std::string& one : option.spellings())
    lines += "      '*" + one + "[" + zsh_text(option.meaning) + "]" + action + "'\n";
  return lines;
}

std::string zsh_script(const Program& program) {
  const std::string function = "_" + program.name;
  std::string commands, cases;
  for (const Command& command : program.commands) {
    commands +=
        "    '" + zsh_text(command.name) + ":" + zsh_text(first_line(command.meaning)) + "'\n";
    cases += "    " + command.name + ") specs=(\n";
    for (const Option& option : options_for(program, command.name)) cases += zsh_option(option);
    if (!command.words.empty()) cases += "      '2:what:(" + joined(command.words, " ") + ")'\n";
    cases += "      ) ;;\n";
  }
  return "#compdef " + program.name + "\n# Completion of " + program.name +
         " in zsh: save it as _" + program.name + " in a folder of $fpath, or source it\n" +
         function + "() {\n  local -a commands specs\n  local word command state\n  commands=(\n" +
         commands + "  )\n  for word in ${words[2,CURRENT-1]}; do\n    case $word in\n      " +
         joined(program.command_names(), "|") + ") command=$word; break ;;\n    esac\n  done\n" +
         "  case $command in\n" + cases +
         "    *) specs=('--help[the help]' '--version[the version]') ;;\n  esac\n" +
         "  _arguments $specs '1: :->command'\n" +
         "  [[ $state == command ]] && _describe command commands\n}\n" +
         "if [[ $funcstack[1] == " + function + " ]]; then " + function + " \"$@\"; else compdef " +
         function + " " + program.name + "; fi\n";
}

// ---- fish --------------------------------------------------------------------------------------

std::string fish_quote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string fish_script(const Program& program) {
  const std::string front = "complete -c " + program.name;
  std::string script = "# Completion of " + program.name +
                       " in fish: save it as ~/.config/fish/completions/" + program.name +
                       ".fish\n" + front + " -f\n";
  for (const Command& command : program.commands) {
    script += front + " -n __fish_use_subcommand -a " + command.name + " -d " +
              fish_quote(first_line(command.meaning)) + "\n";
    if (!command.words.empty())
      script += front + " -n '__fish_seen_subcommand_from " + command.name + "' -a " +
                fish_quote(joined(command.words, " ")) + "\n";
  }
  for (const Option& option : options_of(program)) {
    std::vector<std::string> commands;
    for (const std::string& command : program.command_names())
      if (program.takes(command, option.name)) commands.push_back(command);
    script += front;
    if (commands.size() < program.commands.size())
      script += " -n '__fish_seen_subcommand_from " + joined(commands, " ") + "'";
    script += " -l " + option.name;
    if (!option.letter.empty()) script += " -s " + option.letter;
    if (!option.value_name.empty()) script += option.is_file ? " -r -F" : " -x";
    if (!option.words.empty()) script += " -a " + fish_quote(joined(option.words, " "));
    script += " -d " + fish_quote(option.meaning) + "\n";
  }
  return script;
}

}  // namespace

std::vector<std::string> completion_shells() { return {"bash", "zsh", "fish"}; }

Result<std::string> completion_script(const Program& program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  return Status(
      Code::kInvalidArgument,
      "completion: expected one of " + joined(completion_shells()) + "; found '" + shell + "'");
}

}  // namespace specd::host
