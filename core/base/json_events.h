// JSON as a stream of events, for readers that Json does not serve because it sorts keys. The same
// parser and guard as in json.h.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace specd {

// Why read_json() refused a text, and at which byte.
struct JsonFault {
  Code code = Code::kDataLoss;  // kExhausted when memory ran out
  size_t offset = 0;
  std::string what;
};

// Receives the parts of a JSON text in order. Derive from it and implement the functions that are
// left abstract; each returns true to go on, or refuse(). At most 64 levels are open at a time.
class JsonEvents : public nlohmann::json_sax<Json> {
 public:
  bool start_object(size_t) final { return enter() && open_object(); }
  bool start_array(size_t) final { return enter() && open_array(); }
  bool end_object() final { return leave(); }
  bool end_array() final { return leave(); }
  bool binary(binary_t&) final { return refuse("malformed JSON: binary values are not JSON"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) final;

 protected:
  virtual bool open_object() = 0;
  virtual bool open_array() = 0;
  virtual bool close() = 0;
  // Stops reading and records `what` and the byte that was reached. Always returns false.
  bool refuse(std::string what);

 private:
  friend std::optional<JsonFault> read_json(std::string_view text, JsonEvents& events);
  bool enter();
  bool leave() {
    --depth_;
    return close();
  }

  const char* begin_ = nullptr;
  const char* reached_ = nullptr;  // the last byte read
  size_t depth_ = 0;
  std::optional<JsonFault> fault_;
};

// Returns nothing when the whole text was read. `events` can be used once.
std::optional<JsonFault> read_json(std::string_view text, JsonEvents& events);

}  // namespace specd
