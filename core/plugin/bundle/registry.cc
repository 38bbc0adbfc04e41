#include "core/plugin/bundle/registry.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/quote.h"
#include "core/base/run_within.h"
#include "core/base/sha256.h"
#include "core/base/words.h"
#include "core/device/host_memory.h"
#include "core/plugin/instance/caps.h"
#include "core/plugin/bundle/config_schema.h"
#include "core/plugin/bundle/elf_file.h"
#include "core/plugin/bundle/manifest.h"
#include "core/plugin/bundle/module.h"
#include "core/plugin/instance/plugin_config.h"
#include "core/plugin/bundle/trusted_file.h"
#include "core/plugin/bundle/version_order.h"

namespace specd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifestName = "plugin.json";
constexpr size_t kBundlesMax = 1024;

struct Bundle {
  BundleInfo info;
  Manifest manifest;
  const specd_plugin* plugin = nullptr;  // once loaded
  std::optional<Status> failure;         // why discovery refused it, or set_aside()
  bool is_set_aside = false;
  bool is_retired = false;  // set aside until load()
};

Result<std::string> absolute_path(const std::string& path) {
  std::error_code error;
  if (path.empty()) return Status(Code::kInvalidArgument, "expected a path, found an empty one");
  const fs::path absolute = fs::absolute(path, error);
  if (error) return Status(Code::kInvalidArgument, quote(path, 400) + ": " + error.message());
  std::string text = absolute.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

// ---- discovery -------------------------------------------------------------------------------

// Checks the hash and, for the library, the ELF header, through one descriptor.
Status check_file(const std::string& path, const std::string& expected, bool is_library) {
  SPECD_TRY(const FileDescriptor file, open_trusted_file(path, kLibraryBytesMax));
  if (is_library) {
    std::array<std::byte, 64> head{};
    const ssize_t got = pread(file.get(), head.data(), head.size(), 0);
    SPECD_OK_OR_RETURN(check_elf_header(
        std::span(head).first(static_cast<size_t>(std::max<ssize_t>(got, 0))), quote(path, 400)));
  }
  return check_hash(file, kLibraryBytesMax, path, expected);
}

// "" when there is none.
Result<std::string> read_signature(const std::string& directory) {
  const std::string path = directory + "/" + kSignatureName;
  auto file = open_trusted_file(path, kSignatureBytes);
  if (!file.ok() && file.status().code() == Code::kNotFound) return std::string();
  SPECD_OK_OR_RETURN(file.status());
  return read_all(file.value(), kSignatureBytes, path);
}

Status read_bundle(const std::string& directory, const Approval& approval, Manifest* manifest,
                   std::string* content_sha256) {
  // Opened on its own first: the bundle directory gets no exception for sticky directories.
  SPECD_TRY(const FileDescriptor opened, open_trusted_directory(directory));
  const std::string path = directory + "/" + kManifestName;
  auto file = open_trusted_file(path, kManifestBytesMax);
  if (!file.ok()) {
    if (file.status().code() != Code::kNotFound) return file.status();
    return Status(Code::kNotFound,
                  "manifest " + quote(path, 400) + " is missing; specd_add_plugin() writes it");
  }
  SPECD_TRY(const std::string text, read_all(file.value(), kManifestBytesMax, path));
  *content_sha256 = to_hex(sha256(text));
  SPECD_TRY(*manifest, read_manifest(text, quote(path, 400)));
  if (!approval.lists(*content_sha256)) {
    SPECD_TRY(const std::string signature,
              approval.has_keys() ? read_signature(directory) : std::string());
    SPECD_OK_OR_RETURN(approval.check(text, signature));
  }
  if (manifest->abi != SPECD_ABI_LAYOUT) {
    return Status(Code::kUnsupported,
                  quote(path, 400) +
                      ": built against another plugin_api: expected abi " SPECD_ABI_LAYOUT
                      ", found " +
                      quote(manifest->abi) + "; rebuild the plugin with this daemon's SDK");
  }
  for (const auto& [name, hash] : manifest->files) {
    SPECD_OK_OR_RETURN(check_file(directory + "/" + name, hash, name == manifest->library));
  }
  return Status();
}

// A directory with neither a manifest nor a library is something else, such as a build folder.
bool looks_like_bundle(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename() == kManifestName || entry->path().extension() == ".so")
      return true;
  }
  return static_cast<bool>(error);  // report an unreadable directory instead of skipping it
}

