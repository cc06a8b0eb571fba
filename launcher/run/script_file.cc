#include "launcher/run/script_file.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kElfMagic(
    "\x7f"
    "ELF");

bool IsShell(absl::string_view program) {
  for (const absl::string_view shell : {"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"}) {
    if (program == shell) {
      return true;
    }
  }
  return false;
}

absl::string_view BaseName(absl::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

ScriptFile ReadBeginning(absl::string_view beginning) {
  ScriptFile file;
  file.is_elf = absl::StartsWith(beginning, kElfMagic);
  if (!absl::StartsWith(beginning, "#!")) {
    return file;
  }
  const std::vector<absl::string_view> lines = absl::StrSplit(beginning, absl::MaxSplits('\n', 2));
  const std::vector<absl::string_view> words =
      absl::StrSplit(lines[0].substr(2), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  const bool is_by_env = words.size() > 1 && BaseName(words[0]) == "env";
  // Installers write scripts that both can read: "#!/bin/sh" and then "'''exec' python ...".
  const bool is_for_both =
      lines.size() > 1 && (absl::StartsWith(lines[1], "'") || absl::StartsWith(lines[1], "\""));
  if (!words.empty() && IsShell(BaseName(words[is_by_env ? 1 : 0])) && !is_for_both) {
    file.shell_line = std::string(absl::StripSuffix(lines[0], "\r"));
  }
  return file;
}

ScriptFile ReadScriptFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return {};  // What is read of a pipe would be missing to Python.
  }
  std::array<char, 512> bytes{};
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return ReadBeginning({bytes.data(), static_cast<size_t>(file.gcount())});
}

}  // namespace fsdprun
