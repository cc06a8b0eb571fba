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
/// In the order of ranks, nodes without a part in the world last; they point into `status`. Pure.
std::vector<const v1::NodeStatus*> NodesInOrder(const v1::JobStatus& status);
/// What the time has gone to: what took the most comes first; what took nothing is left out. Of one
/// that accounts for some time, `wall`, as it is shown. Pure.
std::string LedgerText(const v1::TimeLedger& ledger, absl::string_view wall);
/// A table. `now_ms`: Unix time. Pure.
std::string JobListText(const std::vector<JobEntry>& jobs, int64_t now_ms);
/// A line of events.jsonl, in local time; what is none comes back as it is.
std::string EventText(absl::string_view line);

}  // namespace fsdprun
