#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/rpc/tls.h"
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
  /// See GrpcLink::Options.
  std::string tls_name;
  /// Says who hosts, for people: a file, a key in etcd; empty if nobody has to.
  std::string source;
  /// Until when the coordinator may be elsewhere by now: see Directory::HasMoved().
  enum class MayMove {
    kNever,
    /// What leads there may change until the coordinator has admitted this launcher.
    kUntilAdmitted,
    /// Who hosts may change until the job has run.
    kUntilFirstWorld,
  };
  MayMove may_move = MayMove::kNever;
  /// Who has joined may ask the directory again where the coordinator is: see
  /// Directory::LookAgain().
  bool can_be_looked_up = false;
  /// A host only: while it cannot be heard of, another launcher may become the host of the job.
  bool can_be_taken = false;
  /// Of a host whose place can be taken: just before it was claimed, as before a Confirm().
  MonoTime sure_from{};
  /// Names the claim of a host whose place can be taken; else empty.
  std::string claim;
  /// Between two questions whether it is: a server or another machine may be asked by many.
  Duration longest_look_pause = std::chrono::seconds(4);

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

/// Where a coordinator is that has taken a job over.
struct Whereabouts {
  /// Best first; not empty.
  std::vector<NumericEndpoint> endpoints;
  /// Empty: that of the coordinator before it.
  std::string token;
};

/// What has become of the place of a coordinator since.
struct Tended {
  /// Bound and listening: its agents are to be served there too.
  std::vector<UniqueFd> listeners;
  /// Where another launcher hosts the job as well; empty: none that is known does.
  std::vector<std::string> other_host;
  /// Nothing is left to be tended.
  bool is_over = false;
};

/// What a launcher does that hosts a job at an endpoint which several jobs may share. Blocks for
/// seconds at most. Thread: as Directory.
class SharedEndpoint {
 public:
  virtual ~SharedEndpoint() = default;

  /// Does what is needed for others to find the coordinator. Called every 100 ms until it is over.
  virtual Tended Tend() = 0;
  /// How to take part in the same job at its other host, which has the same token. Errors: as of
  /// Find().
  virtual absl::StatusOr<Place> PlaceAt(const std::vector<std::string>& other_host,
                                        const JobToken& token) = 0;
  /// None of the listeners that Tend() has returned can be served, and all are closed: it is to go
  /// on as if there had been none.
  virtual void CannotListen() = 0;
};

/// Where the launchers of a job find each other: each is told to host the coordinator, or where it
/// is. Every method but shared_endpoint() may block, so all are called on one thread, which is not
/// that of the launcher's loop and may outlive it.
class Directory {
 public:
  virtual ~Directory() = default;

  /// Decides, and binds what a host needs. May be asked again, after HasMoved() or after a
  /// coordinator was lost: then the answer may be another. Ends when the launcher is cancelled
  /// (CANCELLED). The first time, an endpoint's name may be unknown until the join timeout; later
  /// it takes seconds at most. Errors name what was attempted, on what address, port, file or
  /// service, who holds it if known, and what to do. ABORTED: nobody knows yet, ask again in a
  /// moment.
  virtual absl::StatusOr<Place> Find() = 0;
  /// For who has joined and may still move: whether Find() may answer otherwise now, because the
  /// coordinator at its place is gone, is another's, or cannot be told from one that is. `why`
  /// there is none: UNAVAILABLE, nobody answers; NOT_FOUND, who answers has another run id.
  virtual bool HasMoved(const absl::Status& /*why*/) { return false; }
  /// For who has joined, and has lost a coordinator that another may take over: where it is by now,
  /// which may be where it was. Hosts and claims nothing. Errors: it is not known now.
  virtual absl::StatusOr<Whereabouts> LookAgain() {
    return absl::UnimplementedError("the coordinator's address is a fixed one");
  }
  /// For a host: whether its place is still its own. Renews what it holds of it and reads it back,
  /// so that nobody takes it for kSilenceOfRefused at least, from the moment of the call on;
  /// `false`: another has it, or it was closed. Errors: it could not be found out; they name what
  /// was attempted, on what, and why it failed, and may be gone a second later.
  virtual absl::StatusOr<bool> Confirm() { return true; }
  /// The job of the coordinator that this launcher hosts is over here: nobody may find it any more.
  /// `closes`: the run id has had its job, and who comes late is refused; false after a signal. May
  /// hang with a file system, and is given up then.
  virtual void JobEnded(bool /*closes*/) {}
  /// Null if no other job can be at this launcher's endpoint.
  virtual SharedEndpoint* shared_endpoint() { return nullptr; }
};

/// For how long a host of that plan's job keeps its run id without a sign of life.
std::chrono::seconds ClaimLeaseOf(const LaunchPlan& plan);

/// Owns what it has: a directory may outlive the launcher, on a thread that hangs.
struct DirectoryContext {
  LaunchPlan plan;
  Environment environment;
  /// Polled every 50 ms.
  std::function<bool()> is_cancelled;
  /// Told, for people, what a Find() that takes long is waiting for; may be null.
  std::function<void(const std::string&)> notify;
  /// Of a coordinator that keeps one: see Journal::identity().
  std::string journal{};
  /// Of a standby: the claim in whose place it puts its own, and the token that the job's nodes
  /// have.
  struct Succession {
    std::string claim;
    std::string token;
  };
  std::optional<Succession> succession{};
  /// Told, on any thread, when it turns out that another launcher has the place of this one, which
  /// hosts; may be null.
  std::function<void()> on_taken{};
  /// Null: nothing is encrypted.
  std::shared_ptr<const Tls> tls{};
};

/// The directory that `context.plan` asks for. Called on the thread that calls Find(). Errors:
/// INVALID_ARGUMENT for a certificate that cannot be read.
absl::StatusOr<std::unique_ptr<Directory>> MakeDirectory(DirectoryContext context);

}  // namespace fsdprun
