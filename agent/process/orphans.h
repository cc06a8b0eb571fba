#pragma once

#include <sys/types.h>

#include <map>
#include <set>

#include "base/unique_fd.h"

namespace fsdprun {

/// Makes this process the subreaper, to which orphaned descendants are reparented. Idempotent,
/// process-wide.
void BecomeSubreaper();

/// A child of this process that has nothing to do with workers, however late it was started: no
/// sweep touches it while this lives, so its number stays its own until its owner has reaped it.
/// Thread: any.
class SparedChild {
 public:
  explicit SparedChild(pid_t pid);
  ~SparedChild();
  SparedChild(const SparedChild&) = delete;
  SparedChild& operator=(const SparedChild&) = delete;

 private:
  const pid_t pid_;
};

/// The children of this process, alive or dead. Thread: any.
std::set<pid_t> ListChildren();

/// Sends SIGKILL to every descendant of this process that is not `spared` or a SparedChild, or a
/// descendant of one, and reaps those of its children that are dead. Returns how many are still
/// alive; call again until zero; those that are `not_awaited` are killed too, but not counted.
/// Never blocks, never touches a process that is not a descendant. Thread: any.
int KillOrphans(const std::set<pid_t>& spared, const std::set<pid_t>& not_awaited = {});

/// Pidfds of processes that are no descendants of this one, by anything.
using Strangers = std::map<int, UniqueFd>;

/// The same for those.
int KillStrangers(const Strangers& strangers);

}  // namespace fsdprun
