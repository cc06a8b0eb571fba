#pragma once

namespace fsdprun {

// g++ defines a macro for each sanitizer, clang answers a question.
#if defined(__SANITIZE_ADDRESS__)
#define FSDPRUN_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define FSDPRUN_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define FSDPRUN_ADDRESS_SANITIZER 0
#endif

/// AddressSanitizer explains faults itself, and keeps memory that has been freed for a while.
inline constexpr bool kHasAddressSanitizer = FSDPRUN_ADDRESS_SANITIZER != 0;

#undef FSDPRUN_ADDRESS_SANITIZER

}  // namespace fsdprun