Result<std::vector<std::string>> bundle_directories(const std::string& root) {
  std::error_code error;
  std::vector<std::string> found;
  fs::directory_iterator entry(root, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code unreadable;
    const bool leads_nowhere = entry->is_symlink(unreadable) && !entry->exists(unreadable);
    if (name[0] == '.' || !(leads_nowhere || entry->is_directory(unreadable))) continue;
    if (leads_nowhere || looks_like_bundle(entry->path())) found.push_back(root + "/" + name);
    if (found.size() > kBundlesMax) {
      return Status(Code::kInvalidArgument,
                    "plugin directory " + quote(root, 400) + " holds more than 1024 bundles");
    }
  }
  if (error) {
    const bool is_missing = error == std::errc::no_such_file_or_directory;
    return Status(is_missing ? Code::kNotFound : Code::kUnavailable,
                  "plugin directory " + quote(root, 400) + ": " + error.message() +
                      (is_missing ? "; create it or correct plugins.directories" : ""));
  }
  std::sort(found.begin(), found.end());
  return found;
}

void refuse(BundleInfo& info, const Status& why) {
  info.state = PluginState::kRefused;
  info.reason = why.text();
}

void log_refusal(const BundleInfo& info) {
  log(LogLevel::kWarn, "plugin " + info.id + " refused: " + info.reason);
}

// The field of PluginRegistry::Options.
std::string directory_field(size_t index) { return "directories[" + std::to_string(index) + "]"; }

// Every bundle of `roots`, nothing loaded.
Result<std::vector<Bundle>> discover(const std::vector<std::string>& roots,
                                     const Approval& approval) {
  std::vector<Bundle> bundles;
  for (size_t i = 0; i < roots.size(); ++i) {
    SPECD_TRY(const std::vector<std::string> directories,
              bundle_directories(roots[i]).in_field(directory_field(i)));
    for (const std::string& directory : directories) {
      Bundle bundle;
      bundle.info.directory = directory;
      const Status status =
          read_bundle(directory, approval, &bundle.manifest, &bundle.info.content_sha256);
      const Manifest& manifest = bundle.manifest;
      bundle.info.id = manifest.id.empty() ? directory : manifest.id;
      bundle.info.version = manifest.version;
      bundle.info.license = manifest.license;
      bundle.info.factories = manifest.factories;
      if (const auto hash = manifest.files.find(manifest.library); hash != manifest.files.end()) {
        bundle.info.sha256 = hash->second;
      }
      const auto first =
          std::find_if(bundles.begin(), bundles.end(), [&bundle](const Bundle& other) {
            return !other.failure.has_value() && other.info.id == bundle.info.id &&
                   other.info.version == bundle.info.version;
          });
      if (!status.ok()) {
        bundle.failure = status;
      } else if (first != bundles.end()) {
        bundle.failure = Status(Code::kInvalidArgument,
                                "plugin id " + quote(bundle.info.id) + " version " +
                                    quote(bundle.info.version) + " of " + quote(directory, 400) +
                                    " is already taken by " + quote(first->info.directory, 400) +
                                    "; remove one of them, or give it a version of its own");
      }
      if (bundle.failure.has_value()) refuse(bundle.info, *bundle.failure);
      bundles.push_back(std::move(bundle));
    }
  }
  return bundles;
}

// ---- the cache directory ---------------------------------------------------------------------

Status make_private_directory(const std::string& path) {
  // Parts that are missing are made private too, whatever the umask.
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return Status(Code::kUnavailable, "plugin cache directory " + quote(path, 400) + ": mkdir " +
                                            quote(part, 400) + ": " + std::strerror(errno));
    }
    if (at == std::string::npos) break;
  }
  auto opened = open_trusted_directory(path);
  if (!opened.ok()) return opened.status().with_context("plugin cache directory");
  struct stat info;
  if (fstat(opened.value().get(), &info) != 0 || info.st_uid != geteuid() ||
      (info.st_mode & 077) != 0) {
    return Status(Code::kFailedPrecondition,
                  "plugin cache directory " + quote(path, 400) +
                      " is not private; expected owner uid " + std::to_string(geteuid()) +
                      " and mode 0700 (chmod 700); or configure a directory of its own, which "
                      "specd creates");
  }
  return Status();
}

