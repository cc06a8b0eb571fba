#include "fsdpctl/top/link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdpctl/top/amounts.h"

namespace fsdprun::top {

void Link::Asked(MonoTime now) { active_at_ = now; }

void Link::Answered(const v1::JobStatus& status, MonoTime now) {
  last_ = status;
  last_.clear_workers();
  last_.clear_nodes();
  active_at_ = now;
  answered_at_ = now;
  why_ended_.clear();
  is_refused_ = false;
  breaks_ = 0;
}

void Link::Refused(std::string why) {
  why_ended_ = std::move(why);
  is_refused_ = true;
}

void Link::Ended(const absl::Status& status) {
  // A coordinator that dies while the job ends may have a successor, which goes on with the end.
  if (last_.has_exit_code() && (status.ok() || ++breaks_ > kBreaksMax)) {
    last_.set_phase(kFinished);
    return;
  }
  if (absl::IsCancelled(status)) {  // By who watches.
    why_ended_ = is_refused_ ? why_ended_ : "the coordinator did not answer";
    return;
  }
  is_refused_ = false;
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
    return is_refused_ ? why_ended_ : absl::StrCat("connection lost, asking again: ", why_ended_);
  }
  return IsQuiet(now)
             ? absl::StrCat("no answer of the coordinator for ", TimeText(Since(now).count()))
             : "";
}

std::string Link::LastWords(MonoTime now) const {
  const std::string job = absl::StrCat("job ", last_.job());
  if (is_over()) {
    return absl::StrCat(job, " ended with exit code ", last_.exit_code());
  }
  if (!why_ended_.empty()) {
    return absl::StrCat(job, ": connection lost: ", why_ended_);
  }
  return absl::StrCat(
      job, IsQuiet(now) ? absl::StrCat(": ", Trouble(now), "; before that") : " goes on",
      ": generation ", last_.generation(), ", ", last_.phase(), ": ", last_.reason());
}

}  // namespace fsdprun::top
