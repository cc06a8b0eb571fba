#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mono_time.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/journal/record_codec.h"

namespace fsdprun {

/// The journal of one job's coordinator: its record, replaced as a whole, which one coordinator at
/// a time may write. Opened by OpenJournal(). Every method but found() may block as long as the
/// file system or server does. Thread: Write() one at a time, Confirm() on any beside it.
class Journal {
 public:
  virtual ~Journal() = default;

  /// What a coordinator before this one has left; nothing in a new journal.
  const std::optional<job::Record>& found() const { return found_; }
  /// On return the record is kept, and what was there before is not. Errors: UNAVAILABLE, then what
  /// was there before still is, or it is not known which of the two; ABORTED, another coordinator
  /// has taken the job over, and nothing that follows from this record may be done.
  virtual absl::Status Write(const job::Record& record) = 0;
  /// Whether the job is this coordinator's still, and nobody takes it over for kLease from the call
  /// on. Errors: ABORTED, another has taken it; UNAVAILABLE, it could not be found out.
  virtual absl::Status Confirm() { return absl::OkStatus(); }
  /// Another coordinator may take the job over while this one lives but cannot be heard.
  virtual bool can_be_taken() const { return false; }
  /// Nobody takes the job over before. Later nothing may be ordered, unless this has grown
  /// meanwhile: agents that come again would be told what is not true any more. Thread: any.
  virtual MonoTime sure_until() const { return MonoTime::max(); }
  /// The same for every coordinator that can take this job over, and for no other.
  virtual std::string identity() const = 0;

 protected:
  /// Looks at what was read from `where`. `renewal` says how to begin the job anew. Errors, each
  /// one line: FAILED_PRECONDITION if it is another job's, DATA_LOSS or UNIMPLEMENTED if it cannot
  /// be used.
  absl::Status Use(absl::string_view text, const JournaledJob& job, absl::string_view where,
                   absl::string_view renewal);

 private:
  std::optional<job::Record> found_;
};

}  // namespace fsdprun
