#include "fsdpctl/doctor/machine/system_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/unique_fd.h"

namespace fsdprun::doctor {
namespace {

constexpr size_t kReadBytes = 4096;

}  // namespace

std::string TextOf(const std::string& path) {
  // Some files of /sys can be opened, and then be read with an error only.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char piece[kReadBytes];
  for (ssize_t n = 1; file.valid() && n > 0;) {
    n = ::read(file.get(), piece, sizeof(piece));
    text.append(piece, n > 0 ? static_cast<size_t>(n) : 0);
  }
  return std::string(absl::StripAsciiWhitespace(text));
}

std::optional<int64_t> NumberIn(const std::string& path) {
  int64_t number = 0;
  return absl::SimpleAtoi(TextOf(path), &number) ? std::optional(number) : std::nullopt;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

int NvidiaNodes(const std::string& root) {
  const std::vector<std::string> names = NamesIn(root + "/dev");
  return static_cast<int>(std::count_if(names.begin(), names.end(), [](absl::string_view name) {
    int number = 0;
    return absl::ConsumePrefix(&name, "nvidia") && absl::SimpleAtoi(name, &number);
  }));
}

bool HasRdmaNodes(const std::string& root) {
  const std::vector<std::string> names = NamesIn(root + "/dev/infiniband");
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return absl::StartsWith(name, "uverbs"); });
}

std::string FieldOf(const std::string& text, const std::string& key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, key) && !line.empty() &&
        (line.front() == ':' || absl::ascii_isspace(static_cast<unsigned char>(line.front())))) {
      absl::ConsumePrefix(&line, ":");
      return std::string(absl::StripAsciiWhitespace(line));
    }
  }
  return "";
}

uint64_t NumberOf(const std::string& text, const std::string& key) {
  const std::string field = FieldOf(text, key);
  uint64_t number = 0;
  return absl::SimpleAtoi(field.substr(0, field.find(' ')), &number) ? number : 0;
}

}  // namespace fsdprun::doctor
