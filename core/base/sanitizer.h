// Which sanitizers with a runtime of their own this program is built with, 0 or 1: SPECD_ASAN,
// SPECD_TSAN, and SPECD_HAS_SANITIZER for either.
#pragma once

#if defined(__has_feature)  // clang
#define SPECD_ASAN __has_feature(address_sanitizer)
#define SPECD_TSAN __has_feature(thread_sanitizer)
#else
#ifdef __SANITIZE_ADDRESS__
#define SPECD_ASAN 1
#else
#define SPECD_ASAN 0
#endif
#ifdef __SANITIZE_THREAD__
#define SPECD_TSAN 1
#else
#define SPECD_TSAN 0
#endif
#endif
#define SPECD_HAS_SANITIZER (SPECD_ASAN || SPECD_TSAN)
