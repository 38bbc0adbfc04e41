// Whether this program is built with a sanitizer that has a runtime of its own: SPECD_HAS_SANITIZER.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SPECD_HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SPECD_HAS_SANITIZER 1
#endif
#endif
#if !defined(SPECD_HAS_SANITIZER)
#define SPECD_HAS_SANITIZER 0
#endif
