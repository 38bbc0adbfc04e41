#include "core/plugin/bundle/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOOST_DLL_USE_STD_FS
#include <algorithm>
#include <atomic>
#include <boost/dll/shared_library.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "core/base/bad_alloc.h"
#include "core/base/failpoint.h"
#include "core/base/last_words.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/quote.h"
#include "core/base/run_within.h"
#include "core/base/sanitizer.h"
#include "core/base/siphash.h"
#include "core/plugin/bundle/elf_file.h"
#include "core/plugin/instance/host_context.h"
#include "core/plugin/bundle/trusted_file.h"

namespace specd {
namespace {

constexpr size_t kTextBytesMax = 4096;  // of a string of the table

constexpr std::chrono::seconds kTurnWait{5};

// A lock whose holder runs plugin code and may hang. Whoever waits too long is told why.
class Turn {
 public:
  struct GiveBack {
    void operator()(Turn* turn) const { turn->give_back(); }
  };
  using Held = std::unique_ptr<Turn, GiveBack>;

  // `what`: what the holder does, "a constructor of 'x.so'".
  Result<Held> take(const std::string& what) {
    const auto deadline = CondVar::Clock::now() + kTurnWait;
    MutexLock lock(mutex_);
    while (!holder_.empty()) {
      if (!freed_.wait_until(lock, deadline) && !holder_.empty())
        return Status(Code::kUnavailable,
                      holder_ + " has not returned (does it hang?); restart without it");
    }
    holder_ = what;
    return Held(this);
  }

 private:
  void give_back() {
    {
      const MutexLock lock(mutex_);
      holder_.clear();
    }
    freed_.notify_one();
  }

  Mutex mutex_;
  CondVar freed_;
  std::string holder_ SPECD_GUARDED_BY(mutex_);
};

struct Module {
  boost::dll::shared_library library;
  const specd_plugin* plugin = nullptr;
  Status table;                      // what check_table() said
  std::atomic<bool> is_read{false};  // the entry was called; plugin and table are constant
  Turn turn;                         // guards init
  std::optional<Status> init;        // what init() said, once called
  std::atomic<int> n_instances{0};
};

// Never destroyed: ~shared_library() would unmap plugin code, which must stay.
struct Modules {
  Turn turn;  // of loading: while a constructor runs, the dynamic linker loads nothing else
  Mutex mutex;
  std::map<std::string, std::unique_ptr<Module>> by_sha256
      SPECD_GUARDED_BY(mutex);  // null: unmapped
  bool shut_down SPECD_GUARDED_BY(mutex) = false;
};
Modules& modules() {
  static Modules* const all = new Modules;
  return *all;
}

// ---- the private copy ------------------------------------------------------------------------

Status io_error(const std::string& path, const char* what) {
  return Status(Code::kUnavailable, quote(path, 400) + ": " + what + ": " + std::strerror(errno));
}

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return io_error(path, "write");
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return Status();
}

// Refuses what the dynamic linker would let end the process or weaken it, and libraries that export
// something else than the entry.
Status check_library(const ElfLibrary& library, const std::string& where) {
  if (!library.sanitizer.empty() && !SPECD_HAS_SANITIZER) {
    return Status(Code::kUnsupported,
                  where + ": built with a sanitizer (it needs " + library.sanitizer +
                      "), whose runtime would end this process; build it without one");
  }
  if (library.wants_executable_stack) {
    return Status(Code::kUnsupported,
                  where +
                      ": asks for an executable stack, which would make every stack of the "
                      "daemon executable; link it with -z noexecstack");
  }
  const std::vector<ElfExport>& exports = library.exports;
  if (exports.size() == 1 && exports[0].name == SPECD_ENTRY_SYMBOL) {
    if (exports[0].is_function) return Status();
    return Status(Code::kUnsupported,
                  where + ": its entry '" SPECD_ENTRY_SYMBOL
                          "' is not a plain function; define it with SPECD_SDK_PLUGIN()");
  }
  std::string found;
  for (size_t i = 0; i < exports.size() && i < 8; ++i) {
    found += (i == 0 ? "" : ", ") + quote(exports[i].name);
  }
  if (exports.size() > 8) found += " and more";
  return Status(Code::kDataLoss, where + ": expected exactly one exported symbol, '" +
                                     SPECD_ENTRY_SYMBOL + "', found " +
                                     (exports.empty() ? "none" : found) +
                                     "; build it with specd_add_plugin()");
}

// Looks at the bytes that will run.
Status inspect(int fd, const std::string& where) {
  struct stat info;
  if (fstat(fd, &info) != 0) return io_error(where, "fstat");
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes == 0) return Status(Code::kDataLoss, quote(where, 400) + " is empty");
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) return io_error(where, "mmap");
  const auto library =
      read_elf_library(std::span(static_cast<const std::byte*>(mapped), bytes), quote(where, 400));
  munmap(mapped, bytes);
  if (!library.ok()) return library.status();
  return check_library(library.value(), quote(where, 400));
}

