// Which sanitizers with a runtime of their own this program is built with (by clang), 0 or 1:
// SPECD_ASAN, SPECD_TSAN, and SPECD_HAS_SANITIZER for either.
#pragma once

#ifdef __has_feature
#define SPECD_ASAN __has_feature(address_sanitizer)
#define SPECD_TSAN __has_feature(thread_sanitizer)
#else
#define SPECD_ASAN 0
#define SPECD_TSAN 0
#endif
#define SPECD_HAS_SANITIZER (SPECD_ASAN || SPECD_TSAN)
