#include "launcher/chaos/run/room_filler.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"

namespace fsdprun::chaos {
namespace {

constexpr int64_t kRoomUnit = 1 << 20;
/// What is left when not even a block of a file system can be had.
constexpr int64_t kSmallestPiece = 4096;
/// The kernel is not to be busy with one for long.
constexpr int64_t kLargestPiece = 1024 * kRoomUnit;
/// Less is no fault.
constexpr int64_t kLeastTaken = kRoomUnit;

UniqueFd OpenNameless(const std::string& folder) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string path = folder + "/.fsdprun-chaos-XXXXXX";
    file.reset(::mkostemp(path.data(), O_CLOEXEC));
    if (file.valid()) {
      ::unlink(path.c_str());
    }
  }
  return file;
}

/// What this user may take: nobody but root gets what is reserved.
int64_t RoomIn(int fd) {
  struct statvfs room {};
  if (::fstatvfs(fd, &room) != 0) {
    return 0;
  }
  const auto blocks = ::geteuid() == 0 ? room.f_bfree : room.f_bavail;
  return static_cast<int64_t>(blocks * room.f_frsize);
}

/// Of this process; a file system may have a lower one, which only shows.
bool MayFilesBe(int64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
         static_cast<rlim_t>(std::max<int64_t>(bytes, 0)) <= limit.rlim_cur;
}

// posix_fallocate() would write zeros where the file system has no such call: for hours, and to no
// avail where they are compressed. Returns an errno.
int Take(int fd, int64_t at, int64_t bytes) {
  int error = 0;
  do {
    error = ::fallocate(fd, 0, at, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error;
}

absl::Status TakeError(const std::string& folder, int error) {
  if (error == EOPNOTSUPP || error == ENOSYS) {
    return absl::FailedPreconditionError(
        absl::StrCat("fill ", folder,
                     ": its file system cannot give room to a file without writing it "
                     "(fallocate); name a folder of another one"));
  }
  if (error == EFBIG) {
    return absl::FailedPreconditionError(
        absl::StrCat("fill ", folder,
                     ": no file here may get as large as the room is (ulimit -f, or a limit of its "
                     "file system); raise that limit, or give a larger --fill-leave"));
  }
  return absl::UnavailableError(absl::StrCat("fill ", folder, ": ", ErrorText(error)));
}

/// It gives no more, or not that much at once.
bool IsLimit(int error) { return error == ENOSPC || error == EFBIG || error == EDQUOT; }

}  // namespace

absl::StatusOr<int64_t> RoomFiller::Fill(const std::string& folder, int64_t leave_bytes) {
  file_ = OpenNameless(folder);
  if (!file_.valid()) {
    return absl::UnavailableError(
        absl::StrCat("make a file in ", folder, " to fill it: ", ErrorText(errno)));
  }
  const int64_t room = RoomIn(file_.get());
  absl::StatusOr<int64_t> taken = TakeAllBut(folder, leave_bytes);
  if (taken.ok() && *taken < kLeastTaken) {
    taken = absl::FailedPreconditionError(absl::StrCat(
        folder, " has ", room / kRoomUnit, " MiB of free room, of which ", leave_bytes / kRoomUnit,
        " are to be left: nothing can be taken; give a smaller --fill-leave, or "
        "make room"));
  }
  if (!taken.ok()) {
    file_.reset();
  }
  return taken;
}

// What the file system needs for itself shows only while room is taken.
absl::StatusOr<int64_t> RoomFiller::TakeAllBut(const std::string& folder, int64_t leave_bytes) {
  const int fd = file_.get();
  const int64_t most = RoomIn(fd) - leave_bytes;
  if (!MayFilesBe(most)) {
    return TakeError(folder, EFBIG);
  }
  int64_t taken = 0;
  int limit = 0;
  for (int64_t largest = kLargestPiece; taken < most && !is_stopped_;) {
    const int64_t piece = std::min({largest, most - taken, RoomIn(fd) - leave_bytes});
    if (piece < kSmallestPiece) {
      break;
    }
    const int error = Take(fd, taken, piece);
    if (error == 0) {
      taken += piece;
    } else if (IsLimit(error)) {
      limit = error;
      largest = piece / 2;
    } else {
      return TakeError(folder, error);
    }
  }
  if (is_stopped_) {
    return absl::CancelledError(absl::StrCat("fill ", folder, ": not wanted any more"));
  }
  const bool is_full = RoomIn(fd) - leave_bytes < kLeastTaken;
  // A quota that is used up is a full disk for its user.
  if ((limit == EFBIG && !is_full) || (limit == EDQUOT && taken < kLeastTaken)) {
    return TakeError(folder, limit);
  }
  return taken;
}

}  // namespace fsdprun::chaos
