#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/directory/claim_store.h"
#include "launcher/directory/directory.h"
#include "launcher/directory/unchanged_for.h"

namespace fsdprun {

/// The launcher whose claim is the first in a place that all nodes see hosts the coordinator, on a
/// free port.
class ClaimDirectory : public Directory {
 public:
  ClaimDirectory(DirectoryContext context, std::unique_ptr<ClaimStore> store);

  absl::StatusOr<Place> Find() override;
  bool HasMoved(const absl::Status& why) override;
  absl::StatusOr<Whereabouts> LookAgain() override;
  absl::StatusOr<bool> Confirm() override;
  void JobEnded(bool closes) override;

 private:
  /// Of a claim that has just been read.
  HolderFacts LookAtHolder(const std::optional<Claim>& found);
  /// An answer, or nothing if the claims have changed meanwhile, or this launcher has to wait.
  absl::StatusOr<std::optional<Place>> Try();
  absl::StatusOr<std::optional<Place>> Host(const std::optional<Claim>& found);
  absl::Status RefuseToHostBeside(const Claim& claim) const;
  absl::Status WhyNothingWasFound(Duration timeout) const;
  std::vector<NumericEndpoint> EndpointsOf(const Claim& claim) const;
  absl::StatusOr<Place> PlaceOf(const Claim& claim) const;
  absl::StatusOr<Place> MakeHostPlace() const;

  const DirectoryContext context_;
  /// Whether this launcher must host, or must not.
  const std::optional<bool> is_host_;
  const std::unique_ptr<ClaimStore> store_;
  /// Of this launcher, if it hosts.
  std::optional<Claim> mine_;
  /// The launch whose claim Find() has answered with.
  std::string joined_;
  UnchangedFor silence_;
};

}  // namespace fsdprun
