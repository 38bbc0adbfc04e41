// The status line and headers that answer an error, in every API over HTTP.
#pragma once

#include <string>

#include "core/base/status.h"
#include "host/http/http_message.h"

namespace specd::host {

// What a client can do about it: clients repeat a request after 408, 409, 429 and every 5xx, so a caller's
// mistake is never one of these.
unsigned http_status(const Status& status);

// At most 2 KiB of an error's text: a client may have written most of it.
std::string error_text(const std::string& text);

// Adds what the status asks of a client: 429 and 503 say when to come again, 401 how to show a key.
void add_status_headers(HttpAnswer& answer);

}  // namespace specd::host
