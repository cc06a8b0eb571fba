#pragma once

// What the checks need to know of this machine. Each takes seconds at most; see Note [What may
// hang]. No other thread may run when those are called that ask a child process: the folders', the
// GPUs', NCCL's, Python's and the installation's.

#include <cstdint>
#include <string>
#include <vector>

#include "fsdpctl/doctor/checks/facts.h"
#include "launcher/cli/option_table.h"

namespace fsdprun::doctor {

// `root`: what stands before /proc and /sys; empty except in tests.

LimitFacts ReadLimits(const std::string& root);
MemoryFacts ReadMemory(const std::string& root);
CpuFacts ReadCpus(const std::string& root, const Environment& environment);

FolderFacts ReadFolder(const std::string& path);
/// Of one that is made when it is needed, with those above it.
FolderFacts ReadFolderToMake(const std::string& path);
SharedMemoryFacts ReadSharedMemory();
/// `log_dir`: empty if none was named.
StorageFacts ReadStorage(const std::string& log_dir, const Environment& environment);
ProcessFacts ReadProcesses();

struct PortChoice {
  uint16_t port = 29400;
  bool is_given = false;
  /// Whether somebody listens there is not for this process to find out: it will itself.
  bool is_left_alone = false;
};
/// Asks name servers; threads may be left behind that still wait for one.
NetworkFacts ReadNetwork(const PortChoice& port);
std::vector<InterfaceFacts> ReadInterfaces();
ClockFacts ReadClock();

GpuFacts ReadGpus(const std::string& root, const Environment& environment);
NcclFacts ReadNccl(const std::string& root, const Environment& environment);
/// `python`: a name or a path; empty: python3.
PythonFacts ReadPython(const std::string& python, const Environment& environment);

struct TokenChoice {
  std::string token_file;
  bool takes_anybody = false;
};
/// Makes no secret where there is none.
InstallationFacts ReadInstallation(const TokenChoice& token, const Environment& environment);

}  // namespace fsdprun::doctor
