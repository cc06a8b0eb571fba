#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/directory/directory.h"
#include "launcher/directory/rules.h"
#include "launcher/directory/run_id_client.h"
#include "launcher/directory/run_id_host.h"

namespace fsdprun {

/// An endpoint that all nodes were given. c10d: the launcher that binds it first hosts the
/// coordinator, or the one that has is_host; static: node rank 0 does.
//
// Note [Several run ids on one endpoint]
// Jobs with different run ids may be given one endpoint. The coordinator that listens there tells
// the first launcher of another run id to host on a free port, and those who come later where that
// is. A host leaves its question open. When that breaks, it says again that it hosts, and until it
// has, who looks for it is still sent there, unless that finds its port closed. When the job of the
// endpoint's holder ends, the others go on. One of those on the endpoint's machine, or a newcomer,
// listens there next; the others tell it where they are, and for a second it sends no newcomer away
// to host. A newcomer that listens there and turns out to have the run id of one of the others goes
// over to that, if nobody has joined it. On an endpoint of a machine that runs none of them, nobody
// listens until a newcomer of that machine does.
class FixedEndpoint : public Directory, public SharedEndpoint {
 public:
  explicit FixedEndpoint(DirectoryContext context)
      : context_(std::move(context)), role_(RoleOf(context_.plan)) {}

  absl::StatusOr<Place> Find() override;
  bool HasMoved(const absl::Status& why) override;
  absl::StatusOr<Whereabouts> LookAgain() override;
  absl::StatusOr<bool> Confirm() override;
  void JobEnded(bool closes) override;
  SharedEndpoint* shared_endpoint() override { return this; }
  Tended Tend() override;
  absl::StatusOr<Place> PlaceAt(const std::vector<std::string>& other_host,
                                const JobToken& token) override;
  void CannotListen() override;

 private:
  /// For the coordinator that listens at the endpoint.
  struct Question {
    /// Where this launcher was told to join, if nothing listens there.
    std::vector<std::string> refused;
    /// Why it is asked.
    absl::Status why;
  };

  std::string TlsName() const;
  RunIdClient::Security Security() const;
  bool IsFree() const;
  bool LeadsElsewhere() const;
  /// As of Find(), by what is known without asking anybody.
  absl::StatusOr<Place> FindAtEndpoint();
  /// Sets `place->hosts` and binds, or finds that another launcher has.
  absl::Status HostOrJoin(const HostView& endpoint, Place* place) const;
  absl::Status Bind(const HostView& endpoint, Place* place) const;
  /// Where this launcher would host another run id than the endpoint's holder; nowhere if it may
  /// not.
  absl::StatusOr<Place> HostElsewhere(const HostView& endpoint) const;
  absl::StatusOr<Place> AskHolder(const Question& question);
  absl::StatusOr<Place> Follow(const RunIdClient::Answer& answer, Place elsewhere,
                               const absl::Status& why);
  absl::StatusOr<Place> JoinAt(const std::vector<std::string>& endpoints, const JobToken& token);
  absl::Status NameAtThose(Place* place) const;
  absl::Status NameThisNode(const HostView& endpoint, const HostView& local, Place* place) const;

  const DirectoryContext context_;
  const HostRole role_;
  bool was_asked_ = false;
  /// The rest is as found last.
  bool may_bind_ = false;
  std::vector<NumericEndpoint> present_;
  /// Where the endpoint's holder has sent this launcher to join.
  std::vector<std::string> told_;
  /// What Find() is to ask; empty: nothing.
  std::optional<Question> question_;
  /// While this launcher hosts elsewhere.
  std::unique_ptr<RunIdHost> host_;
};

}  // namespace fsdprun
