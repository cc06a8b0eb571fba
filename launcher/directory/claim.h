#pragma once

// Who hosts the coordinator of a run id, as written where all nodes see it. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/directory/numeric_address.h"
#include "launcher/directory/reach.h"

namespace fsdprun {

/// What a launcher says that hosts the coordinator of a run id, or that has done so until the job
/// was over.
struct Claim {
  /// Names the launch: two claims with one name are one.
  std::string launch;
  /// Where to reach the coordinator, best first.
  std::vector<NumericEndpoint> endpoints;
  /// Random, if the user gave none: who may read the claim may join.
  std::string token;
  /// The job is over, and nobody hosts that run id again before this time (seconds since 1970).
  std::optional<int64_t> closed_until;

  bool operator==(const Claim&) const = default;
};

/// Lines of text, for people too.
std::string EncodeClaim(const Claim& claim);
/// Errors: INVALID_ARGUMENT.
absl::StatusOr<Claim> DecodeClaim(absl::string_view text);

/// A run id that was not chosen says nothing about the job, and is never closed.
bool IsClosable(absl::string_view run_id);
/// How long a run id stays closed, as torchrun's with etcd.
inline constexpr int64_t kClosedSeconds = 7200;

enum class ClaimMove {
  /// Put an own claim in the place of what was found.
  kClaim,
  kJoin,
  /// The job is over.
  kRefuse,
};
/// `reach` is of the claim's endpoints. A holder that is silent may be stopped or cut off from this
/// node only, and is not replaced: only one whose hosts say that it has ended.
ClaimMove MoveOf(const std::optional<Claim>& found, std::optional<Reach::Kind> reach,
                 int64_t unix_seconds);

}  // namespace fsdprun
