#pragma once

// Who hosts the coordinator of a run id, as written where all nodes see it. Pure.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mono_time.h"
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
  /// The holder renews the claim; one that has not been renewed for so long is of a holder that is
  /// gone, whatever its machine says. 0: of a version that did not renew.
  int64_t lease_seconds = 0;
  /// Of the holder, see OwnNetwork(); empty if it is not known.
  std::string network;
  /// Which journal the holder keeps, if it can be taken over by whoever opens that; else empty.
  std::string journal;
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
/// What is known of who holds a claim.
struct HolderFacts {
  /// Of the claim's endpoints.
  std::optional<Reach::Kind> reach;
  /// For how long the claim is known not to have been renewed.
  Duration silence{};
  /// The claim's addresses mean the same machine here as where it was written.
  bool is_on_own_network = false;
  /// Whoever asks has opened the journal that the holder kept, or was its standby: the holder is
  /// gone, or may do nothing any more.
  bool is_succeeded = false;
};
/// Between two renewals of a claim; several of them fit into a lease.
inline constexpr Duration kRenewalInterval = std::chrono::seconds(4);
/// A live holder renews its claim at least twice in this time.
inline constexpr Duration kSilenceOfRefused = std::chrono::seconds(8);
static_assert(2 * kRenewalInterval <= kSilenceOfRefused);
/// A holder that cannot be reached may be stopped or cut off from this node only, and is not
/// replaced: only one whose hosts say that it has ended, or that has let its lease pass. From
/// another network the refusal may be a firewall's, or of a machine that has the same address: it
/// counts only if the claim is not renewed either. One that keeps a journal is waited for: it is
/// started again, or another takes the job over.
ClaimMove MoveOf(const std::optional<Claim>& found, const HolderFacts& holder,
                 int64_t unix_seconds);

/// The claim's endpoints as seen from a machine with this network and these addresses. An address
/// that both machines have (of a bridge that every container engine makes, 172.17.0.1) leads to
/// this one, and what is heard there is not the holder's answer. May be empty.
std::vector<NumericEndpoint> EndpointsOfHolder(const Claim& claim, const std::string& own_network,
                                               const std::vector<std::string>& own_addresses);

}  // namespace fsdprun