// A file that is removed unless it is renamed.
struct PartFile {
  int folder;
  std::string name;
  bool is_there = false;
  ~PartFile() {
    if (is_there) unlinkat(folder, name.c_str(), 0);
  }
};

// Writes <cache>/<sha256>.so anew, so that no older file has to be trusted, and atomically, so that
// another daemon with the same cache never sees half of it.
Result<std::string> copy_to_cache(const LoadRequest& request) {
  if (request.cache_directory.empty()) {
    return Status(Code::kFailedPrecondition, "no plugin cache directory is configured");
  }
  SPECD_TRY(const FileDescriptor source, open_trusted_file(request.library_path, kLibraryBytesMax));
  SPECD_TRY(const FileDescriptor cache, open_trusted_directory(request.cache_directory));
  const std::string sha256 = request.manifest.files.at(request.manifest.library);
  const std::string name = sha256 + ".so";
  // Another daemon with the same cache may have the same process id, in another container.
  PartFile part{cache.get(), "." + sha256 + "." + std::to_string(getpid()) + "." +
                                 std::to_string(SipKey::random().k0)};
  const std::string path = request.cache_directory + "/" + name;
  const FileDescriptor copy(openat(cache.get(), part.name.c_str(),
                                   O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0500));
  if (copy.get() < 0) return io_error(request.cache_directory + "/" + part.name, "open");
  part.is_there = true;
  if (SPECD_FAILS(kPluginCopy, ENOSPC)) return io_error(path, "write");
  const auto put = [&](std::span<const std::byte> piece) {
    return write_all(copy.get(), piece, path);
  };
  SPECD_OK_OR_RETURN(check_hash(source, kLibraryBytesMax, request.library_path, sha256, put));
  SPECD_OK_OR_RETURN(inspect(copy.get(), request.library_path));
  if (fchmod(copy.get(), 0500) != 0) return io_error(path, "fchmod");
  if (SPECD_FAILS(kPluginRename, EIO) ||
      renameat(cache.get(), part.name.c_str(), cache.get(), name.c_str()) != 0)
    return io_error(path, "rename");
  part.is_there = false;
  return path;
}

// ---- the table -------------------------------------------------------------------------------

// Null, or longer than anything sensible.
bool is_bad_text(const char* text) {
  return text == nullptr || strnlen(text, kTextBytesMax + 1) > kTextBytesMax;
}

Status refuse_table(const std::string& text) {
  return Status(Code::kUnsupported, text + "; the plugin is broken, ask its author");
}

template <typename Api>
std::string missing_function(const Api& api);

template <>
std::string missing_function(const specd_drafter_api& api) {
  const std::pair<const char*, bool> functions[] = {
      {"describe", api.describe != nullptr},     {"create", api.create != nullptr},
      {"activate", api.activate != nullptr},     {"begin", api.begin != nullptr},
      {"propose", api.propose != nullptr},       {"end", api.end != nullptr},
      {"deactivate", api.deactivate != nullptr}, {"destroy", api.destroy != nullptr}};
  for (const auto& [name, there] : functions) {
    if (!there) return name;
  }
  return std::string();
}