// Removes the copies of libraries that no daemon has loaded for a month. Loading writes a copy anew,
// so a daemon that still runs one loses nothing but the file's name.
void prune_cache(const std::string& directory) {
  constexpr auto kAgeMax = std::chrono::hours(30 * 24);
  std::error_code error;
  std::vector<fs::path> old;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    // "<sha256>.so", or ".<sha256>.<process>" of a load that was interrupted.
    const size_t hash = name.find_first_of("0123456789abcdef");
    const bool is_copy = hash <= 1 && name.size() > hash + 64 && name[hash + 64] == '.' &&
                         name.find_first_not_of("0123456789abcdef", hash) == hash + 64;
    std::error_code gone;
    const auto age = fs::file_time_type::clock::now() - entry->last_write_time(gone);
    if (is_copy && !gone && age > kAgeMax) old.push_back(entry->path());
  }
  for (const fs::path& each : old)
    if (fs::remove(each, error))
      log(LogLevel::kInfo, "plugin cache: removed " + quote(each.string(), 400));
}

// ---- factories -------------------------------------------------------------------------------

Result<const specd_factory*> choose_factory(const specd_plugin& plugin, const std::string& id,
                                            bool drafter, const std::string& where) {
  const specd_factory* chosen = nullptr;
  const std::string kind = drafter ? "drafter" : "verifier";
  const std::string other = drafter ? "verifier" : "drafter";
  std::string there;
  int n = 0;
  for (uint32_t i = 0; i < plugin.n_factories; ++i) {
    const specd_factory* factory = plugin.factories[i];
    if ((factory->drafter != nullptr) != drafter) {
      if (!id.empty() && id == factory->id) {
        return Status(Code::kInvalidArgument, "factory",
                      where + ": factory " + quote(id) + " makes a " + other + ", not a " + kind);
      }
      continue;
    }
    there += (there.empty() ? "" : ", ") + quote(factory->id);
    if (id.empty() || id == factory->id) {
      chosen = factory;
      ++n;
    }
  }
  if (n == 1) return chosen;
  if (there.empty()) {
    return Status(Code::kInvalidArgument, "plugin",
                  where + " has no " + kind + " factory; it makes " + other + "s");
  }
  if (id.empty()) {
    return Status(Code::kInvalidArgument, "factory",
                  where + " has several " + kind + " factories; name one of " + there);
  }
  return Status(Code::kNotFound, "factory",
                where + " has no " + kind + " factory " + quote(id) + "; it has " + there);
}

// What describe() and create() are called with.
struct Prepared {
  const specd_factory* factory = nullptr;
  std::unique_ptr<PluginConfig> config;
  HasConfigKey has_key;
  std::string where;   // "plugin 'p' factory 'f'"
  std::string plugin;  // exact_name()
  std::string build;   // for last words
  std::string directory;
  std::shared_ptr<const void> module;
};

std::unique_ptr<specd_owner> make_owner(const std::string& plugin_id,
                                        const std::string& instance_name, const Prepared& prepared,
                                        uint64_t quota_bytes) {
  auto owner = std::make_unique<specd_owner>();
  owner->name = instance_name;
  owner->label = plugin_id + " (" + instance_name + ")";
  owner->plugin = prepared.plugin;
  owner->build = prepared.build + ", for " + instance_name;
  owner->module = prepared.module;
  owner->has_config_key = prepared.has_key;
  const MutexLock lock(owner->mutex);
  owner->quota_bytes = quota_bytes;
  return owner;
}

