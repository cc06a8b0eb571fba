#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/directory/claim.h"

namespace fsdprun {

/// A place that all nodes see, with at most one claim for a run id. What was put there is renewed
/// until Release() or the destructor.
/// Thread: one at a time. Calls take a bounded time, unless the file system behind them hangs.
class ClaimStore {
 public:
  virtual ~ClaimStore() = default;

  /// Errors: UNAVAILABLE may be retried, others are final; they name the place.
  virtual absl::StatusOr<std::optional<Claim>> Read() = 0;
  /// A text that changes whenever the claim is renewed, as of the last Read(); nullopt if a claim
  /// that is not renewed goes by itself.
  virtual std::optional<std::string> RenewalSign() const = 0;
  /// Puts `mine` in the place of `found` (nullopt: of nothing). False if something else is there
  /// now, or it has been renewed since the last Read(), or somebody else is about to replace it.
  /// Errors: as Read().
  virtual absl::StatusOr<bool> Replace(const std::optional<Claim>& found, const Claim& mine) = 0;
  /// For the holder of `mine`: renews it, and puts it there again if nothing is there. True if it
  /// has the place: nobody replaces it then for as long as its lease is, from the call on. False if
  /// another is there. Errors: it could not be found out, and why.
  virtual absl::StatusOr<bool> Confirm(const Claim& mine) = 0;
  /// For the holder of `mine`, at the end of the job: leaves `last` there, or nothing.
  virtual absl::Status Release(const Claim& mine, const std::optional<Claim>& last) = 0;
  /// For people: the file, or the key and the server.
  virtual std::string Where() const = 0;
};

}  // namespace fsdprun
