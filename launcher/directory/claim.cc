#include "launcher/directory/claim.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kFirstLine = "fsdprun rendezvous, version 1";
constexpr absl::string_view kNoRunId = "none";

absl::Status ReadLine(absl::string_view key, absl::string_view value, Claim* claim) {
  if (key == "launch") {
    claim->launch = std::string(value);
  } else if (key == "token") {
    claim->token = std::string(value);
  } else if (key == "network") {
    claim->network = std::string(value);
  } else if (key == "journal") {
    claim->journal = std::string(value);
  } else if (key == "lease-seconds") {
    if (!absl::SimpleAtoi(value, &claim->lease_seconds)) {
      return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no number of seconds"));
    }
  } else if (key == "closed-until") {
    int64_t seconds = 0;
    if (!absl::SimpleAtoi(value, &seconds)) {
      return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no time"));
    }
    claim->closed_until = seconds;
  } else if (key == "address") {
    ASSIGN_OR_RETURN(const HostPort endpoint, ParseHostPort(value, 0));
    if (!IsNumericAddress(endpoint.host) || endpoint.port == 0) {
      return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no numeric endpoint"));
    }
    claim->endpoints.push_back({endpoint.host, endpoint.port});
  }
  return absl::OkStatus();  // Other keys may be those of later versions.
}

bool HasEnded(const Claim& claim, const HolderFacts& holder) {
  const bool has_lease = claim.lease_seconds > 0;
  if (holder.is_succeeded) {
    return true;
  }
  if (has_lease && holder.silence >= std::chrono::seconds(claim.lease_seconds)) {
    return true;
  }
  const bool is_refusal_true =
      holder.is_on_own_network || !has_lease || holder.silence >= kSilenceOfRefused;
  return holder.reach == Reach::Kind::kRefused && is_refusal_true && claim.journal.empty();
}

}  // namespace

std::string EncodeClaim(const Claim& claim) {
  std::string text = absl::StrCat(kFirstLine, "\nlaunch ", claim.launch, "\n");
  for (const NumericEndpoint& endpoint : claim.endpoints) {
    absl::StrAppend(&text, "address ", ToString(endpoint), "\n");
  }
  if (!claim.token.empty()) {
    absl::StrAppend(&text, "token ", claim.token, "\n");
  }
  if (claim.lease_seconds > 0) {
    absl::StrAppend(&text, "lease-seconds ", claim.lease_seconds, "\n");
  }
  if (!claim.network.empty()) {
    absl::StrAppend(&text, "network ", claim.network, "\n");
  }
  if (!claim.journal.empty()) {
    absl::StrAppend(&text, "journal ", claim.journal, "\n");
  }
  if (claim.closed_until.has_value()) {
    absl::StrAppend(&text, "closed-until ", *claim.closed_until, "\n");
  }
  return text;
}

absl::StatusOr<Claim> DecodeClaim(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.empty() || lines.front() != kFirstLine) {
    return absl::InvalidArgumentError("it does not begin as fsdprun writes it");
  }
  Claim claim;
  for (const absl::string_view line : lines) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    RETURN_IF_ERROR(ReadLine(parts.first, parts.second, &claim));
  }
  if (claim.launch.empty() || (claim.endpoints.empty() && !claim.closed_until.has_value())) {
    return absl::InvalidArgumentError("it names no coordinator");
  }
  return claim;
}

bool IsClosable(absl::string_view run_id) { return run_id != kNoRunId && !run_id.empty(); }

ClaimMove MoveOf(const std::optional<Claim>& found, const HolderFacts& holder,
                 int64_t unix_seconds) {
  if (!found.has_value()) {
    return ClaimMove::kClaim;
  }
  if (found->closed_until.has_value()) {
    return *found->closed_until > unix_seconds ? ClaimMove::kRefuse : ClaimMove::kClaim;
  }
  return HasEnded(*found, holder) ? ClaimMove::kClaim : ClaimMove::kJoin;
}

std::vector<NumericEndpoint> EndpointsOfHolder(const Claim& claim, const std::string& own_network,
                                               const std::vector<std::string>& own_addresses) {
  std::vector<NumericEndpoint> endpoints = claim.endpoints;
  if (!claim.network.empty() && claim.network != own_network) {
    std::erase_if(endpoints, [&](const NumericEndpoint& endpoint) {
      return IsLoopback(endpoint.address) || std::find(own_addresses.begin(), own_addresses.end(),
                                                       endpoint.address) != own_addresses.end();
    });
  }
  return endpoints;
}

}  // namespace fsdprun