template <typename Api, typename Caps>
Status describe(const std::string& plugin_id, const Api& api, const Prepared& prepared,
                const specd_host* host, const specd_target_info& target, specd_call& call,
                Caps& caps, const std::atomic<bool>& is_late) {
  caps.struct_size = sizeof(caps);
  const PluginScope scope(plugin_id, &call.text,
                          {prepared.plugin.c_str(), prepared.build.c_str(), "describe"});
  SPECD_OK_OR_RETURN(check_in_time(is_late));
  const specd_status status = without_exceptions(
      [&] { return api.describe(prepared.factory, host, &target, prepared.config->get(), &caps); });
  return plugin_status(status, prepared.where + ": describe", call.text, prepared.has_key);
}

template <typename Instance, typename Api>
Result<Instance*> create(const std::string& plugin_id, const Api& api, const Prepared& prepared,
                         const specd_host* host, const specd_target_info& target,
                         specd_owner& owner, specd_call& call, const std::atomic<bool>& is_late) {
  specd_create_args args{};
  args.struct_size = sizeof(args);
  args.target = &target;
  args.config = prepared.config->get();
  args.owner = &owner;
  args.call = &call;
  args.instance_name = owner.name.c_str();
  args.data_dir = prepared.directory.c_str();
  call.clear();
  Instance* made = nullptr;
  const PluginScope scope(plugin_id, &call.text,
                          {owner.plugin.c_str(), owner.build.c_str(), "create"});
  SPECD_OK_OR_RETURN(check_in_time(is_late));
  const specd_status status =
      without_exceptions([&] { return api.create(prepared.factory, host, &args, &made); });
  SPECD_OK_OR_RETURN(
      plugin_status(status, prepared.where + ": create", call.text, prepared.has_key));
  if (made == nullptr) {
    return Status(Code::kInternal, prepared.where + ": create() returned SPECD_OK and no instance");
  }
  return made;
}

// What `make` makes of the new instance `self`, which is destroyed when there is no memory for that.
template <typename Api, typename Self, typename Make>
auto own(const Api& api, Self* self, const specd_owner& owner, const std::atomic<bool>& is_late,
         Make&& make) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    if (!is_late) {
      const PluginScope scope(owner.label, nullptr,
                              {owner.plugin.c_str(), owner.build.c_str(), "destroy"});
      without_exceptions([&] { api.destroy(self); });
    }
    throw;
  }
}

}  // namespace

struct PluginRegistry::Impl {
  std::vector<std::string> roots;
  std::string cache_directory, config_directory;
  Approval approval;
  const specd_host* host = nullptr;
  mutable Mutex mutex;
  std::vector<Bundle> bundles SPECD_GUARDED_BY(mutex);

  // The bundle that the id means; an error when there is none, or when it is refused.
  Result<Bundle> usable(const std::string& plugin_id);
  Result<Bundle> load(const std::string& plugin_id, const std::atomic<bool>& is_late);
  struct Parts;
  // `parts`: null for verifiers, which have none.
  Result<Prepared> prepare(const std::string& plugin_id, const std::string& factory_id,
                           const Json& config, PartSource* parts, const std::atomic<bool>& is_late);
  Bundle* find(const std::string& plugin_id) SPECD_REQUIRES(mutex);
};

// For the drafter that one call of make_drafter() makes.
struct PluginRegistry::Impl::Parts final : PartSource {
  Parts(Impl& from, const std::atomic<bool>& late) : impl(from), is_late(late) {}
  Result<PluginPart> find_part(const std::string& plugin_id, const std::string& factory_id,
                               const Json& config) override;
  Impl& impl;
  const std::atomic<bool>& is_late;
};

Bundle* PluginRegistry::Impl::find(const std::string& plugin_id) {
  const size_t at = std::min(plugin_id.find('@'), plugin_id.size());
  const std::string id = plugin_id.substr(0, at);
  const bool is_exact = at < plugin_id.size();
  Bundle *usable = nullptr, *refused = nullptr;
  for (Bundle& bundle : bundles) {
    // Of a bundle whose manifest cannot be read the id is a path, which may have any characters.
    const bool is_it =
        bundle.info.id == plugin_id ||
        (bundle.info.id == id && (!is_exact || bundle.info.version == plugin_id.substr(at + 1)));
    if (!is_it) continue;
    // A refused bundle must not hide an accepted one.
    Bundle*& best = bundle.failure.has_value() ? refused : usable;
    if (best == nullptr || is_newer(bundle.info.version, best->info.version)) best = &bundle;
  }
  return usable != nullptr ? usable : refused;
}

