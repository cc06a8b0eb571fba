#include "launcher/directory/user_folder.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"

namespace fsdprun {
namespace {

// The value if it is an absolute path, else nothing.
std::string PathIn(const Environment& environment, const char* name) {
  const auto it = environment.find(name);
  return it != environment.end() && it->second.substr(0, 1) == "/" ? it->second : std::string();
}

}  // namespace

std::vector<std::string> UserFolders(const Environment& environment) {
  if (const std::string config = PathIn(environment, "XDG_CONFIG_HOME"); !config.empty()) {
    return {config, absl::StrCat(config, "/fsdprun")};
  }
  const std::string home = PathIn(environment, "HOME");
  if (home.empty()) {
    return {};
  }
  return {absl::StrCat(home, "/.config"), absl::StrCat(home, "/.config/fsdprun")};
}

absl::Status MakeFolders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::NotFoundError(absl::StrCat("make ", folder, ": ", ErrorText(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdprun
