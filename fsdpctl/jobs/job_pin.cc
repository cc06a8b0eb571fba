#include "fsdpctl/jobs/job_pin.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {

JobPin::JobPin(std::string given, bool is_here)
    : is_here_(is_here), name_(std::move(given)), answerer_(name_) {}

bool JobPin::Takes(const v1::JobStatus& status) {
  if (has_answered_ && !Continues(status)) {
    return false;
  }
  Keep(status);
  return true;
}

bool JobPin::Continues(const v1::JobStatus& status) const {
  return status.job() == run_id_ && status.launch_id() == launch_id_;
}

void JobPin::Keep(const v1::JobStatus& status) {
  has_answered_ = true;
  run_id_ = status.job();
  launch_id_ = status.launch_id();
  node_ = status.coordinator().node();
  pid_ = status.coordinator().pid();
  if (is_here_) {
    name_ = absl::StrCat(pid_);
  }
  answerer_ = name_;
}

void JobPin::NotFound() {
  if (has_answered_) {
    name_ = run_id_;
  }
}

std::string JobPin::WhyNot(const v1::JobStatus& status) const {
  return absl::StrCat("the job's coordinator (pid ", pid_, " on ", node_, ") is gone; pid ",
                      status.coordinator().pid(), " on ", status.coordinator().node(),
                      " runs another job of id '", status.job(), "'");
}

}  // namespace fsdprun
