#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "launcher/directory/directory.h"
#include "launcher/directory/rules.h"
#include "launcher/directory/run_id_client.h"

namespace fsdprun {

/// An endpoint that all nodes were given. c10d: the launcher that binds it first hosts the
/// coordinator, or the one that has is_host; static: node rank 0 does.
//
// Note [Several run ids on one endpoint]
// Jobs with different run ids may be given one endpoint. The coordinator that listens there tells
// the first launcher of another run id to host on a free port, and those who come later where that
// is. It knows of a host for as long as that leaves its question open. When the job of the
// endpoint's holder ends, the others go on, but who joins one of them from then on does not find it
// any more.
class FixedEndpoint : public Directory {
 public:
  explicit FixedEndpoint(DirectoryContext context)
      : context_(std::move(context)), role_(RoleOf(context_.plan)) {}

  absl::StatusOr<Place> Find() override;
  absl::StatusOr<Place> FindAgain(const absl::Status& why) override;
  void JobEnded(bool closes) override;

 private:
  /// Sets `place->hosts` and binds, or finds that another launcher has.
  absl::Status HostOrJoin(const HostView& endpoint, Place* place) const;
  absl::Status Bind(const HostView& endpoint, Place* place) const;
  /// Where this launcher would host another run id than the endpoint's holder; nowhere if it may
  /// not.
  absl::StatusOr<Place> HostElsewhere(const HostView& endpoint) const;
  absl::StatusOr<Place> Follow(const RunIdClient::Answer& answer, Place elsewhere,
                               const absl::Status& why);
  absl::Status NameThisNode(const HostView& endpoint, const HostView& local, Place* place) const;

  const DirectoryContext context_;
  const HostRole role_;
  bool was_asked_ = false;
  /// Open while this launcher hosts a run id elsewhere.
  std::unique_ptr<RunIdClient> question_;
};

}  // namespace fsdprun
