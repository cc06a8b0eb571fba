#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "agent/local/process_use.h"

namespace fsdprun {

/// The worker's process, and which others belong to it.
struct FamilyMembers {
  pid_t worker = 0;
  /// Those of its session and its descendants, without itself.
  std::vector<pid_t> others;
};

/// Finds the others of each worker; a worker leads a session. Looks at every process of the
/// machine: milliseconds, and never blocks for long.
void FindFamilies(std::vector<FamilyMembers>& families);

/// A worker with the processes that it has started: often the program is not the process that was
/// started, but runs below a script or a process that starts others. Thread: one at a time.
class WorkerFamily {
 public:
  explicit WorkerFamily(pid_t worker) : worker_(worker) {}

  pid_t worker() const { return worker_.pid(); }
  /// See FindFamilies(); in place of those before.
  void SetOthers(const std::vector<pid_t>& others);

  /// The process that is meant when one is named: `writer`, who writes the worker's page, if it is
  /// one of the family, else the worker.
  pid_t Speaker(pid_t writer);
  /// Whether the process is who writes the page, as Speaker() was told last.
  bool IsWriter(pid_t pid) const { return pid == writer_; }
  /// Of the family: the CPU that it has used since it was first seen, also by members that have
  /// ended. The state is the worker's, unless that only waits for others that are all in one other
  /// state; the memory is the worker's. None: the worker has ended.
  std::optional<ProcessUse> Read();
  /// Of the speaker alone. None: it has ended.
  std::optional<ProcessUse> ReadSpeaker() const;

 private:
  struct Other {
    ProcessGauge gauge;
    int64_t cpu_ns = 0;
  };

  ProcessGauge worker_;
  int64_t worker_cpu_ns_ = 0;
  std::map<pid_t, Other> others_;
  /// Of all.
  int64_t cpu_ns_ = 0;
  /// Who was asked for last, and who that is, if it is not the worker.
  pid_t writer_ = 0;
  std::optional<ProcessGauge> speaker_;
};

}  // namespace fsdprun
