#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/local/log_paths.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// CPUs that this process may use (affinity and cpusets included) and GPUs that are visible.
MachineFacts DetectMachine(const Environment& environment);

/// Of this machine, whoever may use them: CPUs that are threads of one core count once. 0: not
/// known. `root`: empty, or a folder in place of / for tests.
int CountPhysicalCores(const std::string& root);

/// The environment of this process. Read once, in main.
Environment ReadEnvironment(char** environ_pointer);

/// Path of the running program. Errors: INTERNAL if /proc cannot be read.
absl::StatusOr<std::string> OwnProgram();

/// With --virtual-local-rank each worker needs a device of its own in CUDA_VISIBLE_DEVICES, if that
/// is set. Errors: FAILED_PRECONDITION. Pure.
absl::Status CheckVisibleDevices(const LaunchPlan& plan, const Environment& environment);

/// Checks that the program of `plan` can be started here, by every worker, and returns the
/// interpreter to use: none (empty) for executables, and for an ELF file that was given as a
/// script, which Python could not read. Warns of a shell script that Python is to run. Errors:
/// NOT_FOUND or PERMISSION_DENIED naming the path and what to do.
absl::StatusOr<std::string> CheckProgram(const LaunchPlan& plan, const Environment& environment);

/// kExecutable also where a script is given, and every worker's is an ELF file that is there. Warns
/// of nothing.
ProgramKind KindStarted(const LaunchPlan& plan);

/// Fresh directories for one run, mode 0700: `<log_dir>/<run id>_<8 random>` for its logs, or
/// `$TMPDIR/fsdprun_<run id>_<8 random>` when no log_dir was given, and none with /dev/null; and
/// `$TMPDIR/fsdprun_spool_<run id>_<8 random>` if something is shown that no log keeps, and
/// `fsdprun_vitals_<run id>_<8 random>` in /dev/shm, else in $TMPDIR, if these two can be made.
/// Errors: name the directory and the reason.
absl::StatusOr<RunDirs> MakeRunDirs(const LaunchPlan& plan, const std::string& run_id,
                                    const Environment& environment);

/// `<base>/<prefix><8 random>`, mode 0700; folders above it are made too. Errors: UNAVAILABLE.
absl::StatusOr<std::string> MakeFreshDir(const std::string& base, const std::string& prefix);

}  // namespace fsdprun
