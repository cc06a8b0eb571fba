#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/mono_time.h"
#include "launcher/ledger/time_ledger.h"

namespace fsdprun {

/// The content of ledger.json: docs/METRICS.md is the schema, which programs may rely on. `job` is
/// the run id. One object with a newline; text that is not UTF-8 is replaced. Pure.
std::string LedgerJson(const TimeLedger& ledger, absl::string_view job, MonoTime now);

}  // namespace fsdprun
