#pragma once

// The checks of one machine. Pure: facts to findings.

#include <vector>

#include "fsdpctl/doctor/checks/facts.h"
#include "fsdpctl/doctor/checks/finding.h"

namespace fsdprun::doctor {

std::vector<Finding> CheckLimits(const LimitFacts& facts);
std::vector<Finding> CheckMemory(const MemoryFacts& facts);
std::vector<Finding> CheckCpus(const CpuFacts& facts);
std::vector<Finding> CheckSharedMemory(const SharedMemoryFacts& facts);
std::vector<Finding> CheckStorage(const StorageFacts& facts);
std::vector<Finding> CheckProcesses(const ProcessFacts& facts);
std::vector<Finding> CheckNetwork(const NetworkFacts& facts);
std::vector<Finding> CheckClock(const ClockFacts& facts);
std::vector<Finding> CheckGpus(const GpuFacts& facts);
std::vector<Finding> CheckNccl(const NcclFacts& facts);
std::vector<Finding> CheckPython(const PythonFacts& facts);
std::vector<Finding> CheckInstallation(const InstallationFacts& facts);

/// Whether an interface has the name that `names`, as of NCCL_SOCKET_IFNAME, asks for: prefixes
/// with commas between them, `=` before exact names, `^` before those to leave out.
bool NamesAnInterface(const std::string& names, const std::vector<InterfaceFacts>& interfaces);

}  // namespace fsdprun::doctor
