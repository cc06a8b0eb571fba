#pragma once

#include <utility>
#include <vector>

#include "launcher/directory/directory.h"
#include "launcher/directory/rules.h"

namespace fsdprun {

/// An endpoint that all nodes were given. c10d: the launcher that binds it first hosts the
/// coordinator, or the one that has is_host; static: node rank 0 does.
class FixedEndpoint : public Directory {
 public:
  explicit FixedEndpoint(DirectoryContext context)
      : context_(std::move(context)), role_(RoleOf(context_.plan)) {}

  absl::StatusOr<Place> Find() override;

 private:
  /// Sets `place->hosts` and binds, or finds that another launcher has.
  absl::Status HostOrJoin(const HostView& endpoint, Place* place) const;
  absl::Status Bind(const HostView& endpoint, Place* place) const;
  absl::Status NameThisNode(const HostView& endpoint, const HostView& local, Place* place) const;

  const DirectoryContext context_;
  const HostRole role_;
};

}  // namespace fsdprun
