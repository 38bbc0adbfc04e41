// HTTP/2 frames as bytes (RFC 9113, section 4.1).
#pragma once

#include <cstdint>
#include <string>

namespace specd::host {

enum FrameType : uint8_t { kDataFrame = 0, kHeadersFrame = 1, kResetFrame = 3, kSettingsFrame = 4 };

inline constexpr char kHttp2Preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string http2_frame(uint8_t type, uint8_t flags, uint32_t stream,
                               const std::string& payload) {
  std::string frame;
  const auto put = [&](uint32_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) frame += static_cast<char>(value >> (8 * i));
  };
  put(static_cast<uint32_t>(payload.size()), 3);
  put(type, 1);
  put(flags, 1);
  put(stream, 4);
  return frame + payload;
}

}  // namespace specd::host
