#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "fsdprun/v1/coordinator.pb.h"
#include "proto/cluster/messages.h"

namespace fsdprun {

/// Largest message either side accepts.
inline constexpr int kMaxMessageBytes = 1 << 20;

// Encoding truncates texts so that a message fits kMaxMessageBytes. Decoding validates every field,
// because the peer is another program: INVALID_ARGUMENT names the field and the value.
v1::AgentMessage Encode(const FromAgent& message, const std::string& job_id);
v1::CoordinatorMessage Encode(const ToAgent& message, const std::string& job_id);
absl::StatusOr<FromAgent> Decode(const v1::AgentMessage& message);
absl::StatusOr<ToAgent> Decode(const v1::CoordinatorMessage& message);

}  // namespace fsdprun
