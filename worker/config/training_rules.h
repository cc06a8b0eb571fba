#pragma once

#include "formats/json/strict_json.h"
#include "worker/config/schedule.h"

namespace fsdprun::worker {

/// Of the section "schedule" of a valid configuration.
Schedule ParseSchedule(const Json& schedule, int64_t total_steps);

/// Gives those keys of `config` the values of `from` that have no meaning with the optimizer and
/// the schedule that are chosen. Precondition: both have all keys. Pure.
void TakeWhereWithoutMeaning(const Json& from, Json& config);

/// What keys of the sections train, optimizer and schedule say of each other, beyond what each may
/// be: options of an optimizer or schedule that is not chosen, a batch that is given twice, a
/// decay that does not fit. Precondition: each value is one that its key may have. Pure. Errors:
/// ConfigError, one line naming key, value and expectation.
void CheckTrainingRules(const Json& config);

}  // namespace fsdprun::worker
