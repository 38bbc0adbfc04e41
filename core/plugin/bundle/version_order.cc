#include "core/plugin/bundle/version_order.h"

#include <algorithm>
#include <string>

namespace specd {
namespace {

std::string_view take_part(std::string_view& rest) {
  const size_t end = std::min(rest.find('.'), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

bool is_number(std::string_view part) {
  return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
}

// Less than 0 when `a` comes first.
int compare_parts(std::string_view a, std::string_view b) {
  if (is_number(a) != is_number(b)) return is_number(a) ? -1 : 1;
  if (is_number(a)) {  // of any length
    a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
    b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
    if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  }
  return a.compare(b);
}

// `missing`: what a part that one of them lacks counts as.
int compare_lists(std::string_view a, std::string_view b, std::string_view missing) {
  while (!a.empty() || !b.empty()) {
    const std::string_view x = a.empty() ? missing : take_part(a);
    const std::string_view y = b.empty() ? missing : take_part(b);
    if (const int order = compare_parts(x, y); order != 0) return order;
  }
  return 0;
}

struct Version {
  explicit Version(std::string_view text) {
    text = text.substr(0, text.find('+'));
    const size_t dash = text.find('-');
    numbers = text.substr(0, dash);
    if (dash != std::string_view::npos) before_release = text.substr(dash + 1);
  }
  std::string_view numbers, before_release;
};

}  // namespace

bool is_newer(std::string_view version, std::string_view other) {
  const Version a(version), b(other);
  if (const int order = compare_lists(a.numbers, b.numbers, "0"); order != 0) return order > 0;
  if (a.before_release.empty() || b.before_release.empty()) {
    return a.before_release.empty() && !b.before_release.empty();
  }
  // Of two that begin alike the one with more parts is newer; nothing comes before every part.
  std::string_view x = a.before_release, y = b.before_release;
  while (!x.empty() && !y.empty()) {
    if (const int order = compare_parts(take_part(x), take_part(y)); order != 0) return order > 0;
  }
  return !x.empty();
}

}  // namespace specd
