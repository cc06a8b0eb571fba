#pragma once

#include <utility>

#include "launcher/directory/directory.h"

namespace fsdprun {

/// The coordinator is hosted by the program that has started this launcher, which has said where.
class ToldCoordinator : public Directory {
 public:
  explicit ToldCoordinator(DirectoryContext context) : context_(std::move(context)) {}

  absl::StatusOr<Place> Find() override;

 private:
  const DirectoryContext context_;
};

}  // namespace fsdprun
