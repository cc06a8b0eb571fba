#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::worker {

/// What a GPU does at most, in floating-point operations per second: dense matrices of bfloat16
/// (float16 where it has none), as the vendor's data sheet says; nullopt for a name that is not in
/// the table. `name`: as the driver says, such as "NVIDIA H100 80GB HBM3". Pure.
std::optional<double> PeakFlopsOf(std::string_view name);

/// The names of this machine's GPUs, as the NVIDIA driver tells them in `folder`, in no particular
/// order. Empty where there is no such driver.
std::vector<std::string> GpuNames(const std::string& folder = "/proc/driver/nvidia/gpus");

/// Of any GPU of this machine; nullopt if they differ, or one is not known.
std::optional<double> PeakFlopsOfMachine(const std::vector<std::string>& names);

}  // namespace fsdprun::worker