template <>
std::string missing_function(const specd_verifier_api& api) {
  const std::pair<const char*, bool> functions[] = {
      {"describe", api.describe != nullptr},     {"create", api.create != nullptr},
      {"activate", api.activate != nullptr},     {"verify", api.verify != nullptr},
      {"deactivate", api.deactivate != nullptr}, {"destroy", api.destroy != nullptr}};
  for (const auto& [name, there] : functions) {
    if (!there) return name;
  }
  return std::string();
}

template <typename Api>
Status check_api(const Api& api, const std::string& where) {
  if (api.struct_size != sizeof(Api)) {
    return refuse_table(where + ": the api table has struct_size " +
                        std::to_string(api.struct_size) + ", expected " +
                        std::to_string(sizeof(Api)));
  }
  const std::string missing = missing_function(api);
  if (missing.empty()) return Status();
  return refuse_table(where + ": function '" + missing + "' is null");
}

Status check_factory(const specd_factory* factory, uint32_t index) {
  const std::string at = "factory " + std::to_string(index);
  if (factory == nullptr) return refuse_table(at + " is null");
  if (factory->struct_size != sizeof(specd_factory)) {
    return refuse_table(at + " has struct_size " + std::to_string(factory->struct_size) +
                        ", expected " + std::to_string(sizeof(specd_factory)));
  }
  if (is_bad_text(factory->id)) return refuse_table(at + " has no id");
  const std::string where = "factory " + quote(factory->id);
  if ((factory->drafter != nullptr) == (factory->verifier != nullptr)) {
    return refuse_table(where + " has " + (factory->drafter != nullptr ? "both" : "no") +
                        " api table, expected exactly one of drafter and verifier");
  }
  return factory->drafter != nullptr ? check_api(*factory->drafter, where)
                                     : check_api(*factory->verifier, where);
}

// The checks that do not involve the manifest.
Status check_table(specd_status status, const specd_plugin* plugin) {
  if (plugin == nullptr) {
    return refuse_table("the entry stored no table (status " + std::to_string(status) + ")");
  }
  // `layout` is at the same offset in every version. Nothing else may be read before it matches.
  static_assert(offsetof(specd_plugin, layout) == 8);
  if (is_bad_text(plugin->layout)) return refuse_table("the table has no layout hash");
  if (std::strcmp(plugin->layout, SPECD_ABI_LAYOUT) != 0) {
    return Status(Code::kUnsupported,
                  "built against another plugin_api: expected layout " SPECD_ABI_LAYOUT ", found " +
                      quote(plugin->layout) + "; rebuild the plugin with this daemon's SDK");
  }
  if (status != SPECD_OK) {
    return refuse_table("the entry returned status " + std::to_string(status));
  }
  if (plugin->struct_size != sizeof(specd_plugin)) {
    return refuse_table("the table has struct_size " + std::to_string(plugin->struct_size) +
                        ", expected " + std::to_string(sizeof(specd_plugin)));
  }
  const std::pair<const char*, const char*> texts[] = {
      {"id", plugin->id}, {"version", plugin->version}, {"license", plugin->license}};
  for (const auto& [name, text] : texts) {
    if (is_bad_text(text)) return refuse_table(std::string("the table has no ") + name);
  }
  if (plugin->init == nullptr) return refuse_table("function 'init' is null");
  if (plugin->factories == nullptr) return refuse_table("its list of factories is null");
  if (plugin->n_factories == 0 || plugin->n_factories > kFactoriesMax) {
    return refuse_table("the table has " + std::to_string(plugin->n_factories) +
                        " factories, expected 1 to 64");
  }
  for (uint32_t i = 0; i < plugin->n_factories; ++i) {
    SPECD_OK_OR_RETURN(check_factory(plugin->factories[i], i));
  }
  return Status();
}

