// The life of `specd serve`: claim the socket, load, serve, drain.
#pragma once

#include "host/config/config.h"

namespace specd::host {

// Exit codes of specd.
constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;  // could not load or listen
constexpr int kExitUsage = 2;   // wrong command line
constexpr int kExitConfig = 3;  // the configuration is wrong
constexpr int kExitCut = 4;     // stopped, but had to cut requests or a plugin that hung

// Returns the exit code. REQUIRES that no other thread runs yet: signals are blocked here first. A
// configuration that is wrong is for RankProcess::is_one() alone: the lead says on which rank.
int run_daemon(const Result<Config>& config);

}  // namespace specd::host
