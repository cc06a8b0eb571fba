#include "launcher/directory/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"

namespace fsdprun {

std::string RuntimeFolder(const Environment& environment) {
  const auto it = environment.find("XDG_RUNTIME_DIR");
  return it != environment.end() && !it->second.empty()
             ? absl::StrCat(it->second, "/fsdprun")
             : absl::StrCat("/tmp/fsdprun-", ::geteuid());
}

absl::Status MakePrivateFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::PermissionDeniedError(absl::StrCat("cannot make ", path, ": ", ErrorText(errno)));
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
      (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is not a private directory of this user; remove it"));
  }
  return absl::OkStatus();
}

}  // namespace fsdprun
