#include "fsdpctl/top/link.h"

#include "absl/strings/str_cat.h"
#include "fsdpctl/top/amounts.h"

namespace fsdprun::top {

void Link::Asked(MonoTime now) { active_at_ = now; }

void Link::Answered(const v1::JobStatus& status, MonoTime now) {
  last_ = status;
  last_.clear_workers();
  last_.clear_nodes();
  active_at_ = now;
  why_ended_.clear();
}

void Link::Ended(const absl::Status& status) {
  if (last_.has_exit_code()) {
    last_.set_phase(kFinished);
    return;
  }
  why_ended_ = status.ok() ? "the coordinator has ended the call" : std::string(status.message());
}

/// Thousands of workers are told of less often.
Duration Link::Quiet() const { return kQuiet + std::chrono::milliseconds(last_.world_size()); }

bool Link::IsStuck(MonoTime now) const { return !is_over() && now - active_at_ > kLost + Quiet(); }

std::string Link::Trouble(MonoTime now) const {
  if (is_over()) {
    return "";
  }
  if (!why_ended_.empty()) {
    return absl::StrCat("connection lost, asking again: ", why_ended_);
  }
  return now - active_at_ > Quiet() ? absl::StrCat("no answer of the coordinator for ",
                                                   TimeText((now - active_at_).count()))
                                    : "";
}

std::string Link::LastWords() const {
  const std::string job = absl::StrCat("job ", last_.job());
  if (is_over()) {
    return absl::StrCat(job, " ended with exit code ", last_.exit_code());
  }
  if (!why_ended_.empty()) {
    return absl::StrCat(job, ": connection lost: ", why_ended_);
  }
  return absl::StrCat(job, " goes on: generation ", last_.generation(), ", ", last_.phase(), ": ",
                      last_.reason());
}

}  // namespace fsdprun::top
