#include "launcher/run/journal_keeper.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {

JournalKeeper::JournalKeeper(EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)), thread_(loop) {}

JournalKeeper::~JournalKeeper() { loop_.Cancel(retry_timer_); }

void JournalKeeper::Keep(const job::Record& record) {
  if (absl::IsAborted(problem_)) {
    return;
  }
  waiting_ = std::make_shared<const job::Record>(record);
  const MonoTime deadline = MonoNow() + options_.patience;
  const bool was_well = problem_.ok();
  if (!is_writing_) {
    Write();
  }
  if (!was_well) {
    return;  // As is known, it fails or hangs: the coordinator is not held up again.
  }
  while (is_writing_ && thread_.Await(deadline)) {
  }
  if (is_writing_) {
    OnProblem(absl::UnavailableError(absl::StrCat("--journal: ", options_.medium,
                                                  " did not answer within ",
                                                  ToSeconds(options_.patience), " s")));
  }
}

/// The newest record, and what comes meanwhile after it.
void JournalKeeper::Write() {
  loop_.Cancel(std::exchange(retry_timer_, 0));
  current_ = waiting_ != nullptr ? std::exchange(waiting_, nullptr) : current_;
  is_writing_ = true;
  const auto status = std::make_shared<absl::Status>();
  thread_.Run([write = options_.write, record = current_, status] { *status = write(*record); },
              [this, status] { OnWritten(*status); });
}

void JournalKeeper::OnWritten(const absl::Status& status) {
  is_writing_ = false;
  if (absl::IsAborted(status)) {
    problem_ = status;
    options_.on_taken(status);
    return;
  }
  if (!status.ok()) {
    OnProblem(status);
    retry_timer_ = loop_.At(MonoNow() + options_.retry_pause, [this] {
      retry_timer_ = 0;
      if (!is_writing_) {
        Write();
      }
    });
    return;
  }
  if (waiting_ != nullptr) {
    Write();
    return;
  }
  if (!problem_.ok()) {
    options_.tell("--journal: it is kept again");
  }
  problem_ = absl::OkStatus();
}

void JournalKeeper::OnProblem(const absl::Status& why) {
  if (problem_.ok()) {
    options_.tell(absl::StrCat(
        why.message(),
        "; the job goes on, and it is tried again, but a coordinator that is started now in place "
        "of this one may have to start the workers anew"));
  }
  problem_ = why;
}

}  // namespace fsdprun
