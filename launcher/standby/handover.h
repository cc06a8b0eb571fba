#pragma once

// What a launcher that hosts the coordinator leaves to its standby, see Note [A standby]: a
// handover with the sockets that it listens on, then the job's record, whenever that has changed.
// Messages are short, and a record is in a file in memory that comes with its message: so none of
// them waits for the standby, which need not even run yet.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/directory/numeric_address.h"
#include "launcher/journal/record_codec.h"
#include "proto/cluster/types.h"

namespace fsdprun {

struct Handover {
  std::string run_id;
  std::string token;
  /// Where the coordinator is reached, best first.
  std::vector<NumericEndpoint> endpoints;
  /// Of the launcher.
  pid_t pid = 0;
  /// The launcher's own, which ends with it.
  Incarnation agent;
  /// See Place::claim.
  std::string claim;
};

struct HandoverSockets {
  UniqueFd launcher;
  UniqueFd standby;
};
/// Errors: UNAVAILABLE.
absl::StatusOr<HandoverSockets> MakeHandoverSockets();

/// Neither blocks. Errors: UNAVAILABLE, also if the standby has not read for hundreds of messages.
absl::Status SendHandover(int socket, const Handover& handover,
                          const std::vector<UniqueFd>& listeners);
absl::Status SendRecord(int socket, const job::Record& record, const JournaledJob& job);

/// What has arrived until the launcher's end.
struct Inheritance {
  Handover handover;
  /// Bound and listening.
  std::vector<UniqueFd> listeners;
  /// The latest; nothing if there was none.
  std::optional<job::Record> record;
};
/// Reads until the end of file, which the kernel sees to however the launcher ends. Errors:
/// INVALID_ARGUMENT for what no launcher of this release sends, UNAVAILABLE if something was lost.
absl::StatusOr<Inheritance> ReadInheritance(int socket);

}  // namespace fsdprun