// The manifest must match the table.
Status check_claim(const Manifest& manifest, const specd_plugin& plugin) {
  const auto differ = [](const std::string& what, const std::string& claimed,
                         const std::string& found) {
    return Status(Code::kDataLoss, "plugin.json and the library disagree: " + what +
                                       ": plugin.json says " + claimed + ", the library " + found +
                                       "; build the bundle again");
  };
  if (manifest.id != plugin.id) return differ("id", quote(manifest.id), quote(plugin.id));
  if (manifest.version != plugin.version) {
    return differ("version", quote(manifest.version), quote(plugin.version));
  }
  if (manifest.license != plugin.license) {
    return differ("license", quote(manifest.license), quote(plugin.license));
  }
  if (manifest.factories.size() != plugin.n_factories) {
    return differ("number of factories", std::to_string(manifest.factories.size()),
                  std::to_string(plugin.n_factories));
  }
  // Counts are equal and the manifest's ids are distinct, so finding each is enough.
  for (const FactoryInfo& claimed : manifest.factories) {
    const specd_factory* const* const end = plugin.factories + plugin.n_factories;
    const auto found = std::find_if(plugin.factories, end, [&claimed](const specd_factory* one) {
      return claimed.id == one->id;
    });
    if (found == end) return differ("factory " + quote(claimed.id), "it is there", "it is not");
    const std::string kind = (*found)->drafter != nullptr ? "drafter" : "verifier";
    if (kind != claimed.kind) {
      return differ("kind of factory " + quote(claimed.id), claimed.kind, kind);
    }
  }
  return Status();
}

// ---- loading ---------------------------------------------------------------------------------

// Names the code of a library for last words: it may run on threads of its own.
void name_code(const void* address_in_it, const std::string& name) {
  struct Search {
    uintptr_t address;
    const std::string& name;
  } search{reinterpret_cast<uintptr_t>(address_in_it), name};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        const auto& wanted = *static_cast<Search*>(data);
        for (size_t i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0 ||
              wanted.address < begin || wanted.address >= begin + segment.p_memsz)
            continue;
          name_memory(begin, segment.p_memsz, wanted.name);
          return 1;
        }
        return 0;
      },
      &search);
}

// Runs the constructors of the library.
Status map_library(const std::string& path, const LoadRequest& request, const std::string& build,
                   std::string* text, boost::dll::shared_library& library) {
  const std::string& id = request.manifest.id;
  const std::string plugin = exact_name(id, request.manifest.version);
  const boost::dll::fs::path file(path);
  std::error_code error;
  {
    const PluginScope scope(id, text, {plugin.c_str(), build.c_str(), "a constructor"});
    SPECD_OK_OR_RETURN(check_in_time(request.is_late));
    // By exit() in a constructor too the process must end with last words, and by an exception:
    // leaving dlopen() by one would leave the linker locked.
    watch_exit();
    without_exceptions([&] {
      library.load(file, error,
                   boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    });
    watch_exit();
  }
  if (!error) return Status();
  const char* words = dlerror();
  return Status(Code::kUnsupported, quote(request.library_path, 400) +
                                        ": the dynamic linker refused it: " +
                                        (words == nullptr ? error.message() : words));
}

// Calls the entry and checks the table that it stores.
Status read_table(const LoadRequest& request, const std::string& build, std::string* text,
                  Module& module) {
  if (!module.library.has(SPECD_ENTRY_SYMBOL)) {  // inspect() found it, so the hash table is wrong
    module.table = Status(Code::kUnsupported, std::string("the dynamic linker finds no symbol '") +
                                                  SPECD_ENTRY_SYMBOL + "'");
    module.is_read = true;
    return Status();
  }
  const std::string& id = request.manifest.id;
  using Entry = specd_status(const char*, const specd_host*, const specd_plugin**);
  Entry& entry = module.library.get<Entry>(SPECD_ENTRY_SYMBOL);
  name_code(reinterpret_cast<const void*>(&entry), build);
  const std::string plugin = exact_name(id, request.manifest.version);
  const PluginScope scope(id, text, {plugin.c_str(), build.c_str(), SPECD_ENTRY_SYMBOL});
  SPECD_OK_OR_RETURN(check_in_time(request.is_late));
  const specd_status status =
      without_exceptions([&] { return entry(SPECD_ABI_LAYOUT, request.host, &module.plugin); });
  module.table = check_table(status, module.plugin);
  module.is_read = true;
  return Status();
}

// The module of this content, loaded now if it is not yet.
Result<Module*> find_or_map(const LoadRequest& request, const std::string& build,
                            std::string* text) {
  Modules& all = modules();
  const std::string& sha256 = request.manifest.files.at(request.manifest.library);
  // Null when it is not mapped yet. Makes its place, so that keeping it takes no memory.
  const auto known = [&]() -> Result<Module*> {
    const MutexLock lock(all.mutex);
    if (all.shut_down) return Status(Code::kUnavailable, "plugins were shut down");
    return all.by_sha256[sha256].get();
  };
  SPECD_TRY(Module * module, known());
  if (module == nullptr || !module->is_read) {
    SPECD_TRY(const Turn::Held turn, all.turn.take("loading " + quote(request.library_path, 400)));
    SPECD_TRY(module, known());  // another thread may have loaded it
    if (module == nullptr) {
      SPECD_TRY(const std::string path, copy_to_cache(request));
      auto made = std::make_unique<Module>();
      SPECD_OK_OR_RETURN(map_library(path, request, build, text, made->library));
      // At once: nothing may throw while ~Module() would unmap code that has run.
      const MutexLock lock(all.mutex);
      std::unique_ptr<Module>& kept = all.by_sha256.find(sha256)->second;
      kept = std::move(made);
      module = kept.get();
    }
    // Mapped and not read: an earlier load was late, or memory ended.
    if (!module->is_read) SPECD_OK_OR_RETURN(read_table(request, build, text, *module));
    return module;
  }
  // The code is loaded already; check that this file really has the same content.
  SPECD_TRY(const FileDescriptor source, open_trusted_file(request.library_path, kLibraryBytesMax));
  SPECD_OK_OR_RETURN(check_hash(source, kLibraryBytesMax, request.library_path, sha256));
  return module;
}

}  // namespace