namespace {

Status was_refused(const std::string& plugin_id, const Status& why) {
  return why.with_context("plugin " + quote(plugin_id) + " was refused").in_field("plugin");
}

}  // namespace

Result<Bundle> PluginRegistry::Impl::usable(const std::string& plugin_id) {
  const MutexLock lock(mutex);
  const Bundle* found = find(plugin_id);
  if (found == nullptr) {
    std::string versions;  // of the id, when a version was asked for
    for (const Bundle& one : bundles) {
      if (!plugin_id.starts_with(one.info.id + "@")) continue;
      versions += (versions.empty() ? "" : ", ") + quote(one.info.version);
    }
    if (!versions.empty()) {
      return Status(Code::kNotFound, "plugin",
                    "plugin " + quote(plugin_id) + " is not there; its versions are " + versions);
    }
    std::vector<std::string> ids;
    std::string there, refused;
    size_t n_refused = 0;
    for (const Bundle& one : bundles) {
      if (one.failure.has_value() && one.info.id == one.info.directory) {
        // Its manifest cannot be read, so it may be the wanted bundle.
        if (++n_refused == 1)
          refused = "; " + quote(one.info.directory, 400) + " was refused: " + one.info.reason;
        continue;
      }
      // Another version, or a refused duplicate, has the same id.
      if (std::find(ids.begin(), ids.end(), one.info.id) != ids.end()) continue;
      ids.push_back(one.info.id);
      there += (there.empty() ? "" : ", ") + quote(one.info.id);
    }
    if (n_refused > 1) refused += "; and " + std::to_string(n_refused - 1) + " more";
    const std::string near = did_you_mean(plugin_id, ids);
    return Status(Code::kNotFound, "plugin",
                  "plugin " + quote(plugin_id) + " is not there" + (near.empty() ? ";" : near) +
                      (there.empty() ? " no usable bundle was found" : " found " + there) +
                      refused);
  }
  if (found->failure.has_value()) return was_refused(plugin_id, *found->failure);
  return *found;
}

Result<Bundle> PluginRegistry::Impl::load(const std::string& plugin_id,
                                          const std::atomic<bool>& is_late) {
  SPECD_TRY(Bundle bundle, usable(plugin_id));
  if (bundle.plugin != nullptr) return bundle;
  // Without the lock: init() may take long, and list() must not wait for it.
  const auto load_now = [&]() -> Result<const specd_plugin*> {
    // Somebody may have cleaned up.
    if (!cache_directory.empty()) SPECD_OK_OR_RETURN(make_private_directory(cache_directory));
    return load_module({bundle.manifest, bundle.info.directory + "/" + bundle.manifest.library,
                        cache_directory, host, is_late});
  };
  auto loaded = load_now();
  SPECD_OK_OR_RETURN(check_in_time(is_late));  // says nothing about the bundle
  const MutexLock lock(mutex);
  // A load that is late comes back to another list.
  const auto same = std::find_if(bundles.begin(), bundles.end(), [&bundle](const Bundle& other) {
    return other.info.directory == bundle.info.directory &&
           other.info.content_sha256 == bundle.info.content_sha256;
  });
  if (same == bundles.end() || same->is_set_aside)
    return was_refused(plugin_id,
                       Status(Code::kUnavailable, "it changed while it was being loaded"));
  Bundle& kept = *same;
  if (!loaded.ok()) {
    refuse(kept.info, loaded.status());
    log_refusal(kept.info);
    return was_refused(plugin_id, loaded.status());
  }
  kept.plugin = loaded.value();
  kept.info.state = PluginState::kLoaded;
  kept.info.reason.clear();  // of an earlier attempt
  log(LogLevel::kInfo, "plugin " + kept.info.id + " " + kept.info.version + " loaded from " +
                           quote(kept.info.directory + "/" + kept.manifest.library, 400) +
                           ", sha256:" + kept.info.sha256);
  return kept;
}

