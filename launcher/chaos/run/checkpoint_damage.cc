#include "launcher/chaos/run/checkpoint_damage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/unique_fd.h"
#include "launcher/chaos/plan/checkpoint_name.h"

namespace fsdprun::chaos {
namespace {

namespace fs = std::filesystem;

constexpr int kFlippedBytes = 16;
constexpr uint64_t kPickStep = 0x9e3779b97f4a7c15;

/// Of a checkpoint that is a folder, the largest file: weights, not names.
std::string LargestFile(const std::string& checkpoint) {
  std::error_code error;
  if (fs::is_regular_file(checkpoint, error)) {
    return checkpoint;
  }
  std::string largest;
  uintmax_t most = 0;
  for (fs::recursive_directory_iterator it(checkpoint, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    const uintmax_t size = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone && size > most) {
      most = size;
      largest = it->path().string();
    }
  }
  return largest;
}

absl::Status DamageError(const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat("damage ", path, ": ", ErrorText(error)));
}

/// CANCELLED if nobody wants it any more once it is read.
absl::Status FlipByte(const std::string& path, int fd, off_t at, unsigned bit,
                      const std::function<bool()>& is_wanted) {
  unsigned char byte = 0;
  if (::pread(fd, &byte, 1, at) != 1) {
    return DamageError(path, errno);
  }
  byte = static_cast<unsigned char>(byte ^ (1u << bit));
  if (!is_wanted()) {
    return absl::CancelledError(absl::StrCat("damage ", path, ": not wanted any more"));
  }
  return ::pwrite(fd, &byte, 1, at) == 1 ? absl::OkStatus() : DamageError(path, errno);
}

// A file of which some bytes are flipped is damaged, whatever has stopped it then.
absl::Status FlipBytes(const std::string& path, uint64_t pick,
                       const std::function<bool()>& is_wanted) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) {
    return DamageError(path, errno);
  }
  if (info.st_size == 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is empty"));
  }
  absl::Status status;
  int flipped = 0;
  while (status.ok() && flipped < kFlippedBytes) {
    pick = pick * kPickStep + 1;
    const auto at = static_cast<off_t>((pick >> 8) % static_cast<uint64_t>(info.st_size));
    status = FlipByte(path, file.get(), at, pick % 8, is_wanted);
    flipped += status.ok() ? 1 : 0;
  }
  return flipped > 0 ? absl::OkStatus() : status;
}

bool IsSame(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

// A job that has fallen back writes the same checkpoint again, which is sound then.
bool CheckpointDamage::IsDamaged(const std::string& checkpoint) const {
  const auto found = damaged_.find(checkpoint);
  struct stat now {};
  return found != damaged_.end() && ::stat(found->second.file.c_str(), &now) == 0 &&
         IsSame(now, found->second.info);
}

absl::StatusOr<std::string> CheckpointDamage::Flip(const std::string& folder, uint64_t pick,
                                                   const std::function<bool()>& is_wanted) {
  std::map<int64_t, std::string> sound;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto number = CheckpointNumber(it->path().filename().string());
    if (number.has_value() && !IsDamaged(it->path().string())) {
      sound[*number] = it->path().string();
    }
  }
  if (sound.size() < 2) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " has no two sound checkpoints now, of which one could be damaged",
                     error ? absl::StrCat(" (", error.message(), ")") : ""));
  }
  const std::string& newest = sound.rbegin()->second;
  const std::string file = LargestFile(newest);
  if (file.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(newest, " has no file that can be damaged"));
  }
  if (const absl::Status status = FlipBytes(file, pick, is_wanted); !status.ok()) {
    return status;
  }
  Damaged& damaged = damaged_[newest];
  damaged.file = file;
  ::stat(file.c_str(), &damaged.info);
  return file;
}

}  // namespace fsdprun::chaos
