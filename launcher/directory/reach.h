#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {

/// What became of an attempt to connect to any of several endpoints.
struct Reach {
  enum class Kind {
    kConnects,
    /// All hosts have answered, and nothing listens there.
    kRefused,
    kSilent,
  };
  Kind kind = Kind::kSilent;
  /// Of the one that connects.
  size_t index = 0;
};

/// Connects to the endpoints one after the other, each 200 ms after the one before or as soon as
/// that has failed, and ends with the first that succeeds. Nothing is sent.
Reach ReachAny(const std::vector<NumericEndpoint>& endpoints, MonoTime deadline,
               const std::function<bool()>& is_cancelled);

/// Puts the endpoint that ReachAny() finds first; does nothing with less than two.
void MoveReachableToFront(std::vector<NumericEndpoint>* endpoints, MonoTime deadline,
                          const std::function<bool()>& is_cancelled);

/// AddressTowards() the first of `targets` to which there is a route. Errors: UNAVAILABLE.
absl::StatusOr<std::string> AddressTowardsAny(const std::vector<NumericEndpoint>& targets);

}  // namespace fsdprun
