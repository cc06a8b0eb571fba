#pragma once

#include <utility>

#include "launcher/directory/directory.h"

namespace fsdprun {

/// A job of one node: nobody has to be found. Only the workers' store listens, in static mode on
/// the master port.
class OneNode : public Directory {
 public:
  explicit OneNode(DirectoryContext context) : context_(std::move(context)) {}

  absl::StatusOr<Place> Find() override;

 private:
  const DirectoryContext context_;
};

}  // namespace fsdprun
