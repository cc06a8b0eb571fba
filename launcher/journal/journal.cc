#include "launcher/journal/journal.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {

absl::Status Journal::Use(absl::string_view text, const JournaledJob& job, absl::string_view where,
                          absl::string_view renewal) {
  const auto refused = [&](const absl::Status& why) {
    return absl::Status(
        why.code(),
        absl::StrCat("--journal: ", where, " cannot be used: ", why.message(), "; ", renewal,
                     " to begin the job anew, which its agents will notice by losing their "
                     "workers"));
  };
  const absl::StatusOr<v1::JobRecord> read = ReadFileText(text);
  if (!read.ok()) {
    return refused(read.status());
  }
  if (const JournaledJob other = JobOf(*read); !(other == job)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--journal: ", where, " is of the job with ", Describe(other), "; this one has ",
        Describe(job), ". Give the same options again, or another journal"));
  }
  absl::StatusOr<job::Record> record = Decode(*read);
  if (!record.ok()) {
    return refused(record.status());
  }
  found_ = *std::move(record);
  return absl::OkStatus();
}

}  // namespace fsdprun
