#include "host/daemon/renewal.h"

#include <optional>

namespace specd::host {
namespace {

Result<HttpDoor> read_door(const Config& config) {
  const HttpOptions& options = *config.http;
  Result<HttpDoor> read =
      HttpDoor::open(options.address, options.api_keys_file, options.tls.has_value());
  if (!read.ok()) return with_place(config, read.status().in_field("http.api_keys_file"));
  return read;
}

Renewal renewal_of(const Config& config, const std::string& field, TlsKeys& keys) {
  return [&config, field, &keys]() -> Result<Renewed> {
    const auto read = keys.read();
    if (!read.ok()) return with_place(config, read.status().in_field(field));
    Renewed one;
    if (keys.are_new(*read.value()))
      one.news = field + ": a certificate that expires " + TlsKeys::end_of(*read.value());
    one.use = [&keys, taken = read.value()] { keys.use(taken); };
    return one;
  };
}

Renewal renewal_of(const Config& config, Doorkeeper& keeper) {
  return [&config, &keeper]() -> Result<Renewed> {
    SPECD_TRY(HttpDoor read, read_door(config));
    const auto door = std::make_shared<const HttpDoor>(std::move(read));
    Renewed one;
    if (!(*door == *keeper.door())) one.news = "http.api_keys_file: other keys";
    one.use = [&keeper, door] { keeper.use(door); };
    return one;
  };
}

Status load_tls(const Config& config, const std::optional<TlsOptions>& files,
                const std::string& field, std::unique_ptr<TlsKeys>& keys,
                std::vector<Renewal>& renewals) {
  if (!files.has_value()) return Status();
  auto loaded = TlsKeys::load(*files);
  if (!loaded.ok()) return with_place(config, loaded.status().in_field(field));
  keys = std::move(loaded).value();
  renewals.push_back(renewal_of(config, field, *keys));
  return Status();
}

}  // namespace

Status load_keys(const Config& config, std::unique_ptr<TlsKeys>& tcp_tls,
                 std::unique_ptr<TlsKeys>& http_tls, std::unique_ptr<Doorkeeper>& doorkeeper,
                 std::vector<Renewal>& renewals) {
  if (config.tcp.has_value()) {
    SPECD_OK_OR_RETURN(load_tls(config, config.tcp->tls, "tcp.tls", tcp_tls, renewals));
  }
  if (!config.http.has_value()) return Status();
  SPECD_OK_OR_RETURN(load_tls(config, config.http->tls, "http.tls", http_tls, renewals));
  SPECD_TRY(HttpDoor door, read_door(config));
  doorkeeper = std::make_unique<Doorkeeper>(std::move(door));
  renewals.push_back(renewal_of(config, *doorkeeper));
  return Status();
}

}  // namespace specd::host