Result<Prepared> PluginRegistry::Impl::prepare(const std::string& plugin_id,
                                               const std::string& factory_id, const Json& config,
                                               PartSource* parts,
                                               const std::atomic<bool>& is_late) {
  SPECD_TRY(const Bundle bundle, load(plugin_id, is_late));
  Prepared prepared;
  const std::string plugin = "plugin " + quote(plugin_id);
  SPECD_TRY(prepared.factory, choose_factory(*bundle.plugin, factory_id, parts != nullptr, plugin));
  prepared.where = plugin + " factory " + quote(prepared.factory->id);
  prepared.plugin = exact_name(bundle.info.id, bundle.info.version);
  prepared.build = build_text(plugin_id, bundle.info.version, bundle.info.sha256);
  prepared.directory = bundle.info.directory;
  prepared.module = hold_module(*bundle.plugin);
  SPECD_TRY(const ConfigSchema schema,
            ConfigSchema::parse(prepared.factory->config_schema, prepared.where));
  const auto refused = [&](const Status& why) {
    return why.in_field("config").with_context(prepared.where);
  };
  auto made = PluginConfig::make(config, parts, config_directory);
  if (!made.ok()) return refused(made.status());
  if (const Status status = schema.check(config); !status.ok()) return refused(status);
  prepared.config = std::move(made).value();
  prepared.has_key = [schema](std::string_view path) { return schema.may_have(path); };
  return prepared;
}

Result<PluginPart> PluginRegistry::Impl::Parts::find_part(const std::string& plugin_id,
                                                          const std::string& factory_id,
                                                          const Json& config) {
  SPECD_TRY(Prepared prepared, impl.prepare(plugin_id, factory_id, config, this, is_late));
  return PluginPart{prepared.factory, std::move(prepared.config), plugin_id,
                    std::move(prepared.directory), std::move(prepared.module)};
}

PluginRegistry::PluginRegistry() : impl_(new Impl) {}
PluginRegistry::~PluginRegistry() = default;

Result<std::unique_ptr<PluginRegistry>> PluginRegistry::open(const Options& options,
                                                             const specd_host* host) {
  std::unique_ptr<PluginRegistry> registry(new PluginRegistry);
  Impl& impl = *registry->impl_;
  impl.host = host;
  impl.config_directory = options.config_directory;
  if (!options.cache_directory.empty()) {
    SPECD_TRY(impl.cache_directory,
              absolute_path(options.cache_directory).in_field("cache_directory"));
    SPECD_OK_OR_RETURN(make_private_directory(impl.cache_directory).in_field("cache_directory"));
    prune_cache(impl.cache_directory);
  }
  for (size_t i = 0; i < options.directories.size(); ++i) {
    SPECD_TRY(std::string root, absolute_path(options.directories[i]).in_field(directory_field(i)));
    impl.roots.push_back(std::move(root));
  }
  SPECD_TRY(impl.approval, Approval::make(options.approved).in_field("approved"));
  SPECD_OK_OR_RETURN(registry->rescan());
  return registry;
}

Status PluginRegistry::rescan() {
  SPECD_TRY(std::vector<Bundle> found, discover(impl_->roots, impl_->approval));
  const MutexLock lock(impl_->mutex);
  for (Bundle& bundle : found) {
    const auto known =
        std::find_if(impl_->bundles.begin(), impl_->bundles.end(), [&bundle](const Bundle& other) {
          return other.info.directory == bundle.info.directory &&
                 other.info.content_sha256 == bundle.info.content_sha256;
        });
    const bool is_known = known != impl_->bundles.end();
    if (is_known && known->is_set_aside) {
      const std::optional<Status> found_now = bundle.failure;
      bundle = *known;
      // What is wrong with it now is not undone by load().
      if (bundle.is_retired && found_now.has_value()) {
        bundle.failure = found_now;
        bundle.is_retired = bundle.is_set_aside = false;
        refuse(bundle.info, *found_now);
      }
      continue;
    }
    if (bundle.failure.has_value()) {
      if (!is_known || known->failure != bundle.failure) log_refusal(bundle.info);
    } else if (is_known && !known->failure.has_value()) {
      bundle.plugin = known->plugin;
      bundle.info.state = known->info.state;
      bundle.info.reason = known->info.reason;
    }
  }
  impl_->bundles = std::move(found);
  return Status();
}

