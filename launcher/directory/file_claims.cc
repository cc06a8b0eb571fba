#include "launcher/directory/file_claims.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "launcher/directory/job_token.h"

namespace fsdprun {
namespace {

constexpr size_t kMaxClaimBytes = 16u << 10;
constexpr Duration kOldLock = std::chrono::seconds(5);
constexpr Duration kLongestLockStep = std::chrono::seconds(1);

absl::Status Failed(absl::string_view what, const std::string& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", what, " the rendezvous file ", path, ": ", ErrorText(error),
                   "; give --rdzv-endpoint a file in a directory that all nodes can write"));
}

bool HasTwoNames(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && info.st_nlink == 2;
}

// Also if only the answer was lost.
bool Link(const std::string& from, const std::string& to) {
  return ::link(from.c_str(), to.c_str()) == 0 || (errno == EEXIST && HasTwoNames(from));
}

// Removes a file at the end of a scope.
class Removal {
 public:
  explicit Removal(std::string path) : path_(std::move(path)) {}
  ~Removal() { ::unlink(path_.c_str()); }
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;

 private:
  const std::string path_;
};

// Another file has another, and so has the same one after a change.
std::string SignOf(const struct stat& info) {
  return absl::StrCat(info.st_ino, ".", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
}

// Removes a lock at the end of a scope, unless it is another launcher's by then.
class HeldLock {
 public:
  /// `source` is another name of the file that the lock is.
  HeldLock(std::string lock, std::string source)
      : lock_(std::move(lock)), source_(std::move(source)) {}
  ~HeldLock() {
    if (IsHeld()) {
      ::unlink(lock_.c_str());
    }
  }
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;

  bool IsHeld() const {
    struct stat lock {};
    struct stat source {};
    return ::stat(lock_.c_str(), &lock) == 0 && ::stat(source_.c_str(), &source) == 0 &&
           lock.st_ino == source.st_ino;
  }

 private:
  const std::string lock_;
  const std::string source_;
};

}  // namespace

FileClaims::FileClaims(std::string path, bool trusts_others)
    : path_(std::move(path)), trusts_others_(trusts_others), lock_age_(kLongestLockStep) {}

absl::StatusOr<std::optional<Claim>> FileClaims::Read() {
  ASSIGN_OR_RETURN(Sight sight, Look());
  sign_ = std::move(sight.sign);
  return std::move(sight.claim);
}

absl::StatusOr<FileClaims::Sight> FileClaims::Look() const {
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  if (!file.valid()) {
    // ESTALE: it was replaced on the server while we looked.
    if (errno == ENOENT || errno == ESTALE) {
      return Sight();
    }
    return Failed("read", path_, errno);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return Failed("read", path_, errno);
  }
  if (!S_ISREG(info.st_mode) || (!trusts_others_ && info.st_uid != ::geteuid())) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the rendezvous file ", path_,
        " is not a file of this user; remove it, give another "
        "--rdzv-endpoint or --rdzv-id, or set FSDPRUN_TOKEN to the same random text on all nodes"));
  }
  std::string text(kMaxClaimBytes, '\0');
  const ssize_t n = ::read(file.get(), text.data(), text.size());
  if (n < 0) {
    return errno == ESTALE ? absl::StatusOr<Sight>(Sight()) : Failed("read", path_, errno);
  }
  text.resize(static_cast<size_t>(n));
  absl::StatusOr<Claim> claim = DecodeClaim(text);
  if (!claim.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("the rendezvous file ", path_,
                                                      " cannot be used: ", claim.status().message(),
                                                      "; remove it, or give another"));
  }
  return Sight{*std::move(claim), SignOf(info)};
}

absl::StatusOr<bool> FileClaims::Replace(const std::optional<Claim>& found, const Claim& mine) {
  ASSIGN_OR_RETURN(const bool is_ours, Put(found, mine));
  if (is_ours) {
    renewal_.reset();
    is_replaced_ = false;
    renewal_ = std::make_unique<Renewal>([this, mine] { Renew(mine); });
  }
  return is_ours;
}

