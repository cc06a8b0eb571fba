#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "launcher/directory/claim_store.h"
#include "launcher/directory/directory.h"

namespace fsdprun {

/// The launcher whose claim is the first in a place that all nodes see hosts the coordinator, on a
/// free port.
class ClaimDirectory : public Directory {
 public:
  ClaimDirectory(DirectoryContext context, std::unique_ptr<ClaimStore> store)
      : context_(std::move(context)), store_(std::move(store)) {}

  absl::StatusOr<Place> Find() override;
  void JobEnded(bool closes) override;

 private:
  /// An answer, or nothing if the claims have changed meanwhile.
  absl::StatusOr<std::optional<Place>> Try();
  absl::StatusOr<std::optional<Place>> Host(const std::optional<Claim>& found);
  absl::StatusOr<Place> Join(const Claim& claim) const;
  absl::StatusOr<Place> MakeHostPlace() const;

  const DirectoryContext context_;
  const std::unique_ptr<ClaimStore> store_;
  /// Of this launcher, if it hosts.
  std::optional<Claim> mine_;
};

}  // namespace fsdprun
