#include "launcher/cli/forwarded_environment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kToken = "FSDPRUN_TOKEN";

/// Exact names.
constexpr absl::string_view kOfOnePlace[] = {
    kToken,
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "MAIL",
    "HOSTNAME",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TERM",
    "COLUMNS",
    "LINES",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "TMUX",
    "STY",
    // What this machine's devices are called.
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    // The launcher's own, of an outer one.
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_TIMER_FILE",
};
constexpr absl::string_view kBeginningsOfOnePlace[] = {
    "XDG_",    "SSH_",  "DBUS_",   "SYSTEMD_", "SLURM",
    "SBATCH_", "SRUN_", "SALLOC_", "PMI",      "FSDPRUN_SLURM_"};

constexpr absl::string_view kOfDaemon[] = {kToken,           "NOTIFY_SOCKET", "INVOCATION_ID",
                                           "JOURNAL_STREAM", "MAINPID",       "MANAGERPID"};
constexpr absl::string_view kBeginningsOfDaemon[] = {"PET_", "LISTEN_", "WATCHDOG_",
                                                     "CREDENTIALS_"};

template <size_t kNames, size_t kBeginnings>
bool IsAmong(absl::string_view name, const absl::string_view (&names)[kNames],
             const absl::string_view (&beginnings)[kBeginnings]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names) ||
         std::any_of(std::begin(beginnings), std::end(beginnings),
                     [name](absl::string_view begin) { return absl::StartsWith(name, begin); });
}

bool IsName(absl::string_view text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
    return c == '=' || c == '*' || absl::ascii_isspace(static_cast<unsigned char>(c)) ||
           absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

bool IsWanted(const std::string& name, const ForwardedVariables& which) {
  if (name == kToken) {
    return false;
  }
  // The rest of the command line, which is read again at the node.
  if (absl::StartsWith(name, "PET_") || absl::StartsWith(name, "TORCH_ELASTIC_")) {
    return true;
  }
  if (which.is_default) {
    return !IsOfOnePlace(name);
  }
  return std::any_of(which.names.begin(), which.names.end(), [&name](absl::string_view pattern) {
    return absl::ConsumeSuffix(&pattern, "*") ? absl::StartsWith(name, pattern) : name == pattern;
  });
}

}  // namespace

absl::StatusOr<ForwardedVariables> ParseForwardEnv(const RawValue& value) {
  ForwardedVariables which;
  if (value.text.empty() || value.text == "all") {
    return which;
  }
  which.is_default = false;
  if (value.text == "none") {
    return which;
  }
  for (const absl::string_view text : absl::StrSplit(value.text, ',')) {
    const absl::string_view pattern = absl::StripAsciiWhitespace(text);
    absl::string_view name = pattern;
    absl::ConsumeSuffix(&name, "*");
    if (!IsName(name)) {
      return InvalidValue(value,
                          "all, none, or names of variables, NAME or PREFIX*, with commas "
                          "between them");
    }
    if (pattern == kToken) {
      return absl::OutOfRangeError(
          absl::StrCat(value.source, ": ", kToken,
                       " is a secret of the launcher and never sent; a daemon has its own"));
    }
    which.names.emplace_back(pattern);
  }
  return which;
}

bool IsOfOnePlace(absl::string_view name) {
  return IsAmong(name, kOfOnePlace, kBeginningsOfOnePlace);
}

bool IsOfDaemon(absl::string_view name) { return IsAmong(name, kOfDaemon, kBeginningsOfDaemon); }

void AlsoForward(const Environment& variables, ForwardedVariables* which) {
  if (which->is_default) {
    return;
  }
  for (const auto& [name, value] : variables) {
    if (!IsOfOnePlace(name)) {
      which->names.push_back(name);
    }
  }
}

Environment TravelingEnvironment(const Environment& launcher, const ForwardedVariables& which) {
  Environment traveling;
  for (const auto& [name, value] : launcher) {
    if (IsWanted(name, which)) {
      traveling[name] = value;
    }
  }
  return traveling;
}

Environment EnvironmentAtNode(Environment node, const Environment& traveled) {
  std::erase_if(node, [](const auto& variable) { return IsOfDaemon(variable.first); });
  for (const auto& [name, value] : traveled) {
    node[name] = value;
  }
  return node;
}

}  // namespace fsdprun
