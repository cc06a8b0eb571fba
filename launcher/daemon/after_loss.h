#pragma once

#include "absl/status/status.h"
#include "base/mono_time.h"

namespace fsdprun {

/// How long a daemon may not be there when a job is started: it may be starting.
inline constexpr Duration kDialPatience = std::chrono::seconds(5);

enum class AfterLoss {
  kRedial,
  kGiveUp,
};

/// What a launcher does when a call to a daemon has ended with `why`, or could not be made.
/// `has_more_addresses`: one of the daemon was not tried yet. `waited`: since the first attempt, or
/// since the last call that was answered. A daemon that runs a session may be started again, and
/// its network may come back: as long as the job goes on, it is called again. Pure.
inline AfterLoss AfterLossOf(const absl::Status& why, bool runs_session, bool has_more_addresses,
                             Duration waited) {
  const bool may_pass = absl::IsUnavailable(why) || absl::IsCancelled(why) ||
                        absl::IsDeadlineExceeded(why) || absl::IsInternal(why);
  if (!may_pass || (!runs_session && absl::IsInternal(why))) {
    return AfterLoss::kGiveUp;
  }
  const bool is_patient = runs_session || has_more_addresses || waited < kDialPatience;
  return is_patient ? AfterLoss::kRedial : AfterLoss::kGiveUp;
}

}  // namespace fsdprun
