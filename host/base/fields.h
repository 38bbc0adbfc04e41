// The fields of a JSON object that a client has sent.
//
//   Fields fields(body);
//   const auto n = fields.integer("n", 1, 128);   // nothing when it is absent, null or wrong
//   SPECD_OK_OR_RETURN(fields.status());          // the first that was wrong
//   fields.unknown();                             // what nobody has asked for
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"

namespace specd::host {

class Fields {
 public:
  // `object` must outlive this. `path` is put before the names of fields: "speculative".
  explicit Fields(const Json& object, std::string path = "");

  std::optional<bool> boolean(const char* name);
  // A number without a fraction: 16 and 16.0.
  std::optional<int64_t> integer(const char* name, int64_t min, int64_t max);
  std::optional<double> number(const char* name);
  std::optional<std::string> text(const char* name);
  // Any value but null; nullptr when it is absent.
  const Json* value(const char* name);
  // Accepted without effect: not in unknown().
  void ignore(std::initializer_list<const char*> names);
  // Refused unless they ask for nothing: null, false, or an empty text, array or object.
  void refuse(std::initializer_list<const char*> names, const char* why);

  // Sets status(), unless it is an error already.
  void fail(const std::string& name, const std::string& text);
  const Status& status() const { return status_; }
  std::vector<std::string> unknown() const;

 private:
  std::string path_of(const std::string& name) const;

  const Json& object_;
  const std::string path_;
  std::set<std::string> known_;
  Status status_;
};

// What a JSON value is, for messages: "an array", "the text 'abc'", "2.5".
std::string shown(const Json& value);

// An integer of `value`; kInvalidArgument without a field when it has a fraction or is out of range.
Result<int64_t> integer_of(const Json& value, int64_t min, int64_t max);

}  // namespace specd::host
