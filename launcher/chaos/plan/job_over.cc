#include "launcher/chaos/plan/job_over.h"

#include <algorithm>

namespace fsdprun::chaos {
namespace {

/// A standby takes a job over much sooner.
constexpr Duration kLeastPatience = std::chrono::seconds(35);

std::optional<JobOver> OfCommand(const JobTrace& trace) {
  const bool is_over = !trace.is_there && (trace.exit_code.has_value() || trace.is_replaced);
  return is_over ? std::optional(JobOver{.exit_code = trace.exit_code}) : std::nullopt;
}

std::optional<JobOver> OfAttached(const JobTrace& trace, Duration patience, MonoTime now) {
  if (trace.exit_code.has_value()) {
    return JobOver{.exit_code = trace.exit_code};
  }
  const Duration gone_for = trace.is_there ? Duration::zero() : now - trace.seen_at;
  const bool is_gone = trace.has_run && gone_for > std::max(kLeastPatience, patience);
  return is_gone ? std::optional(JobOver{.gone_for = gone_for}) : std::nullopt;
}

}  // namespace

std::optional<JobOver> OverByTrace(Form form, const JobTrace& trace, Duration patience,
                                   MonoTime now) {
  switch (form) {
    case Form::kNodes:
      return std::nullopt;
    case Form::kOneLauncher:
      return OfCommand(trace);
    case Form::kAttached:
      return OfAttached(trace, patience, now);
  }
  return std::nullopt;
}

}  // namespace fsdprun::chaos
