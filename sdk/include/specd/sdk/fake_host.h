// A host for plugin unit tests. It records what the plugin logs and reports, offers the services
// with switches that make them fail, and puts canaries around every struct and output row. It
// needs no test framework: contract violations are listed in violations(), which a test expects to
// be empty.
//
//   FakeHost host;
//   FakeModule module("plugins/drafter_mine/drafter_mine.so");
//   FakeDrafter drafter(host, module.factory("mine"), FakeConfig("{\"k\": 3}").set("k", 3));
//   const int s = drafter.begin({1, 2, 3});
//   drafter.commit(s, {4});
//   FakeDraft draft = drafter.propose(s);
//
// For a drafter with layers of its own: host.weights() (fake_weights.h), host.set_target_head(),
// drafter.set_hidden() and drafter.prefill(). The services compute what their headers say, slowly.
//
// Header-only, C++17, for test code only. Link with -ldl where dlopen needs it.
#ifndef SPECD_SDK_FAKE_HOST_H
#define SPECD_SDK_FAKE_HOST_H

#include <dlfcn.h>
#include <specd/plugin_api/entry.h>
#include <specd/sdk/fake_drafter.h>
#include <specd/sdk/fake_verifier.h>

#include <stdexcept>
#include <string>

namespace specd::sdk {

// Loads a plugin as the daemon does and calls its entry. Throws std::runtime_error on failure.
// Never unloads it.
class FakeModule {
 public:
  explicit FakeModule(const std::string& path, const char* layout = SPECD_ABI_LAYOUT) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    entry_ = reinterpret_cast<decltype(&specd_plugin_entry_v0)>(dlsym(handle, SPECD_ENTRY_SYMBOL));
    if (entry_ == nullptr) throw std::runtime_error(path + ": no " SPECD_ENTRY_SYMBOL);
    status_ = entry_(layout, host_.host(), &plugin_);
    if (plugin_ == nullptr) throw std::runtime_error(path + ": the entry stored no table");
    if (status_ == SPECD_OK && plugin_->init != nullptr) status_ = plugin_->init(host_.host());
  }

  specd_status status() const { return status_; }
  const specd_plugin& plugin() const { return *plugin_; }
  const specd_factory& factory(const std::string& id) const {
    for (uint32_t i = 0; i < plugin_->n_factories; ++i) {
      if (id == plugin_->factories[i]->id) return *plugin_->factories[i];
    }
    throw std::runtime_error("no factory " + id);
  }

 private:
  FakeHost host_;
  decltype(&specd_plugin_entry_v0) entry_ = nullptr;
  specd_status status_ = SPECD_OK;
  const specd_plugin* plugin_ = nullptr;
};

}  // namespace specd::sdk

#endif
