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

absl::Status FlipBytes(const std::string& path, uint64_t pick) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  bool is_done = file.valid() && ::fstat(file.get(), &info) == 0 && info.st_size > 0;
  for (int i = 0; is_done && i < kFlippedBytes; ++i) {
    pick = pick * kPickStep + 1;
    const auto at = static_cast<off_t>((pick >> 8) % static_cast<uint64_t>(info.st_size));
    unsigned char byte = 0;
    is_done = ::pread(file.get(), &byte, 1, at) == 1;
    byte = static_cast<unsigned char>(byte ^ (1u << (pick % 8)));
    is_done = is_done && ::pwrite(file.get(), &byte, 1, at) == 1;
  }
  return is_done ? absl::OkStatus()
                 : absl::UnavailableError(absl::StrCat("damage ", path, ": ", ErrorText(errno)));
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
                                                   const std::atomic<bool>& is_wanted) {
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
  if (!is_wanted) {
    return absl::CancelledError(absl::StrCat("damage ", file, ": not wanted any more"));
  }
  if (const absl::Status status = FlipBytes(file, pick); !status.ok()) {
    return status;
  }
  Damaged& damaged = damaged_[newest];
  damaged.file = file;
  ::stat(file.c_str(), &damaged.info);
  return file;
}

}  // namespace fsdprun::chaos
