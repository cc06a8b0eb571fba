#pragma once

#include <vector>

#include "worker/config/config_schema.h"

namespace fsdprun::worker {

// The keys of each section, in the order in which they are printed. A section is one file here and
// one line in ConfigSchema.

std::vector<ConfigKey> ModelKeys();
std::vector<ConfigKey> LoraKeys();
std::vector<ConfigKey> DataKeys();
std::vector<ConfigKey> TrainKeys();
std::vector<ConfigKey> OptimizerKeys();
std::vector<ConfigKey> ScheduleKeys();
std::vector<ConfigKey> ParallelKeys();
std::vector<ConfigKey> PrecisionKeys();
std::vector<ConfigKey> CheckpointKeys();
std::vector<ConfigKey> MetricsKeys();

}  // namespace fsdprun::worker
