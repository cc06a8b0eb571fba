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
#include "base/write_all.h"
#include "launcher/directory/job_token.h"

namespace fsdprun {
namespace {

constexpr size_t kMaxClaimBytes = 16u << 10;
constexpr const char* kLockSuffix = ".lock";
constexpr Duration kOldLock = std::chrono::seconds(5);
constexpr Duration kLongestLockStep = std::chrono::seconds(1);

absl::Status Failed(absl::string_view what, const std::string& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", what, " the rendezvous file ", path, ": ", ErrorText(error),
                   "; give --rdzv-endpoint a file in a directory that all nodes can write"));
}

absl::Status IsChanging(const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("the rendezvous file ", path, " is replaced or removed just now"));
}

// ESTALE: it was replaced on the server while we looked.
absl::Status CannotRead(const std::string& path, int error) {
  return error == ESTALE ? IsChanging(path) : Failed("read", path, error);
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

FileClaims::FileClaims(std::string path, bool trusts_others, std::function<void()> on_taken)
    : path_(std::move(path)),
      trusts_others_(trusts_others),
      on_taken_(std::move(on_taken)),
      lock_age_(kLongestLockStep) {}

absl::StatusOr<std::optional<Claim>> FileClaims::Read() {
  ASSIGN_OR_RETURN(Sight sight, Look());
  sign_ = std::move(sight.sign);
  return std::move(sight.claim);
}

absl::StatusOr<FileClaims::Sight> FileClaims::Look() const {
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  if (!file.valid()) {
    return errno == ENOENT ? absl::StatusOr<Sight>(Sight()) : CannotRead(path_, errno);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return CannotRead(path_, errno);
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
    return CannotRead(path_, errno);
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
    renewal_ = std::make_unique<Repeater>(kRenewalInterval, [this, mine] { Renew(mine); });
  }
  return is_ours;
}

absl::StatusOr<bool> FileClaims::Put(const std::optional<Claim>& found, const Claim& mine) {
  ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(mine, Lasting::kYes));
  const Removal removal(temporary);
  return found.has_value() ? ReplaceUnderLock(temporary, *found, mine) : Create(temporary, mine);
}

// See Note [Claims in files].
absl::StatusOr<bool> FileClaims::Confirm(const Claim& mine) {
  ASSIGN_OR_RETURN(std::optional<Claim> found, Read());
  if (!found.has_value()) {
    // Somebody has removed it, and whoever came now would put another there.
    RETURN_IF_ERROR(Put(std::nullopt, mine).status());
    ASSIGN_OR_RETURN(found, Read());
  }
  if (!found.has_value()) {
    return IsChanging(path_);
  }
  return *found == mine ? RenewUnderLock(mine) : absl::StatusOr<bool>(false);
}

absl::StatusOr<bool> FileClaims::RenewUnderLock(const Claim& mine) {
  const std::string lock = absl::StrCat(path_, kLockSuffix);
  if (!Link(path_, lock)) {
    if (errno != EEXIST) {
      return Failed("lock", path_, errno);
    }
    BreakOldLock(lock);
    return absl::UnavailableError(absl::StrCat(
        "the rendezvous file ", path_, " is locked by ", lock,
        ": another launcher takes this one for gone and is about to replace its claim, or has died "
        "meanwhile; a lock that stays for ",
        ToSeconds(kOldLock), " s is removed"));
  }
  const HeldLock held(lock, path_);
  ASSIGN_OR_RETURN(const std::optional<Claim> now, Touch(mine));
  if (now.has_value() && *now != mine) {
    return false;
  }
  return now.has_value() && held.IsHeld() ? absl::StatusOr<bool>(true) : IsChanging(path_);
}

// Renews the claim if it is `mine`, and says what is there.
absl::StatusOr<std::optional<Claim>> FileClaims::Touch(const Claim& mine) const {
  const UniqueFd file(::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  const int error = errno;
  ASSIGN_OR_RETURN(Sight now, Look());
  if (now.claim == mine && !file.valid()) {
    return Failed("renew", path_, error);
  }
  // Of another's claim that came between, nothing is changed: `file` is the one it replaced.
  if (now.claim == mine && ::futimens(file.get(), nullptr) != 0) {
    return Failed("renew", path_, errno);
  }
  return std::move(now.claim);
}

// On a thread of its own. What fails now may not the next time, or the lease ends.
void FileClaims::Renew(const Claim& mine) {
  const absl::StatusOr<std::optional<Claim>> now = Touch(mine);
  const bool is_anothers = now.ok() && now->has_value() && *now != mine;
  if (!is_anothers || std::exchange(is_replaced_, true)) {
    return;
  }
  Log(LogLevel::kWarning,
      absl::StrCat("the rendezvous file ", path_,
                   " is another launcher's by now, which has taken this one for gone; "
                   "this job ends before it would start workers again"));
  if (on_taken_) {
    on_taken_();
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
  if ((errno = WriteAll(file.get(), text)) != 0 ||
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
  const std::string lock = absl::StrCat(path_, kLockSuffix);
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
