// specctl: talks to a running specd. This file reads the command line and runs the command.
#include <algorithm>
#include <chrono>
#include <boost/program_options.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/quote.h"
#include "host/base/command_line.h"
#include "host/base/completion.h"
#include "host/base/output.h"
#include "host/base/unix_socket.h"
#include "host/ctl/chat_options.h"
#include "host/ctl/command.h"
#include "host/rpc/client.h"
#include "host/version.h"

namespace specd::host {
namespace {

namespace po = boost::program_options;

// That of configs/systemd.
constexpr char kSystemSocket[] = "/run/specd/specd.sock";

constexpr char kAbout[] = "specctl: talks to a running specd\n";
constexpr char kExits[] =
    "\nExit codes: 0 fine, 1 the daemon refused, or the output cannot be written,\n"
    "            2 wrong command line, 3 compare found a route whose text differs,\n"
    "            4 no daemon answers at the socket\n";

po::options_description make_options() {
  po::options_description options("Options");
  auto add = options.add_options();
  add("help,h", "this text");
  add("version", "the version");
  add("socket", po::value<std::string>()->value_name("PATH"),
      "the daemon's socket (default: $SPECD_SOCKET, else specd.sock in $XDG_RUNTIME_DIR or "
      "/tmp/specd-UID.sock if it is there, else /run/specd/specd.sock)");
  add("server", po::value<std::string>()->value_name("HOST:PORT"),
      "the daemon's port (tcp.listen) instead of its socket");
  add("tls-ca", po::value<std::string>()->value_name("FILE"),
      "for --server: PEM of the authorities that may have signed the daemon's certificate");
  add("tls-certificate", po::value<std::string>()->value_name("FILE"),
      "for --server: PEM of the certificate to show");
  add("tls-key", po::value<std::string>()->value_name("FILE"), "for --server: PEM of its key");
  add("timeout", whole_number<int32_t>(0)->default_value(300)->value_name("SECONDS"),
      "how long a call may take, generation apart; 0 = no limit");
  add("output,o", po::value<std::string>()->default_value("table")->value_name("table|json|yaml"),
      "table, json (one object a line) or yaml; for record: the file to write");
  add("prompt", po::value<std::string>(),
      "generate, render: the prompt; else --prompt-file, else input");
  add("prompt-file", po::value<std::string>()->value_name("FILE"),
      "generate, render: a file or a pipe with the prompt");
  add("prompt-tokens", po::value<std::string>(), "generate: the prompt as ids, 0,17,4");
  add_chat_options(options);
  add("temperature", po::value<std::string>()->default_value("0"),
      "0 = greedy; compare and record take a list; generate: sampling options that are not given "
      "come from generation_config.json");
  add("top-p", po::value<float>()->default_value(1));
  add("top-k", whole_number<int32_t>(0)->default_value(0));
  add("seed", po::value<uint64_t>()->default_value(0));
  add("min-p", po::value<float>(), "generate: 0 = off");
  add("typical-p", po::value<float>(), "generate: 1 = off");
  add("repetition-penalty", po::value<float>(), "generate: over prompt and output, 1 = off");
  add("frequency-penalty", po::value<float>(), "generate: over the output, 0 = off");
  add("presence-penalty", po::value<float>(), "generate: over the output, 0 = off");
  add("logit-bias", po::value<std::vector<std::string>>()->composing()->value_name("ID:NUMBER"),
      "generate: -100 to 100, added to the logit of a token; may be repeated");
  add("max-tokens", whole_number<int32_t>(1)->default_value(128));
  add("min-tokens", whole_number<int32_t>(0)->default_value(0),
      "generate: the text does not end before");
  add("stop", po::value<std::vector<std::string>>()->composing(), "generate: may be repeated");
  add("stop-token", po::value<std::vector<int32_t>>()->composing(), "generate: may be repeated");
  add("ignore-eos", po::bool_switch());
  add("request-id", po::value<std::string>()->default_value(""));
  add("priority", whole_number<int32_t>(-1000, 1000)->default_value(0),
      "generate: -1000 to 1000, smaller = sooner");
  add("deadline-ms", whole_number<int64_t>(0)->default_value(0), "generate: 0 = none");
  add("cache-salt", po::value<std::string>()->default_value(""),
      "generate: shares cached prefixes with the same salt only");
  add("draft-nodes-max", whole_number<int32_t>(0),
      "generate: less than the route's; 0 = no drafts");
  add("logprobs", whole_number<int32_t>(0, 20),
      "generate: log-probabilities of the new tokens and of so many most likely ones");
  add("prompt-logprobs", whole_number<int32_t>(0, 20), "generate: the same of the prompt's tokens");
  add("n", whole_number<int32_t>(1, 128)->default_value(1), "generate: texts for the prompt");
  add("best-of", whole_number<int32_t>(0, 128)->default_value(0),
      "generate: texts to draw; the n most likely are shown. 0 = n");
  add("echo", po::bool_switch(), "generate: the prompt's text before the new one");
  add("route", po::value<std::string>()->default_value(""), "generate and record");
  add("routes", po::value<std::string>()->default_value("off"),
      "compare: list, the first is the base");
  add("prompts", po::value<std::vector<std::string>>()->composing()->value_name("PATH"),
      "compare and record: file or folder, may be repeated");
  add("repeat", whole_number<int>(1, 1000)->default_value(1), "compare: rounds");
  add("file,f", po::value<std::string>()->value_name("FILE"),
      "route apply and stage: YAML or JSON of one route");
  add("running", po::value<std::string>()->default_value("keep")->value_name("keep|attach|drop"),
      "route: what requests get that run with another version of the route: they keep it, get the "
      "new one, or go on without drafts");
  add("generation", whole_number<uint64_t>(1),
      "route traffic, promote, abort, rollback: fail if another version than this one is meant");
  add("dry-run", po::bool_switch(), "route, reload: say what would happen, and change nothing");
  add("max", whole_number<int32_t>(1, 10'000)->default_value(1000), "requests: how many to show");
  add("interval", whole_number<int32_t>(1, 3600)->default_value(1)->value_name("SECONDS"),
      "top: between two looks");
  add("count", whole_number<int32_t>(0)->default_value(0),
      "top: how often; 0 = until it is stopped");
  add("follow", po::bool_switch(), "events: wait for more");
  add("after", po::value<uint64_t>()->default_value(0), "events: only those with larger numbers");
  add("percent", whole_number<int32_t>(0, 100),
      "route traffic: of the new requests, for the candidate");
  add("shadow", po::bool_switch(),
      "route traffic: show the candidate what the requests do, and compare its drafts with them");
  return options;
}

// The first value that is not UTF-8, or "". The daemon takes such bytes in a cache salt only; paths
// may have any.
std::string utf8_problem(const Program& program, const po::variables_map& values) {
  for (const auto& [name, value] : values) {
    const po::option_description* known = program.options.find_nothrow(name, /*approx=*/false);
    const std::string kind = known == nullptr ? "" : known->format_parameter();
    if (kind == "FILE" || kind == "PATH" || name == "output" || name == "cache-salt") continue;
    std::vector<std::string> texts;
    if (const auto* one = boost::any_cast<std::string>(&value.value())) texts = {*one};
    if (const auto* many = boost::any_cast<std::vector<std::string>>(&value.value())) texts = *many;
    for (const std::string& text : texts)
      if (utf8_error_offset(text) != std::string::npos)
        return (known == nullptr ? "" : "--" + name + ": ") + "expected UTF-8, found " +
               quote(text, 60);
  }
  return "";
}

bool is_loopback(const std::string& server) {
  const std::string host = server.substr(0, server.rfind(':'));
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

// The error in the options about the daemon's address, or "".
std::string server_usage_problem(const po::variables_map& values) {
  const bool has_server = values.count("server") != 0;
  if (has_server && values.count("socket") != 0) return "--socket or --server, not both";
  const size_t n_files =
      values.count("tls-ca") + values.count("tls-certificate") + values.count("tls-key");
  if (n_files == 0 && has_server && !is_loopback(values["server"].as<std::string>()))
    return "--server of another machine needs --tls-ca, --tls-certificate and --tls-key: else "
           "everybody in between reads along";
  if (n_files == 0) return "";
  if (!has_server) return "--tls-ca, --tls-certificate and --tls-key are for --server";
  return n_files == 3 ? "" : "expected --tls-ca, --tls-certificate and --tls-key together";
}

Result<Client> connect(const po::variables_map& values) {
  const auto text = [&](const char* name) { return values[name].as<std::string>(); };
  if (values.count("server") != 0) {
    std::optional<Client::Tls> tls;
    if (values.count("tls-ca") != 0)
      tls = {.ca = text("tls-ca"), .certificate = text("tls-certificate"), .key = text("tls-key")};
    return Client::connect_tcp(text("server"), tls);
  }
  if (values.count("socket") != 0) return Client::connect(text("socket"));
  const char* const given = std::getenv("SPECD_SOCKET");
  const std::string own = default_socket();
  const bool is_own = (given != nullptr && *given != '\0') || path_exists(own);
  return Client::connect(is_own ? own : kSystemSocket);
}

// The error in the words after `route`, or "".
std::string route_usage_problem(const po::variables_map& values,
                                const std::vector<std::string>& arguments) {
  const std::string action = arguments.empty() ? "" : arguments[0];
  const bool has_file = values.count("file") != 0;
  const bool has_percent = values.count("percent") != 0;
  const bool is_shadow = values["shadow"].as<bool>();
  const std::string what = "route " + action + ": expected ";
  if (has_percent && action != "traffic")
    return "route " + action + ": --percent is for route traffic";
  if (is_shadow && action != "traffic")
    return "route " + action + ": --shadow is for route traffic";
  const auto is_one_of = [&](const std::vector<std::string>& actions) {
    return std::find(actions.begin(), actions.end(), action) != actions.end();
  };
  const std::string running = values["running"].as<std::string>();
  if (running != "keep" && running != "attach" && running != "drop")
    return "--running: expected keep, attach or drop, found '" + running + "'";
  if (running != "keep" && is_one_of({"stage", "traffic", "get"}))
    return "route " + action + ": --running is for apply, promote, abort, rollback and delete";
  if (values.count("generation") != 0 && is_one_of({"apply", "stage", "delete", "get"}))
    return "route " + action + ": --generation is for traffic, promote, abort and rollback";
  if (values["dry-run"].as<bool>() && action == "get")
    return "route get: it changes nothing, with or without --dry-run";
  if (action == "apply" || action == "stage")
    return arguments.size() == 1 && has_file ? "" : what + "-f FILE";
  if (action == "traffic")
    return arguments.size() == 2 && !has_file && has_percent != is_shadow
               ? ""
               : what + "NAME and either --percent N or --shadow";
  if (is_one_of({"delete", "get", "promote", "abort", "rollback"}))
    return arguments.size() == 2 && !has_file ? "" : what + "NAME";
  return "route: expected apply, delete, get, stage, traffic, promote, abort or rollback, found '" +
         action + "'";
}

// The error in the command line apart from the values of its options, or "".
std::string usage_problem(const Program& program, const po::variables_map& values,
                          const std::string& command, const std::vector<std::string>& arguments) {
  const Command* known = program.find(command);
  if (known == nullptr) return "unknown command '" + command + "'";
  if (const std::string option = option_of_another_command(program, values, command);
      !option.empty())
    return command + " takes no --" + option;
  if (known->words.empty() && !arguments.empty())
    return command + " takes no '" + arguments[0] + "'";
  const std::string output = values["output"].as<std::string>();
  if (command != "record" && output != "table" && output != "json" && output != "yaml")
    return "-o: expected table, json or yaml, found '" + output + "'";
  if (std::string problem = utf8_problem(program, values); !problem.empty()) return problem;
  if (std::string problem = server_usage_problem(values); !problem.empty()) return problem;
  const std::vector<std::string> routes = split(values["routes"].as<std::string>());
  if (routes.empty() || std::find(routes.begin(), routes.end(), "") != routes.end())
    return "--routes: expected names, off,prompt_lookup";
  std::string prompt;
  for (const char* option : {"prompt", "prompt-file", "prompt-tokens"}) {
    if (values.count(option) == 0) continue;
    if (!prompt.empty()) return "--" + prompt + " or --" + option + ", not both";
    prompt = option;
  }
  if (command == "route") return route_usage_problem(values, arguments);
  if (command == "plugin" &&
      (arguments.size() != 2 || (arguments[0] != "load" && arguments[0] != "retire")))
    return "plugin: expected load ID or retire ID";
  if (command == "completion" && arguments.size() > 1) return "completion: expected one shell";
  return "";
}

Program make_program() {
  return {
      .name = "specctl",
      .commands =
          {
              {"generate", "", "continue a prompt, or answer messages, and stream the text"},
              {"render", "",
               "what the model would read: the text and the ids of a prompt\nor of messages"},
              {"compare", "",
               "the same prompts on several routes: speed, acceptance,\nidentical or not"},
              {"record", "", "prompts and their continuations as a file for the\nreplay drafter"},
              {"cancel", "--request-id ID", "end a running request"},
              {"plugins", "", "the daemon's plugins"},
              {"plugin",
               "load|retire ID",
               "load a plugin before a route needs it; refuse it for new routes\n"
               "until it is loaded again",
               {"load", "retire"}},
              {"routes", "", "its routes and what they count"},
              {"models", "", "its models"},
              {"status", "", "its state, what it counts, its memory"},
              {"memory", "", "what each rank holds, beside what was planned"},
              {"requests", "", "what runs and waits"},
              {"events", "", "what has happened to routes and plugins, and why"},
              {"top", "", "rates of routes and the load, every second"},
              {"reload", "",
               "take over routes, log_level and drain_seconds of the edited\n"
               "configuration, all or nothing"},
              {"drain", "", "end the daemon when its requests have ended"},
              {"route",
               "apply|stage -f FILE, traffic NAME --percent N, promote|abort|rollback|delete|get NAME",
               "put a route into service or replace it, while requests run;\n"
               "delete a route (its running requests finish); show its\n"
               "definition (-o json prints what apply reads); or replace it in\n"
               "steps: make a candidate, give it a share of the new requests,\n"
               "make it live or give it up, go back to the version before",
               {"apply", "delete", "get", "stage", "traffic", "promote", "abort", "rollback"}},
              {"completion", "SHELL", "print completion for bash, zsh or fish",
               completion_shells()},
          },
      .options = make_options(),
      .taken_by =
          {
              {"prompt", "generate render"},
              {"prompt-file", "generate render"},
              {"message", "generate render"},
              {"messages", "generate render"},
              {"tools", "generate render"},
              {"template-arguments", "generate render"},
              {"continue-final-message", "generate render"},
              {"prompt-tokens", "generate"},
              {"stop", "generate"},
              {"stop-token", "generate"},
              {"ignore-eos", "generate"},
              {"request-id", "generate cancel route plugin reload"},
              {"priority", "generate"},
              {"deadline-ms", "generate"},
              {"cache-salt", "generate"},
              {"draft-nodes-max", "generate"},
              {"logprobs", "generate"},
              {"prompt-logprobs", "generate"},
              {"echo", "generate"},
              {"n", "generate"},
              {"best-of", "generate"},
              {"temperature", "generate compare record"},
              {"top-p", "generate compare record"},
              {"top-k", "generate compare record"},
              {"seed", "generate compare record"},
              {"min-p", "generate"},
              {"typical-p", "generate"},
              {"logit-bias", "generate"},
              {"min-tokens", "generate"},
              {"repetition-penalty", "generate"},
              {"frequency-penalty", "generate"},
              {"presence-penalty", "generate"},
              {"max-tokens", "generate compare record"},
              {"route", "generate record"},
              {"routes", "compare"},
              {"prompts", "compare record"},
              {"repeat", "compare"},
              {"file", "route"},
              {"percent", "route"},
              {"shadow", "route"},
              {"running", "route"},
              {"generation", "route"},
              {"dry-run", "route reload"},
              {"max", "requests"},
              {"interval", "top"},
              {"count", "top"},
              {"follow", "events"},
              {"after", "events"},
              {"timeout",
               "render compare record cancel plugins plugin routes models status memory requests "
               "reload drain top route"},
          },
  };
}

int run(int argc, char** argv) {
  const Program program = make_program();
  po::options_description all;
  all.add(program.options)
      .add_options()("command", po::value<std::string>())("arguments",
                                                          po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("command", 1).add("arguments", -1);
  const auto parsed = read_command_line(all, positional, {argv + 1, argv + argc});
  if (!parsed.ok()) return ctl_usage(parsed.status().message());
  const po::variables_map& values = parsed.value();
  if (values.count("help") != 0) {
    const std::string text =
        kAbout + ("\n" + commands_help(program)) + "\n" + options_text(program) + kExits;
    write_output(text);
    return kCtlOk;
  }
  if (values.count("version") != 0) {
    write_output("specctl " + std::string(kVersion) + "\n");
    return kCtlOk;
  }
  const std::string command =
      values.count("command") != 0 ? values["command"].as<std::string>() : "";
  const auto arguments = values.count("arguments") != 0
                             ? values["arguments"].as<std::vector<std::string>>()
                             : std::vector<std::string>();
  if (const std::string problem = usage_problem(program, values, command, arguments);
      !problem.empty())
    return ctl_usage(problem);
  if (command == "completion") {
    const auto script = completion_script(program, arguments.empty() ? "" : arguments[0]);
    if (!script.ok()) return ctl_usage(script.status().message());
    write_output(script.value());
    return kCtlOk;
  }
  const std::string output = values["output"].as<std::string>();
  const Format format = output == "json"   ? Format::kJson
                        : output == "yaml" ? Format::kYaml
                                           : Format::kTable;

  Result<Client> client = connect(values);
  if (!client.ok()) {
    const int code = ctl_fail(client.status());
    return client.status().code() == Code::kUnavailable ? kCtlNobody : code;
  }
  client.value().set_time_limit(std::chrono::seconds(values["timeout"].as<int32_t>()));
  if (command == "generate") return run_generate(client.value(), values, format);
  if (command == "render") return run_render(client.value(), values, format);
  if (command == "compare") return run_compare(client.value(), values, format);
  if (command == "record") return run_record(client.value(), values);
  if (command == "cancel") return run_cancel(client.value(), values);
  if (command == "plugins") return run_plugins(client.value(), format);
  if (command == "routes") return run_routes(client.value(), format);
  if (command == "models") return run_models(client.value(), format);
  if (command == "status") return run_status(client.value(), format);
  if (command == "memory") return run_memory(client.value(), format);
  if (command == "requests") return run_requests(client.value(), values, format);
  if (command == "plugin")
    return run_plugin(client.value(), values, arguments[0], arguments[1], format);
  if (command == "reload") return run_reload(client.value(), values, format);
  if (command == "drain") return run_drain(client.value());
  if (command == "top") return run_top(client.value(), values, format);
  if (command == "events") return run_events(client.value(), values, format);
  SPECD_CHECK(command == "route", command);
  const std::string& action = arguments[0];
  if (action == "apply" || action == "stage")
    return run_route_add(client.value(), values, action == "stage", format);
  if (action == "get") return run_route_get(client.value(), arguments[1], format);
  return run_route_change(client.value(), values, action, arguments[1], format);
}

}  // namespace
}  // namespace specd::host

int main(int argc, char** argv) {
  try {
    return specd::host::end_output("specctl", specd::host::run(argc, argv));
  } catch (const std::exception& error) {  // memory at most
    std::fprintf(stderr, "specctl: %s\n", error.what());
    return 1;
  }
}
