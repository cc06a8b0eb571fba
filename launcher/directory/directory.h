#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mono_time.h"
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
  /// Says who hosts, for people: a file, a key in etcd; empty if nobody has to.
  std::string source;
  /// Who hosts may change until this launcher has met others: see Directory::HasMoved().
  bool may_move = false;
  /// The endpoints are what the resolver knew of a name, which may lead elsewhere before this
  /// launcher has reached the coordinator: see Directory::HasMoved().
  bool is_by_name = false;

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
  std::string where() const {
    const std::string by = source.empty() ? "" : " (as " + source + " says)";
    return is_shared() ? ToString(endpoints.front()) + by : "this process";
  }
};

/// What has become of the place of a coordinator since.
struct Tended {
  /// Bound and listening: its agents are to be served there too.
  std::vector<UniqueFd> listeners;
  /// Where another launcher hosts the job as well; empty: none that is known does.
  std::vector<std::string> other_host;
};

/// Where the launchers of a job find each other: each is told to host the coordinator, or where it
/// is. An implementation lives as long as its launcher.
/// Thread: one at a time.
class Directory {
 public:
  virtual ~Directory() = default;

  /// Decides, and binds what a host needs. May be asked again, after a coordinator was lost: then
  /// the answer may be another. Ends when the launcher is cancelled (CANCELLED). The first time, an
  /// endpoint's name may be unknown until the join timeout; later it takes seconds at most. Errors
  /// are final; they name what was attempted, on what address, port, file or service, who holds it
  /// if known, and what to do.
  virtual absl::StatusOr<Place> Find() = 0;
  /// Asked when the coordinator at Find()'s place said that it has another run id, which is `why`.
  /// ABORTED: nobody knows yet, ask again in a moment.
  virtual absl::StatusOr<Place> FindAgain(const absl::Status& why) { return why; }
  /// Asked now and then while `place` is another launcher's and there is no answer from there: a
  /// place to go to instead, if there is one. Errors: as of Find(), not final if UNAVAILABLE.
  virtual absl::StatusOr<std::optional<Place>> LookAgain(const Place& /*place*/) {
    return std::nullopt;
  }
  /// Whether Tend() is to be called, every 100 ms, while this launcher hosts.
  virtual bool needs_tending() const { return false; }
  /// Does what is needed for others to find the coordinator; does not block.
  virtual Tended Tend() { return {}; }
  /// Gives up hosting at `present`, for the other host of the job.
  virtual absl::StatusOr<Place> Join(const std::vector<std::string>& /*other_host*/,
                                     const Place& /*present*/) {
    return absl::UnimplementedError("one host cannot be known to another here");
  }
  /// Whether Find() would answer otherwise now: whoever hosted is gone, or is another. Asked on
  /// another thread, while no other method but FindAgain() runs.
  virtual bool HasMoved() { return false; }
  /// The job of the coordinator that this launcher hosts is over here: nobody may find it any more.
  /// `closes`: the run id has had its job, and who comes late is refused; false after a signal. May
  /// hang with a file system, so it is called on a thread, and maybe given up.
  virtual void JobEnded(bool /*closes*/) {}
};

/// For how long a host of that plan's job keeps its run id without a sign of life.
std::chrono::seconds ClaimLeaseOf(const LaunchPlan& plan);

struct DirectoryContext {
  const LaunchPlan& plan;
  const Environment& environment;
  /// Polled every 50 ms.
  std::function<bool()> is_cancelled;
  /// Passes time while there is nothing to do but wait; poll() if null.
  std::function<void(Duration)> pass_time;
  /// Told, for people, what a Find() that takes long is waiting for; may be null.
  std::function<void(const std::string&)> notify;
};

/// The directory that `context.plan` asks for. The plan and the environment must outlive it. Called
/// on the thread that calls Find(). Errors: INVALID_ARGUMENT for a certificate that cannot be read.
absl::StatusOr<std::unique_ptr<Directory>> MakeDirectory(DirectoryContext context);

}  // namespace fsdprun
