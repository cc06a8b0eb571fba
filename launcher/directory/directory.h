#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {

/// How this launcher takes part in its job.
struct Place {
  /// The coordinator runs in this process.
  bool hosts = false;
  /// Where the coordinator is reached, best first; empty for a job of one node, which no other node
  /// can join.
  std::vector<NumericEndpoint> endpoints;
  /// Bound and listening, if this launcher hosts the coordinator, or to the master port of a static
  /// job of one node; else empty.
  std::vector<UniqueFd> listeners;
  /// Numeric address of this node for other nodes.
  std::string node_address;
  /// MASTER_ADDR of the workers while this node serves their store.
  std::string store_address;
  JobToken token;

  /// Other nodes can join.
  bool is_shared() const { return !endpoints.empty(); }
  /// `endpoints` as texts.
  std::vector<std::string> targets() const {
    std::vector<std::string> texts;
    for (const NumericEndpoint& endpoint : endpoints) {
      texts.push_back(ToString(endpoint));
    }
    return texts;
  }
  /// For people.
  std::string where() const { return is_shared() ? ToString(endpoints.front()) : "this process"; }
};

/// Where the launchers of a job find each other: each is told to host the coordinator, or where it
/// is. An implementation lives as long as its launcher.
/// Thread: one at a time.
class Directory {
 public:
  virtual ~Directory() = default;

  /// Decides, and binds what a host needs. May be asked again, after a coordinator was lost: then
  /// the answer may be another. Takes seconds at most, and ends when the launcher is cancelled
  /// (CANCELLED). Errors are final; they name what was attempted, on what address, port, file or
  /// service, who holds it if known, and what to do.
  virtual absl::StatusOr<Place> Find() = 0;
  /// Asked when the coordinator at Find()'s place said that it has another run id, which is `why`.
  virtual absl::StatusOr<Place> FindAgain(const absl::Status& why) { return why; }
  /// The job of the coordinator that this launcher hosts is over here: nobody may find it any more.
  /// `closes`: the run id has had its job, and who comes late is refused; false after a signal. May
  /// hang with a file system, so it is called on a thread, and maybe given up.
  virtual void JobEnded(bool /*closes*/) {}
};

struct DirectoryContext {
  const LaunchPlan& plan;
  const Environment& environment;
  /// Polled every 50 ms.
  std::function<bool()> is_cancelled;
};

/// The directory that `context.plan` asks for. The plan and the environment must outlive it. Called
/// on the thread that calls Find(). Errors: INVALID_ARGUMENT for a certificate that cannot be read.
absl::StatusOr<std::unique_ptr<Directory>> MakeDirectory(DirectoryContext context);

}  // namespace fsdprun
