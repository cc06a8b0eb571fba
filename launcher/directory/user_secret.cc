#include "launcher/directory/user_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/user_folder.h"

namespace fsdprun {
namespace {

constexpr size_t kSecretBytes = 32;

absl::Status NoPlace(const std::string& path, absl::string_view why) {
  return absl::NotFoundError(
      absl::StrCat("cannot keep a secret of this user in ", path, ": ", why));
}

absl::Status NotPrivate(const std::string& path, absl::string_view what) {
  return absl::PermissionDeniedError(
      absl::StrCat("the secret of this user, ", path, ", ", what,
                   ", so it protects nothing; remove it, and the next start makes another (or set "
                   "FSDPRUN_TOKEN to the same random text on all nodes)"));
}

absl::Status CheckPrivate(const struct stat& info, const std::string& path) {
  if (!S_ISREG(info.st_mode)) {
    return NotPrivate(path, "is no file");
  }
  if (info.st_uid != ::geteuid()) {
    return NotPrivate(path, absl::StrCat("belongs to user ", info.st_uid, ", not to user ",
                                         ::geteuid(), ", who runs this"));
  }
  if ((info.st_mode & 077) != 0) {
    return NotPrivate(path, "can be read or written by other users");
  }
  return absl::OkStatus();
}

// Errors: NOT_FOUND if there is none.
absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  // Opening a pipe must not wait for its other end.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    const int error = errno;
    const bool is_there = error == EACCES && ::access(path.c_str(), F_OK) == 0;
    return is_there ? NotPrivate(path, "cannot be read by this user")
                    : NoPlace(path, ErrorText(error));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return NoPlace(path, ErrorText(errno));
  }
  RETURN_IF_ERROR(CheckPrivate(info, path));
  char buffer[4 * kSecretBytes];
  const ssize_t n = ::read(file.get(), buffer, sizeof(buffer));
  const std::string secret(
      absl::StripAsciiWhitespace(absl::string_view(buffer, n > 0 ? static_cast<size_t>(n) : 0)));
  if (secret.size() < 2 * kSecretBytes) {
    return NotPrivate(path, "is too short");
  }
  return secret;
}

absl::Status WriteSecret(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const std::string text = absl::StrCat(RandomHex(kSecretBytes), "\n");
  if (!file.valid() || (errno = WriteAll(file.get(), text)) != 0 || ::fsync(file.get()) != 0) {
    return NoPlace(path, ErrorText(errno));
  }
  return absl::OkStatus();
}

// A file under its final name is complete, and the first one stays: link() does not replace.
absl::StatusOr<std::string> MakeSecret(const std::vector<std::string>& folders) {
  if (const absl::Status made = MakeFolders(folders); !made.ok()) {
    return NoPlace(folders.back(), made.message());
  }
  const std::string path = absl::StrCat(folders.back(), "/secret");
  const std::string temporary = absl::StrCat(path, ".", RandomHex(8));
  absl::Status written = WriteSecret(temporary);
  std::string why;
  if (written.ok() && ::link(temporary.c_str(), path.c_str()) != 0) {
    why = ErrorText(errno);
  }
  ::unlink(temporary.c_str());
  RETURN_IF_ERROR(written);
  // Whatever link() says: a server's answer may be lost, and somebody may have been first.
  absl::StatusOr<std::string> secret = ReadSecret(path);
  return absl::IsNotFound(secret.status()) && !why.empty() ? NoPlace(path, why) : secret;
}

}  // namespace

absl::StatusOr<UserSecret> LoadUserSecret(const Environment& environment) {
  const std::vector<std::string> folders = UserFolders(environment);
  if (folders.empty()) {
    return absl::NotFoundError("this user has no home directory for a secret: HOME is not set");
  }
  const std::string path = absl::StrCat(folders.back(), "/secret");
  absl::StatusOr<std::string> secret = ReadSecret(path);
  const bool is_new = absl::IsNotFound(secret.status());
  if (is_new) {
    secret = MakeSecret(folders);
  }
  RETURN_IF_ERROR(secret.status());
  return UserSecret{*std::move(secret), path, is_new};
}

}  // namespace fsdprun
