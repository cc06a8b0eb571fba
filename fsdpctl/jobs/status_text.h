#pragma once

// What the commands show to people.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/control/job_file.h"

namespace fsdprun {

/// Some lines, with a table of the nodes. Pure.
std::string StatusText(const v1::JobStatus& status);
/// `0-3`; `-` without a part in the world. Pure.
std::string RanksText(const v1::NodeStatus& node);
/// `member, silent`. Pure.
std::string NodeStateText(const v1::NodeStatus& node);
/// What the time has gone to: what took the most comes first; what took nothing is left out. Of one
/// that accounts for some time. Pure.
std::string LedgerText(const v1::TimeLedger& ledger);
/// A table. `now_ms`: Unix time. Pure.
std::string JobListText(const std::vector<JobEntry>& jobs, int64_t now_ms);
/// A line of events.jsonl, in local time; what is none comes back as it is.
std::string EventText(absl::string_view line);

}  // namespace fsdprun
