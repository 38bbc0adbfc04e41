// Standard output of specd, specctl and specd-bench.
//
//   write_output(table.text());
//   return end_output("specctl", code);  // in main(): output that is lost is no success
#pragma once

#include <string_view>

namespace specd::host {

// [main] Writes `text` at once. Returns 0, or the errno of the first write that failed; after that
// one nothing is written.
int write_output(std::string_view text);

// [main] The exit code of a program that would end with `code`. If standard output could not be
// written it says why on standard error, and 1 replaces 0. A pipe whose reader has left is no
// failure: `| head` has what it wanted.
int end_output(const char* program, int code);

}  // namespace specd::host
