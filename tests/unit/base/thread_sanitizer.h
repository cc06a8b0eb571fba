#pragma once

namespace fsdprun {

// g++ defines a macro for each sanitizer, clang answers a question.
#if defined(__SANITIZE_THREAD__)
#define FSDPRUN_THREAD_SANITIZER 1
#elif defined(__has_feature)
#define FSDPRUN_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define FSDPRUN_THREAD_SANITIZER 0
#endif

/// ThreadSanitizer ends a process that asks for more memory than there can be.
inline constexpr bool kHasThreadSanitizer = FSDPRUN_THREAD_SANITIZER != 0;

#undef FSDPRUN_THREAD_SANITIZER

}  // namespace fsdprun
