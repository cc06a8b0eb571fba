#include "launcher/slurm/requeue_notice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace fsdprun {

std::string RequeueNotice(RequeueMode mode, const std::string& job, const SlurmJobRecord& record,
                          int64_t now, int64_t margin_s) {
  constexpr absl::string_view kOtherwise =
      "; --requeue=never or sbatch --no-requeue switches that off";
  const bool wants_steps = mode == RequeueMode::kAuto;
  const int64_t seconds = *record.end_time - now - margin_s;
  if (seconds <= 0) {
    return absl::StrCat("the last ", margin_s, " s of the time limit of job ", job,
                        " have begun: it stops its workers",
                        wants_steps ? " as soon as one has reported a step" : "",
                        ", so that they can save, and is requeued", kOtherwise);
  }
  return absl::StrCat("in ", absl::FormatDuration(absl::Seconds(seconds)), ", ", margin_s,
                      " s before the end of its time limit, job ", job,
                      " stops its workers, so that they can save, and is requeued",
                      wants_steps ? " if a worker has reported a step by then" : "", kOtherwise);
}

}  // namespace fsdprun
