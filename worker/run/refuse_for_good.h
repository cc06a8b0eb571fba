#pragma once

#include "formats/checkpoint/file_system.h"
#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// Runs a check at the start and turns its Error into one that ends the job for good, unless it may
/// pass: a full disk may be full of a killed run's unfinished checkpoint, which the Saver removes.
/// What has not passed by then fails there, and a restart tries again.
template <typename Error, typename Check>
void RefuseForGood(Check&& check) {
  try {
    check();
  } catch (const Error& error) {
    if (!checkpoint::MayPass(error.error_number())) {
      throw ConfigError(error.what());
    }
  }
}

}  // namespace fsdprun::worker