absl::StatusOr<bool> FileClaims::Put(const std::optional<Claim>& found, const Claim& mine) {
  ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(mine, Lasting::kYes));
  const Removal removal(temporary);
  return found.has_value() ? ReplaceUnderLock(temporary, *found, mine) : Create(temporary, mine);
}

// On a thread of its own.
void FileClaims::Renew(const Claim& mine) {
  const UniqueFd file(::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  const absl::StatusOr<Sight> now = Look();
  // Of another's claim that came between, nothing is changed: `file` is the one it replaced.
  if (file.valid() && now.ok() && now->claim == mine) {
    ::futimens(file.get(), nullptr);  // An error now is none the next time, or the lease ends.
  } else if (now.ok() && now->claim.has_value() && now->claim != mine &&
             !std::exchange(is_replaced_, true)) {
    Log(LogLevel::kWarning,
        absl::StrCat("the rendezvous file ", path_,
                     " is another launcher's by now, which has taken this one for gone; "
                     "this job ends when it next waits for nodes"));
  }
}

absl::StatusOr<std::string> FileClaims::WriteTemporary(const Claim& claim, Lasting lasting) const {
  std::string temporary = absl::StrCat(path_, ".", RandomHex(8));
  const UniqueFd file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const std::string text = EncodeClaim(claim);
  if (!file.valid()) {
    return Failed("write", temporary, errno);
  }
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      (lasting == Lasting::kYes && ::fsync(file.get()) != 0)) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return Failed("write", temporary, error);
  }
  return temporary;
}

absl::StatusOr<bool> FileClaims::Create(const std::string& temporary, const Claim& mine) {
  if (!Link(temporary, path_) && errno != EEXIST) {
    return Failed("make", path_, errno);
  }
  ASSIGN_OR_RETURN(const std::optional<Claim> now, Read());
  return now == mine;
}

absl::StatusOr<bool> FileClaims::ReplaceUnderLock(const std::string& temporary, const Claim& found,
                                                  const Claim& mine) {
  const std::string lock = absl::StrCat(path_, ".lock");
  if (!Link(temporary, lock)) {
    if (errno != EEXIST) {
      return Failed("lock", path_, errno);
    }
    BreakOldLock(lock);
    return false;
  }
  const HeldLock held(lock, temporary);
  const std::string sign = sign_;
  ASSIGN_OR_RETURN(const std::optional<Claim> before, Read());
  if (before != found || (!sign.empty() && sign != sign_)) {
    return false;  // Also if its holder has renewed it: it is alive.
  }
  // rename() does nothing between two names of one file: `mine` needs a file of its own.
  ASSIGN_OR_RETURN(const std::string own, WriteTemporary(mine, Lasting::kYes));
  const Removal removal(own);
  if (!held.IsHeld()) {
    return false;
  }
  if (::rename(own.c_str(), path_.c_str()) != 0 && errno != ENOENT) {
    return Failed("replace", path_, errno);
  }
  ASSIGN_OR_RETURN(const std::optional<Claim> now, Read());
  return now == mine;
}

void FileClaims::BreakOldLock(const std::string& lock) {
  struct stat info {};
  if (::stat(lock.c_str(), &info) != 0) {
    return;
  }
  if (lock_age_.See(SignOf(info), MonoNow()) >= kOldLock) {
    ::unlink(lock.c_str());
  }
}

absl::Status FileClaims::Release(const Claim& mine, const std::optional<Claim>& last) {
  renewal_.reset();
  ASSIGN_OR_RETURN(const std::optional<Claim> now, Read());
  if (now != mine) {
    return absl::OkStatus();  // Somebody took this launcher for dead, and has replaced it.
  }
  if (!last.has_value()) {
    return ::unlink(path_.c_str()) == 0 ? absl::OkStatus() : Failed("remove", path_, errno);
  }
  // After a loss of power an end that was not written is of no consequence, and the disk may be
  // slower than the exit may wait.
  ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(*last, Lasting::kNo));
  const Removal removal(temporary);
  return ::rename(temporary.c_str(), path_.c_str()) == 0 ? absl::OkStatus()
                                                         : Failed("close", path_, errno);
}

}  // namespace fsdprun
