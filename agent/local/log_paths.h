#pragma once

#include <string>

#include "agent/output/stream_plan.h"
#include "agent/process/keeper_protocol.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// Directories of one agent's run. An empty one is not there.
struct RunDirs {
  /// Logs are in `attempt_<n>/<local rank>/` below it; not there with --log-dir=/dev/null.
  std::string logs;
  /// For output that the console shows and no log keeps; without it such output goes to the console
  /// through memory.
  std::string spool;
  /// For the workers' vitals, in memory if possible; without it they say nothing of themselves.
  std::string vitals;
};

StreamSet SetOf(keeper::Stream stream);

/// The attempt's directory, and the one of a worker with its logs and its error file. Empty if
/// there are none.
std::string AttemptDir(const RunDirs& dirs, const RankAssignment& assignment);
std::string WorkerDir(const RunDirs& dirs, const RankAssignment& assignment, int local_rank);

/// Where a worker's error file is kept; empty if it cannot have one.
std::string ErrorFilePath(const RunDirs& dirs, const RankAssignment& assignment, int local_rank);

/// Where the worker writes it: in the same place, or in the attempt's directory if the worker's own
/// is not made before it starts.
std::string WrittenErrorFilePath(const RunDirs& dirs, const OutputOptions& output,
                                 const RankAssignment& assignment, int local_rank);

/// Where a worker's stream is written to; empty: to no file.
std::string StreamPath(const RunDirs& dirs, const RankAssignment& assignment, int local_rank,
                       keeper::Stream stream, StreamFile file);

/// The page of a worker: of a generation alone, so that none is mistaken for one before. Empty
/// without a directory.
std::string VitalsPath(const RunDirs& dirs, Generation generation, int local_rank);

/// `attempt_<n>/filtered_stdout.log` or `filtered_stderr.log`.
std::string FilteredPath(const RunDirs& dirs, const RankAssignment& assignment,
                         keeper::Stream stream);

}  // namespace fsdprun
