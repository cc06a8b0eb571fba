#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launcher/cli/help_text.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/man_page.h"
#include "launcher/cli/option_table.h"
#include "proto/release.h"

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

/// Prints the text that is asked for instead of what the command does, and returns the exit code;
/// nullopt if none is.
inline std::optional<int> ShowText(CliProgram program, Request request) {
  switch (request) {
    case Request::kHelp:
      Show(HelpText(program));
      return 0;
    case Request::kManPage:
      Show(ManPage(program));
      return 0;
    case Request::kVersion:
      Show(absl::StrCat("fsdpctl ", kRelease, "\n"));
      return 0;
    default:
      return std::nullopt;
  }
}

}  // namespace fsdprun
