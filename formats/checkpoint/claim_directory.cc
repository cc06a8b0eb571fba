#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/error.h"

namespace fsdprun::checkpoint {
namespace {

/// Where the file system cannot swap two directories, publishing takes two renames; a crash between
/// them leaves the replaced checkpoint under its ".old-" name and nothing under its own.
void RestoreReplaced(FileSystem& file_system, const std::string& directory, const Warn& warn) {
  for (const std::string& name : ListDirectory(directory)) {
    const std::optional<int64_t> step = LeftoverStep(name, "old-");
    if (!step) {
      continue;
    }
    const std::string path = directory + "/" + StepName(*step);
    if (!DirectoryExists(path) && FileExists(directory + "/" + name + "/" + kMetadataFile)) {
      CheckIo(file_system.Rename(directory + "/" + name, path), "restore", path);
      warn("restored " + path + ": a crash had interrupted its replacement");
    }
  }
}

/// By the clock of the file system, which made both times. Without a time of the claim: no.
bool IsForgottenProbe(const std::string& directory, const std::string& name) {
  struct stat probe {};
  struct stat claim {};
  return IsProbeName(name) && lstat((directory + "/" + name).c_str(), &probe) == 0 &&
         stat(ClaimPath(directory).c_str(), &claim) == 0 && S_ISREG(probe.st_mode) &&
         claim.st_mtim.tv_sec - probe.st_mtim.tv_sec > std::chrono::seconds(kProbeAgeMax).count();
}

void RemoveLeftovers(FileSystem& file_system, const std::string& directory, const Warn& warn) {
  for (const std::string& name : ListDirectory(directory)) {
    const bool is_leftover = LeftoverStep(name, "tmp-") || LeftoverStep(name, "old-") ||
                             LeftoverStep(name, "delete-") || IsForgottenProbe(directory, name);
    if (!is_leftover) {
      continue;
    }
    const std::string path = directory + "/" + name;
    if (const int error = file_system.RemoveTree(path); error != 0) {
      warn(DescribeIoError("remove the left-over", path, error));
    }
  }
}

/// Also syncs the directory, which makes a dead run's renames durable before its leftovers are
/// removed. If the disk is full, perhaps with these, they are removed first.
void WriteClaim(FileSystem& file_system, const std::string& directory, const std::string& text,
                const Warn& warn) {
  try {
    file_system.ReplaceFile(ClaimPath(directory), text);
    return;
  } catch (const CheckpointError& error) {
    if (error.error_number() != ENOSPC && error.error_number() != EDQUOT) {
      throw;
    }
  }
  CheckIo(file_system.SyncDirectory(directory), "sync", directory);
  RestoreReplaced(file_system, directory, warn);
  RemoveLeftovers(file_system, directory, warn);
  file_system.ReplaceFile(ClaimPath(directory), text);
}

[[noreturn]] void RefuseStale(const std::string& directory, const Claim& mine,
                              const Claim& current) {
  throw CheckpointError("cannot use " + directory + ": " + Describe(current) +
                        " has claimed it, and this process is of the older generation " +
                        std::to_string(mine.generation) +
                        " of the same job, so it is stale and should end; if nothing of that job "
                        "runs any more, remove " +
                        ClaimPath(directory));
}

[[noreturn]] void RefuseHeld(const std::string& directory, const Claim& current) {
  throw ClaimHeldError("cannot use " + directory + ": " + Describe(current) +
                       " is using it; end that job, choose another checkpoint.dir, or take it over "
                       "with checkpoint.takeover");
}

void SayThatItWaits(const std::string& directory, const Claim& current,
                    std::chrono::milliseconds timeout, const Warn& warn) {
  warn("waiting for " + directory + ": " + Describe(current) +
       " may still be using it; it is taken over unless it shows life within " +
       std::to_string(std::chrono::ceil<std::chrono::seconds>(timeout).count()) +
       " s (at once with checkpoint.takeover)");
}

/// Looks until the claim may be taken; then the caller looks again, under the lock.
void AwaitClaim(const std::string& directory, const ClaimRequest& request, ClaimWatch& watch,
                bool& has_said, const Warn& warn) {
  while (true) {
    const std::optional<ClaimSight> sight = LookAtClaim(directory);
    switch (watch.Judge(sight, std::chrono::steady_clock::now())) {
      case ClaimVerdict::kTake:
        return;
      case ClaimVerdict::kHeld:
        RefuseHeld(directory, sight->claim);
      case ClaimVerdict::kStale:
        RefuseStale(directory, request.claim, sight->claim);
      case ClaimVerdict::kWait:
        break;
    }
    const std::chrono::milliseconds timeout = watch.TimeoutFor(sight->claim);
    if (!std::exchange(has_said, true)) {
      SayThatItWaits(directory, sight->claim, timeout, warn);
    }
    poll(nullptr, 0, static_cast<int>(LookInterval(timeout).count()));
  }
}

FileDescriptor OpenClaim(const std::string& directory) {
  int fd = -1;
  do {
    fd = open(ClaimPath(directory).c_str(), O_WRONLY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  CheckIo(fd < 0 ? errno : 0, "open", ClaimPath(directory));
  return FileDescriptor(fd);
}

/// Not every file system lets the time of a file be set, and some only pretend.
void CheckPulse(FileSystem& file_system, const std::string& directory, const FileDescriptor& file,
                const ClaimRequest& request, const Warn& warn) {
  struct stat stats {};
  int error = file_system.SetPulse(file, FileSystem::Pulse::kNone);
  const bool is_ignored = error == 0 && fstat(file.get(), &stats) == 0 &&
                          (stats.st_mtim.tv_sec != 0 || stats.st_mtim.tv_nsec != 0);
  if (error == 0) {
    error = file_system.SetPulse(file, FileSystem::Pulse::kBeat);
  }
  if (error == 0 && !is_ignored) {
    return;
  }
  const std::string text = error != 0
                               ? DescribeIoError("set the time of", ClaimPath(directory), error)
                               : "the file system does not set the time of " + ClaimPath(directory);
  warn(text + "; so another start cannot see that this job lives, and takes " + directory +
       " over after " +
       std::to_string(std::chrono::ceil<std::chrono::seconds>(request.timeout).count()) +
       " s: do not start a second one on it");
}

}  // namespace

void AwaitClaimable(const std::string& directory, const ClaimRequest& request, const Warn& warn) {
  ClaimWatch watch(request.claim, request.timeout, request.takes_over);
  bool has_said = false;
  AwaitClaim(directory, request, watch, has_said, warn);
}

FileDescriptor AcquireClaim(FileSystem& file_system, const std::string& directory,
                            const ClaimRequest& request, const Warn& warn) {
  file_system.MakeDurableDirectory(directory);
  ClaimWatch watch(request.claim, request.timeout, request.takes_over);
  bool has_said = false;
  while (true) {
    AwaitClaim(directory, request, watch, has_said, warn);
    const DirectoryLock lock(file_system, directory);
    if (watch.Judge(LookAtClaim(directory), std::chrono::steady_clock::now()) !=
        ClaimVerdict::kTake) {
      continue;  // another start was faster
    }
    WriteClaim(file_system, directory, EncodeClaim(request.claim), warn);
    FileDescriptor file = OpenClaim(directory);
    CheckPulse(file_system, directory, file, request, warn);
    RestoreReplaced(file_system, directory, warn);
    RemoveLeftovers(file_system, directory, warn);
    return file;
  }
}

void CleanUp(FileSystem& file_system, const std::string& directory, const Claim& claim,
             const Warn& warn) {
  const DirectoryLock lock(file_system, directory);
  CheckClaim(directory, claim, "publish");
  CheckIo(file_system.SyncDirectory(directory), "sync", directory);
  RestoreReplaced(file_system, directory, warn);
  RemoveLeftovers(file_system, directory, warn);
}

}  // namespace fsdprun::checkpoint
