#include "launcher/chaos/run/room_filler.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"

namespace fsdprun::chaos {
namespace {

/// What is left when not even a block of a file system can be had.
constexpr int64_t kSmallestPiece = 4096;
constexpr int kRoundsMax = 64;

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

/// Bytes that may be taken. What the file system needs for itself shows only while it is taken.
int64_t RoomIn(int fd, int64_t leave_bytes) {
  struct statvfs room {};
  if (::fstatvfs(fd, &room) != 0) {
    return 0;
  }
  return static_cast<int64_t>(room.f_bavail * room.f_frsize) - leave_bytes;
}

}  // namespace

absl::StatusOr<int64_t> RoomFiller::Fill(const std::string& folder, int64_t leave_bytes) {
  file_ = OpenNameless(folder);
  if (!file_.valid()) {
    return absl::UnavailableError(
        absl::StrCat("make a file in ", folder, " to fill it: ", ErrorText(errno)));
  }
  int64_t taken = 0;
  int64_t piece = RoomIn(file_.get(), leave_bytes);
  for (int round = 0; round < kRoundsMax && piece >= kSmallestPiece; ++round) {
    const int error = ::posix_fallocate(file_.get(), taken, piece);
    if (error == 0) {
      taken += piece;
      piece = std::min(piece, RoomIn(file_.get(), leave_bytes));
    } else if (error == ENOSPC) {
      piece /= 2;
    } else {
      file_.reset();
      return absl::UnavailableError(absl::StrCat("fill ", folder, ": ", ErrorText(error)));
    }
  }
  return taken;
}

}  // namespace fsdprun::chaos