Result<const specd_plugin*> load_module(const LoadRequest& request) {
  const std::string& id = request.manifest.id;
  const std::string build =
      build_text(id, request.manifest.version, request.manifest.files.at(request.manifest.library));
  std::string text;
  SPECD_TRY(Module* const found, find_or_map(request, build, &text));
  Module& module = *found;
  const std::string where = quote(request.library_path, 400);
  if (!module.table.ok()) return module.table.with_context(where);
  SPECD_OK_OR_RETURN(check_claim(request.manifest, *module.plugin).with_context(where));
  SPECD_TRY(const Turn::Held turn, module.turn.take("init() of " + where));
  if (!module.init.has_value()) {
    const std::string plugin = exact_name(id, request.manifest.version);
    const PluginScope scope(id, &text, {plugin.c_str(), build.c_str(), "init"});
    SPECD_OK_OR_RETURN(check_in_time(request.is_late));
    const specd_status status =
        without_exceptions([&] { return module.plugin->init(request.host); });
    module.init = plugin_status(status, "init", text);
  }
  if (!module.init->ok()) return module.init->with_context(where);
  return module.plugin;
}

std::shared_ptr<const void> hold_module(const specd_plugin& plugin) {
  Modules& all = modules();
  const MutexLock lock(all.mutex);
  for (const auto& [sha256, module] : all.by_sha256) {
    if (module == nullptr || !module->is_read || module->plugin != &plugin) continue;
    ++module->n_instances;
    return {module.get(), [](Module* held) { --held->n_instances; }};
  }
  return nullptr;
}

void shut_down_modules() {
  Modules& all = modules();
  const MutexLock lock(all.mutex);
  if (all.shut_down) return;
  all.shut_down = true;
  for (const auto& [sha256, module] : all.by_sha256) {
    if (module == nullptr || !module->init.has_value() || !module->init->ok()) continue;
    const specd_plugin& plugin = *module->plugin;
    if (plugin.deinit == nullptr) continue;
    if (module->n_instances > 0) {
      or_drop([&] {
        log(LogLevel::kWarn, std::string("plugin ") + plugin.id +
                                 ": deinit() is left out, an instance is still there");
      });
      continue;
    }
    const std::string build = build_text(plugin.id, plugin.version, sha256);
    const std::string name = exact_name(plugin.id, plugin.version);
    const PluginScope scope(sha256, nullptr, {name.c_str(), build.c_str(), "deinit"});
    without_exceptions([&plugin] { plugin.deinit(); });
  }
}

}  // namespace specd
