#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/local/log_paths.h"
#include "agent/local/store_process.h"
#include "agent/node/node_record.h"

namespace fsdprun {

/// What an agent leaves with its keeper for the next; see Note [Adopting workers].
struct AgentMemo {
  NodeRecord node;
  RunDirs dirs;
  StoreProcess::Id store;
  /// Path of the watchdog's FIFO; empty: none.
  std::string timer_file;
};

std::string EncodeMemo(const AgentMemo& memo);
/// Errors: INVALID_ARGUMENT for what no agent of this release has left.
absl::StatusOr<AgentMemo> DecodeMemo(absl::string_view text);

}  // namespace fsdprun
