// What the fixture's constructor does with FIXTURE_THROWS: C cannot.
#include <stdexcept>

extern "C" __attribute__((visibility("hidden"))) void fixture_throw() {
  throw std::runtime_error("no");
}