std::vector<BundleInfo> PluginRegistry::list() const {
  const MutexLock lock(impl_->mutex);
  std::vector<BundleInfo> all;
  for (const Bundle& bundle : impl_->bundles) all.push_back(bundle.info);
  return all;
}

std::optional<BundleInfo> PluginRegistry::find(const std::string& plugin_id) const {
  const MutexLock lock(impl_->mutex);
  const Bundle* found = impl_->find(plugin_id);
  if (found == nullptr) return std::nullopt;
  BundleInfo info = found->info;
  info.asked = plugin_id;
  return info;
}

namespace {

Result<specd_drafter_caps> checked_caps(const std::string& plugin_id, const Prepared& prepared,
                                        const specd_drafter_api& api, const specd_host& host,
                                        const specd_target_info& target, specd_call& call,
                                        const std::atomic<bool>& is_late) {
  specd_drafter_caps caps{};
  SPECD_OK_OR_RETURN(describe(plugin_id, api, prepared, &host, target, call, caps, is_late));
  SPECD_OK_OR_RETURN(check_caps(caps, target, host, prepared.where));
  if (caps.tree_mode == SPECD_TREE_STATIC && api.static_tree == nullptr) {
    return Status(Code::kUnsupported,
                  prepared.where + ": tree_mode is SPECD_TREE_STATIC, but static_tree is null");
  }
  const bool needs_update =
      (caps.needs & (SPECD_NEED_HIDDEN | SPECD_NEED_PROBES)) != 0 || caps.top_k > 0;
  if (needs_update && api.update == nullptr) {
    return Status(Code::kUnsupported,
                  prepared.where +
                      ": needs hidden states, probes or the target's top_k, which "
                      "update() brings, but update is null");
  }
  return caps;
}

Result<specd_verifier_caps> checked_caps(const std::string& plugin_id, const Prepared& prepared,
                                         const specd_verifier_api& api, const specd_host& host,
                                         const specd_target_info& target, specd_call& call,
                                         const std::atomic<bool>& is_late) {
  specd_verifier_caps caps{};
  SPECD_OK_OR_RETURN(describe(plugin_id, api, prepared, &host, target, call, caps, is_late));
  SPECD_OK_OR_RETURN(check_caps(caps, host, prepared.where));
  return caps;
}

}  // namespace

Result<std::unique_ptr<Drafter>> PluginRegistry::make_drafter(const std::string& plugin_id,
                                                              const std::string& factory_id,
                                                              const Json& config,
                                                              const specd_target_info& target,
                                                              const std::string& instance_name,
                                                              const std::atomic<bool>& is_late) {
  Impl::Parts parts(*impl_, is_late);
  SPECD_TRY(const Prepared prepared,
            impl_->prepare(plugin_id, factory_id, config, &parts, is_late));
  const specd_drafter_api* api = prepared.factory->drafter;
  specd_call call;
  SPECD_TRY(const specd_drafter_caps caps,
            checked_caps(plugin_id, prepared, *api, *impl_->host, target, call, is_late));
  // The grant of activate() replaces this quota.
  const uint32_t n_sequences = std::max(caps.max_batch, 1u);
  auto owner = make_owner(plugin_id, instance_name, prepared,
                          std::min(quota_of(caps, n_sequences), host_memory().bytes));
  SPECD_TRY(specd_drafter* const self, create<specd_drafter>(plugin_id, *api, prepared, impl_->host,
                                                             target, *owner, call, is_late));
  return own(*api, self, *owner, is_late, [&]() -> std::unique_ptr<Drafter> {
    std::string name = instance_name;
    std::vector<UsedPlugin> used = prepared.config->used_plugins();
    return std::make_unique<LoadedDrafter>(api, self, caps, std::move(owner), std::move(name),
                                           std::move(used));
  });
}

