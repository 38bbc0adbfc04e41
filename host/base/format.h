// How specctl prints what the daemon says.
#pragma once

#include <string>

namespace specd::host {

enum class Format { kTable, kJson, kYaml };

// An object, given as one line of JSON: that line, or for kYaml a document that begins with "---", one value a
// line. REQUIRES not kTable.
std::string object_text(const std::string& json, Format format);

}  // namespace specd::host
