// Errors of the C++ wrapper, and their conversion to a status at the plugin boundary.
#ifndef SPECD_SDK_ERROR_H
#define SPECD_SDK_ERROR_H

#include <specd/plugin_api/host.h>
#include <specd/plugin_api/types.h>

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace specd::sdk {

// The exception type of plugin code. `text` says what is wrong, where, and what would be right; the
// host shows it to the operator. With SPECD_E_CONFIG, begin it with "KEY: " where a key is at fault;
// the getters of Config do.
class Error : public std::exception {
 public:
  Error(specd_status status, std::string text) : status_(status), text_(std::move(text)) {}
  specd_status status() const noexcept { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  specd_status status_;
  std::string text_;
};

inline void report(const specd_host* host, specd_call* call, int32_t seq_index,
                   const char* text) noexcept {
  if (host == nullptr || host->report == nullptr) return;
  uint64_t len = 0;
  while (text[len] != '\0') ++len;
  if (len == 0) return;  // the host has reported it
  host->report(host, call, seq_index, text, len);
}

// Runs `body` at the boundary: turns every exception into a status and a report, so that nothing
// unwinds into the host. seq_index -1 means the whole call.
template <class Body>
specd_status guard(const specd_host* host, specd_call* call, int32_t seq_index,
                   Body&& body) noexcept {
  try {
    body();
    return SPECD_OK;
  } catch (const Error& error) {
    report(host, call, seq_index, error.what());
    // An error must not look like success, whatever status it carries.
    return error.status() == SPECD_OK ? SPECD_E_INTERNAL : error.status();
  } catch (const std::bad_alloc&) {
    report(host, call, seq_index, "out of memory");
    return SPECD_E_EXHAUSTED;
  } catch (const std::exception& error) {
    report(host, call, seq_index, error.what());
    return SPECD_E_INTERNAL;
  } catch (...) {
    report(host, call, seq_index, "an exception of unknown type");
    return SPECD_E_INTERNAL;
  }
}

// Checks an argument that the host must provide.
inline void expect(bool condition, const char* text) {
  if (!condition) throw Error(SPECD_E_INVALID, text);
}

}  // namespace specd::sdk

#endif
