#pragma once

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// Room for all that is known of a worker.
inline constexpr int kColumnsOfFiles = 160;

/// How wide text for standard output may be: as COLUMNS says, or its terminal; else
/// kColumnsOfFiles.
int TextColumns(const Environment& environment);

}  // namespace fsdprun
