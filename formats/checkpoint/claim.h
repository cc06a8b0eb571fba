#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"

namespace fsdprun::checkpoint {

// Note [Fencing by claim]
// A process that was replaced but still runs must not publish over its successor. Once it has
// loaded, rank 0 claims the directory by writing job, generation, process and a random id into
// `.claim`; the newest claim wins, and publishing requires that the claim is still the publisher's
// own. A job id names one launch: within it the newer generation takes the claim at once, and an
// older one is refused.
//
// Another launch must not evict one that runs. The holder sets the modification time of its claim
// again and again, as a pulse. Who finds a claim looks whether the pulse beats: if so it is
// refused, and if nothing changes for the claim's timeout it takes over. It compares what it sees
// with what it saw, and times with its own monotonic clock only, so hosts may disagree about the
// time. The pulse is set through a descriptor that was opened when the claim was made: after a
// takeover, which puts another file in its place, it changes nothing.
//
// A launch that loses its process and starts another goes on holding the directory. So a failure
// does not release the claim, and the new process renews the old claim until it has its own. Time 0
// says that the job is done; and if it ran on this machine, that process and launcher are gone can
// be seen.

struct Claim {
  std::string job_id;
  uint64_t generation = 0;
  std::string id;  // random, unique per Saver: 16 hex digits
  // Of the process that made it.
  std::string host;
  int64_t pid = 0;
  std::string pid_space;  // two processes of the same one can look for each other; empty: unknown
  int64_t launcher_pid = 0;  // of what would start the process again; 0: unknown, or there is none
  int64_t timeout_ms = 0;    // of the holder; 0: unknown
  bool operator==(const Claim&) const = default;
};

/// 16 hex digits.
std::string RandomId();
/// By this process.
Claim MakeClaim(const std::string& job_id, uint64_t generation,
                std::chrono::milliseconds timeout = std::chrono::milliseconds(0));
std::string EncodeClaim(const Claim& claim);
std::string Describe(const Claim& claim);

std::string ClaimPath(const std::string& directory);

/// A claim as one look at it finds it.
struct ClaimSight {
  Claim claim;
  int64_t pulse = 0;     // time of its last change in ns; 0: it was released
  bool is_dead = false;  // it is known that its process has ended and is not started again
};

/// nullopt when there is none or it cannot be parsed: then nobody holds it.
std::optional<ClaimSight> LookAtClaim(const std::string& directory);

/// The error number of a claim that another launch has taken; not an errno.
constexpr int kClaimLost = -1;

/// Errors: CheckpointError unless `claim` is the newest; it names who has taken it, with kClaimLost
/// if that is another launch.
void CheckClaim(const std::string& directory, const Claim& claim, const std::string& action);

constexpr auto kClaimTimeout = std::chrono::seconds(30);
constexpr auto kClaimTimeoutMax = std::chrono::seconds(300);

/// How often to look at a claim with this timeout.
std::chrono::milliseconds LookInterval(std::chrono::milliseconds timeout);

enum class ClaimVerdict {
  kTake,
  kWait,   // its holder may be alive: look again
  kHeld,   // it is
  kStale,  // this start is of an older generation
};

/// What a start may do about the claim that it finds. Pure: the time comes in. Silence is counted
/// only as long as it looks: while a look hangs or its process is stopped, it cannot tell.
class ClaimWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  ClaimWatch(Claim mine, std::chrono::milliseconds timeout, bool takes_over)
      : mine_(std::move(mine)), timeout_(timeout), takes_over_(takes_over) {}

  ClaimVerdict Judge(const std::optional<ClaimSight>& sight, Time now);
  /// The longer one of this start's and the holder's.
  std::chrono::milliseconds TimeoutFor(const Claim& claim) const;

 private:
  Claim mine_;
  std::chrono::milliseconds timeout_;
  bool takes_over_;
  std::optional<ClaimSight> first_;
  Time last_look_;
  Time::duration silence_{};
};

/// Another launch holds the directory, or has taken it: trying again will not help.
class ClaimHeldError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// How often the holder renews a claim with this timeout.
std::chrono::milliseconds PulseInterval(std::chrono::milliseconds timeout);

/// The holder's side of a claim: renews it from a thread of its own, so that a file system that
/// hangs holds up nobody else.
class ClaimPulse {
 public:
  /// `claim_file`: as AcquireClaim returns it.
  ClaimPulse(std::shared_ptr<FileSystem> file_system, FileDescriptor claim_file,
             std::chrono::milliseconds interval,
             std::chrono::milliseconds release_timeout = std::chrono::seconds(2));
  /// Ends the renewal and does not release the claim.
  ~ClaimPulse();
  ClaimPulse(const ClaimPulse&) = delete;
  ClaimPulse& operator=(const ClaimPulse&) = delete;

  /// The directory may be taken at once from now on. Waits at most release_timeout.
  void Release();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::chrono::milliseconds release_timeout_;
};

/// For a process that its launcher has started again: renews the claim of the launch while the
/// object lives, which is to be until it has its own. nullptr if the launch has none or it cannot
/// be opened. `job_id`: not empty.
std::unique_ptr<ClaimPulse> KeepClaim(const std::string& directory, const std::string& job_id);

}  // namespace fsdprun::checkpoint
