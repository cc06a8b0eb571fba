#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fsdprun/v1/journal.pb.h"
#include "launcher/coordinator/job_record.h"

namespace fsdprun {

/// Which job a journal is of: what must be the same when its coordinator is started again.
struct JournaledJob {
  std::string run_id;
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;

  bool operator==(const JournaledJob&) const = default;
};

/// For people: "run id 'a', --nnodes 1:2, --max-restarts 3".
std::string Describe(const JournaledJob& job);

v1::JobRecord Encode(const job::Record& record, const JournaledJob& job);
JournaledJob JobOf(const v1::JobRecord& record);
/// Checks each field, as that of a message; whether they fit together is for job::WhyUnusable().
/// Errors: INVALID_ARGUMENT names the field and the value.
absl::StatusOr<job::Record> Decode(const v1::JobRecord& record);

// The file: a first line that names the format, the SHA-256 of the rest, then the record.

std::string FileText(const v1::JobRecord& record);
/// Errors: DATA_LOSS if it is cut off or changed, UNIMPLEMENTED if another version has written it.
absl::StatusOr<v1::JobRecord> ReadFileText(absl::string_view text);

}  // namespace fsdprun
