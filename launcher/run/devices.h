#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/command_line.h"

namespace fsdprun {

// The GPUs of this machine, from /dev, /proc and /sys below `root`, which is empty except in tests.

/// NVIDIA GPUs, or if there are none, those that ROCm's driver shows, as far as
/// CUDA_VISIBLE_DEVICES (for ROCm also HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES) lets programs
/// see them.
int CountGpus(const std::string& root, const Environment& environment);

enum class IntelGpus { kAll, kDiscrete };

/// Intel GPUs with a render node, as far as ZE_AFFINITY_MASK lets programs see them.
int CountIntelGpus(const std::string& root, const Environment& environment, IntelGpus which);

/// How many of `devices` GPUs are visible with CUDA_VISIBLE_DEVICES=`list`: the entries before the
/// first invalid one (negative, too high or empty); other names (UUIDs) count. Pure.
int VisibleGpus(int devices, absl::string_view list);

/// The NUMA nodes of the visible GPUs, in the order of their numbers: by PCI address, or as
/// CUDA_VISIBLE_DEVICES has them. Empty if no GPU is visible. Errors: OUT_OF_RANGE for a GPU whose
/// place cannot be found.
absl::StatusOr<std::vector<int>> NumaNodesOfGpus(const std::string& root,
                                                 const Environment& environment);

}  // namespace fsdprun
