#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "agent/rpc/tls.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun {

/// Where a job is asked.
struct JobAddress {
  /// As gRPC takes it: `unix:/run/.../12.sock` or `host:port`.
  std::string target;
  std::string run_id;
  /// Empty: none is asked for.
  std::string token;
  /// Null: nothing is encrypted.
  std::shared_ptr<const Tls> tls;
  /// The name that the coordinator's certificate must have.
  std::string tls_name;
};

/// Asks a running job, and calls `on_answer` for each answer until the job has said all. Blocks,
/// for `limit` at most once it is connected. Errors: the job's own, UNAVAILABLE with where it was
/// looked for, and DEADLINE_EXCEEDED.
absl::Status AskJob(const JobAddress& address, const v1::ControlQuestion& question,
                    const std::function<void(const v1::ControlAnswer&)>& on_answer,
                    std::optional<std::chrono::milliseconds> limit = std::nullopt);

}  // namespace fsdprun
