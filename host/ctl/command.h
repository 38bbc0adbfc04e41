// The commands of specctl, and what they share.
#pragma once

#include <boost/program_options.hpp>
#include <string>

#include "core/base/status.h"
#include "host/base/format.h"
#include "host/rpc/client.h"

namespace specd::host {

constexpr int kCtlOk = 0;
constexpr int kCtlFailed = 1;
constexpr int kCtlUsage = 2;
constexpr int kCtlDifferent = 3;  // compare found a route whose text differs
constexpr int kCtlNobody = 4;     // no daemon answers at the socket

// Print the problem to standard error and return the exit code.
int ctl_fail(const Status& status);
int ctl_usage(const std::string& problem);

// Each returns the exit code.
using Values = boost::program_options::variables_map;
int run_generate(Client& client, const Values& values, Format format);
int run_render(Client& client, const Values& values, Format format);
int run_cancel(Client& client, const Values& values);
int run_compare(Client& client, const Values& values, Format format);
int run_record(Client& client, const Values& values);
int run_plugins(Client& client, Format format);
int run_routes(Client& client, Format format);
int run_models(Client& client, Format format);
int run_status(Client& client, Format format);
int run_memory(Client& client, Format format);
int run_events(Client& client, const Values& values, Format format);
int run_requests(Client& client, const Values& values, Format format);
int run_top(Client& client, const Values& values, Format format);
int run_reload(Client& client, const Values& values, Format format);
int run_drain(Client& client);
// plugin load, retire.
int run_plugin(Client& client, const Values& values, const std::string& action,
               const std::string& id, Format format);
// route apply, or stage.
int run_route_add(Client& client, const Values& values, bool is_staged, Format format);
// route delete, traffic, promote, abort, rollback.
int run_route_change(Client& client, const Values& values, const std::string& action,
                     const std::string& name, Format format);
int run_route_get(Client& client, const std::string& name, Format format);

}  // namespace specd::host
