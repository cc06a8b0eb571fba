#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "agent/store/store_server.h"
#include "base/event_loop.h"
#include "launcher/cli/command_line.h"
#include "launcher/directory/directory.h"
#include "launcher/run/at_revision.h"
#include "launcher/run/coordinator_host.h"
#include "launcher/run/event_log.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// The coordinator of a job whose agents are all elsewhere, in the process that has them started:
/// it listens on a free port, and they are told where. Thread: loop thread only. `plan` and
/// `environment` must outlive it.
class HeadCoordinator {
 public:
  struct Hooks {
    std::function<void(const JobOutcome&)> on_finish;
    /// After every step; joined() is up to date.
    std::function<void()> on_step;
  };

  HeadCoordinator(EventLoop& loop, const LaunchPlan& plan, const Environment& environment,
                  const Clocks& clocks, Hooks hooks);
  ~HeadCoordinator();
  HeadCoordinator(const HeadCoordinator&) = delete;
  HeadCoordinator& operator=(const HeadCoordinator&) = delete;

  /// `token`: the job's; empty: the one that the operator has given, else a random one. Errors: as
  /// of MakeTls(), HostOnFreePort() and CoordinatorHost::Start().
  absl::Status Start(const std::string& token);
  /// After Start().
  CoordinatorHost& host() { return *host_; }
  const JobMachine& machine() const { return host_->machine(); }
  const Place& place() const { return place_; }
  /// Null: nothing is encrypted.
  const std::shared_ptr<const Tls>& tls() const { return tls_; }

  /// Nodes that have joined at least once, and those whose agent is connected now.
  const std::set<std::string>& joined() const { return joined_; }
  const std::set<std::string>& connected() const;
  /// Those that an operator has drained, and that have not joined again.
  const std::set<std::string>& drained() const { return drained_; }
  /// Said in the place of a node that cannot say it: the job ends at once instead of waiting for
  /// it.
  void CannotRun(const std::string& node, const std::string& why);
  /// What is waited for, for people; empty if nothing is.
  std::string WaitText() const;

 private:
  // Constant after construction.
  EventLoop& loop_;
  const LaunchPlan& plan_;
  const Environment& environment_;
  const Clocks clocks_;
  const Hooks hooks_;

  // Set by Start().
  std::shared_ptr<const Tls> tls_;
  Place place_;
  std::unique_ptr<CoordinatorHost> host_;
  /// At the coordinator's port; here it only tells agents from strangers.
  std::unique_ptr<StoreServer> door_;

  std::set<std::string> joined_;
  std::set<std::string> drained_;
  EventLog events_;
  mutable AtRevision<std::set<std::string>> connected_;
};

}  // namespace fsdprun
