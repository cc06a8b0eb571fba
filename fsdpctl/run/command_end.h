#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"

namespace fsdprun {

// How commands of fsdpctl end; see Note [Usage errors and value errors].

inline constexpr int kUsageError = 2;
inline constexpr int kValueError = 1;

/// Says why `command` cannot be done, and returns its exit code.
inline int Fail(const std::string& command, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", command.c_str(), std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kUsageError : kValueError;
}

/// On standard output, at once.
inline void Show(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace fsdprun