Result<std::unique_ptr<Verifier>> PluginRegistry::make_verifier(const std::string& plugin_id,
                                                                const std::string& factory_id,
                                                                const Json& config,
                                                                const specd_target_info& target,
                                                                const std::string& instance_name,
                                                                const std::atomic<bool>& is_late) {
  SPECD_TRY(const Prepared prepared,
            impl_->prepare(plugin_id, factory_id, config, nullptr, is_late));
  const specd_verifier_api* api = prepared.factory->verifier;
  specd_call call;
  SPECD_TRY(const specd_verifier_caps caps,
            checked_caps(plugin_id, prepared, *api, *impl_->host, target, call, is_late));
  // Verifiers keep no state, so their quota is 0. Their calls can use scratch().
  auto owner = make_owner(plugin_id, instance_name, prepared, 0);
  SPECD_TRY(specd_verifier* const self,
            create<specd_verifier>(plugin_id, *api, prepared, impl_->host, target, *owner, call,
                                   is_late));
  return own(*api, self, *owner, is_late, [&] {
    std::string name = instance_name;
    return std::make_unique<Verifier>(api, self, caps, std::move(owner), std::move(name));
  });
}

Result<specd_drafter_caps> PluginRegistry::drafter_caps(const std::string& plugin_id,
                                                        const std::string& factory_id,
                                                        const Json& config,
                                                        const specd_target_info& target,
                                                        const std::atomic<bool>& is_late) {
  Impl::Parts parts(*impl_, is_late);
  SPECD_TRY(const Prepared prepared,
            impl_->prepare(plugin_id, factory_id, config, &parts, is_late));
  specd_call call;
  return checked_caps(plugin_id, prepared, *prepared.factory->drafter, *impl_->host, target, call,
                      is_late);
}

Result<specd_verifier_caps> PluginRegistry::verifier_caps(const std::string& plugin_id,
                                                          const std::string& factory_id,
                                                          const Json& config,
                                                          const specd_target_info& target,
                                                          const std::atomic<bool>& is_late) {
  SPECD_TRY(const Prepared prepared,
            impl_->prepare(plugin_id, factory_id, config, nullptr, is_late));
  specd_call call;
  return checked_caps(plugin_id, prepared, *prepared.factory->verifier, *impl_->host, target, call,
                      is_late);
}

Status PluginRegistry::load(const std::string& plugin_id, const std::atomic<bool>& is_late) {
  {
    const MutexLock lock(impl_->mutex);
    Bundle* const found = impl_->find(plugin_id);
    if (found != nullptr && found->is_retired) {
      found->failure.reset();
      found->is_retired = found->is_set_aside = false;
      found->info.reason.clear();
      found->info.state =
          found->plugin != nullptr ? PluginState::kLoaded : PluginState::kDiscovered;
    }
  }
  return as_status(impl_->load(plugin_id, is_late));
}

Result<bool> PluginRegistry::retire(const std::string& plugin_id) {
  const MutexLock lock(impl_->mutex);
  Bundle* const found = impl_->find(plugin_id);
  if (found == nullptr) {
    return Status(Code::kNotFound, "plugin", "plugin " + quote(plugin_id) + " is not there");
  }
  if (found->is_retired) return false;
  if (found->failure.has_value()) {
    return Status(Code::kFailedPrecondition, "plugin", "it is refused: " + found->info.reason);
  }
  const Status why(Code::kFailedPrecondition, "it was retired; load it to use it again");
  found->failure = why;
  found->is_retired = found->is_set_aside = true;
  refuse(found->info, why);
  return true;
}

void PluginRegistry::set_aside(const std::string& plugin_id, const Status& why) {
  const MutexLock lock(impl_->mutex);
  Bundle* const found = impl_->find(plugin_id);
  if (found == nullptr) return;
  found->failure = why;
  found->is_set_aside = true;
  found->is_retired = false;  // load() must not undo this
  refuse(found->info, why);
  log_refusal(found->info);
}

Status PluginRegistry::check(const std::string& plugin_id) const {
  return as_status(impl_->usable(plugin_id));
}

const specd_host& PluginRegistry::host() const { return *impl_->host; }

void shut_down_plugins() { shut_down_modules(); }

}  // namespace specd
