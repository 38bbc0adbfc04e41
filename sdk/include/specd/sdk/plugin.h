// Everything a C++ plugin needs. Derive from Drafter or Verifier, then name the factories once:
//
//   SPECD_SDK_PLUGIN("What the plugin is for",
//                    specd::sdk::drafter<Mine>("mine", "What it guesses"))
//
// The plugin's id and version come from specd_add_plugin() in CMake, so manifest and table
// always agree.
#ifndef SPECD_SDK_PLUGIN_H
#define SPECD_SDK_PLUGIN_H

#include <specd/plugin_api/entry.h>
#include <specd/sdk/drafter.h>
#include <specd/sdk/verifier.h>

#include <cstddef>

namespace specd::sdk {

// Pointers to the elements of a static array of factories.
template <std::size_t N>
struct FactoryList {
  const specd_factory* items[N];
  constexpr explicit FactoryList(const specd_factory (&factories)[N]) : items{} {
    for (std::size_t i = 0; i < N; ++i) items[i] = &factories[i];
  }
};

// The body of every entry function: always stores the table and refuses any other layout.
inline specd_status enter(const char* host_layout, const specd_plugin* table,
                          const specd_plugin** out) noexcept {
  if (out == nullptr) return SPECD_E_INVALID;
  *out = table;
  if (host_layout == nullptr) return SPECD_E_ABI;
  const char* mine = SPECD_ABI_LAYOUT;
  while (*mine != '\0' && *mine == *host_layout) ++mine, ++host_layout;
  return *mine == *host_layout ? SPECD_OK : SPECD_E_ABI;
}

}  // namespace specd::sdk

#define SPECD_SDK_PLUGIN(DESCRIPTION, ...)                                                 \
  namespace {                                                                              \
  constexpr specd_factory specd_sdk_factories[] = {__VA_ARGS__};                           \
  constexpr ::specd::sdk::FactoryList specd_sdk_factory_list(specd_sdk_factories);         \
  specd_status specd_sdk_init(const specd_host*) noexcept { return SPECD_OK; }             \
  constexpr specd_plugin specd_sdk_table = {                                               \
      sizeof(specd_plugin),                                                                \
      static_cast<uint32_t>(sizeof(specd_sdk_factories) / sizeof(specd_sdk_factories[0])), \
      SPECD_ABI_LAYOUT,                                                                    \
      SPECD_PLUGIN_ID,                                                                     \
      SPECD_PLUGIN_VERSION,                                                                \
      SPECD_PLUGIN_VENDOR,                                                                 \
      SPECD_PLUGIN_LICENSE,                                                                \
      DESCRIPTION,                                                                         \
      specd_sdk_factory_list.items,                                                        \
      &specd_sdk_init,                                                                     \
      nullptr};                                                                            \
  }                                                                                        \
  extern "C" SPECD_EXPORT specd_status specd_plugin_entry_v0(                              \
      const char* host_layout, const specd_host*, const specd_plugin** out) noexcept {     \
    return ::specd::sdk::enter(host_layout, &specd_sdk_table, out);                        \
  }

#endif
