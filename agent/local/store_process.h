#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// The store of one generation in a process of its own, for agents that may be killed and replaced:
/// it lives as long as the keeper, unless it is ended before. Another generation gets another
/// process at another port, so nobody of an earlier one can reach it. Thread: loop thread only.
class StoreProcess {
 public:
  /// What finds it again.
  struct Id {
    pid_t pid = 0;
    uint64_t start_time_ticks = 0;
  };

  /// `program`: one that RunStore() runs in, when it is called with `--store COUNT`.
  StoreProcess(EventLoop& loop, std::string program);
  /// Leaves it alone.
  ~StoreProcess();
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;

  /// In the place of the one before, which is ended. Returns the port, at which it listens already.
  /// Errors: of binding or starting, with what was attempted.
  absl::StatusOr<int> Renew(const std::string& listen_on, int keeper_pidfd, size_t clients);
  /// The one before was started by another agent.
  void Adopt(const Id& id) { id_ = id; }
  const Id& id() const { return id_; }

 private:
  void End();
  void OnEnd();

  EventLoop& loop_;
  const std::string program_;
  Id id_;
  /// Of one that is this process's child.
  UniqueFd pidfd_;
};

/// Serves the store at the socket that listens as descriptor 3, until the process whose pidfd is
/// descriptor 4 has ended. Returns the exit code.
int RunStore(const std::string& clients);

}  // namespace fsdprun
