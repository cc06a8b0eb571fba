#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdprun::chaos {

/// What an event of the job tells a campaign.
struct JobNews {
  /// A failure, in the job's own words; unset: none.
  std::optional<std::string> failure;
  /// The job has ended so.
  std::optional<int> exit_code;

  bool operator==(const JobNews&) const = default;
};

/// `line`: an event in JSON. `since_ms`: Unix time; a job that ran already tells of failures from
/// before, which are no news. Pure.
JobNews NewsIn(const std::string& line, int64_t since_ms);

}  // namespace fsdprun::chaos
