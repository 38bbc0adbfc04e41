// What every door of the daemon is held to.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {

// What every RPC needs, read from the documentation and not from the daemon's own table.
inline const std::map<std::string, std::string> kNeeds{
    {"Generate", "infer"},       {"Cancel", "infer"},         {"RenderChat", "infer"},
    {"ListPlugins", "read"},     {"ListRoutes", "read"},      {"ListModels", "read"},
    {"GetStatus", "read"},       {"GetMemory", "read"},       {"GetRoute", "read"},
    {"ListRequests", "read"},    {"WatchEvents", "read"},     {"ApplyRoute", "operate"},
    {"DeleteRoute", "operate"},  {"StageRoute", "operate"},   {"SetTraffic", "operate"},
    {"PromoteRoute", "operate"}, {"AbortRoute", "operate"},   {"RollbackRoute", "operate"},
    {"LoadPlugin", "operate"},   {"RetirePlugin", "operate"}, {"ReloadConfig", "operate"},
    {"Drain", "operate"}};

// `rights` as the configuration gives them, and what they come to.
inline const std::vector<std::pair<std::string, std::vector<std::string>>> kCredentials{
    {"", {}},
    {"infer", {"infer"}},
    {"read", {"read"}},
    {"operate", {"read", "operate"}},
    {"infer, read", {"infer", "read"}}};

// What a process has used so far.
inline double cpu_seconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream rest(text.substr(text.rfind(')') + 2));
  std::string word;
  double ticks = 0;
  for (int i = 3; rest >> word && i < 16; ++i)
    if (i == 14 || i == 15) ticks += std::stod(word);
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Codes of a daemon that was asked for nothing in particular.
inline bool is_answer(const grpc::Status& status) {
  const grpc::StatusCode code = status.error_code();
  return code == grpc::StatusCode::OK || code == grpc::StatusCode::INVALID_ARGUMENT ||
         code == grpc::StatusCode::NOT_FOUND || code == grpc::StatusCode::FAILED_PRECONDITION;
}

// Asks for every RPC at `path`, a socket or a port. `rights` are the caller's, `served` those that the door is for.
inline void expect_rpcs(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                        const std::string& given, const std::vector<std::string>& rights,
                        const std::vector<std::string>& served) {
  const auto has = [](const std::vector<std::string>& all, const std::string& one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  const bool is_let_in = std::any_of(rights.begin(), rights.end(),
                                     [&](const std::string& right) { return has(served, right); });
  const google::protobuf::FileDescriptor* const file = v1::GenerateRequest::descriptor()->file();
  ASSERT_EQ(file->service_count(), 2);
  std::vector<std::pair<std::string, std::string>> methods;  // and their paths
  for (int s = 0; s < 2; ++s) {
    const google::protobuf::ServiceDescriptor& service = *file->service(s);
    for (int m = 0; m < service.method_count(); ++m) {
      const std::string name = service.method(m)->name();
      methods.emplace_back(name, "/" + service.full_name() + "/" + name);
    }
  }
  ASSERT_EQ(methods.size(), kNeeds.size());
  std::stable_partition(methods.begin(), methods.end(),
                        [](const auto& each) { return each.first != "Drain"; });
  for (const auto& [name, method] : methods) {
    ASSERT_EQ(kNeeds.count(name), 1u) << name << " is new: which right does it need?";
    const std::string& needed = kNeeds.at(name);
    grpc::ByteBuffer unused;
    const grpc::Status status = call_raw(channel, method, "", unused);
    const std::string what = name + " with '" + given + "' on " + path + ": code " +
                             std::to_string(status.error_code()) + ", " + status.error_message();
    if (!is_let_in) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << what;
    } else if (has(served, needed) && has(rights, needed)) {
      EXPECT_TRUE(is_answer(status)) << what;
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << what;
      const std::string why = has(served, needed) ? "needs the right '" + needed + "', and "
                                                  : name + " is not served on " + path;
      EXPECT_NE(status.error_message().find(why), std::string::npos) << what;
    }
  }
}

// What the log says of Control, in whole lines, is refusals for want of a right.
inline void expect_refusals_only(const std::string& log) {
  std::istringstream in(log);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    if (line.find("control: ") != std::string::npos) {
      EXPECT_NE(line.find(": refused, for want of the right 'operate'"), std::string::npos) << line;
    }
  }
}

}  // namespace specd::host
