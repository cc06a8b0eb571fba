#pragma once

// The contract between the agent side (launcher, agent, keeper) and a worker process, written down
// once. Standard library only: it is linked into processes with gRPC and into processes with
// libtorch. A worker in any language can speak it: environment variables, one inherited socket with
// JSON lines, a JSON error file, a shared page (worker_vitals.h) and exit codes. Every part but
// RANK/WORLD_SIZE may be ignored by a worker.

#include <string_view>

namespace fsdprun::contract {

/// Version of the JSON records on the control socket; the `v` field of every record.
inline constexpr int kControlVersion = 1;

// --- Environment: torchrun's names, with torchrun's meanings
inline constexpr char kEnvRank[] = "RANK";
inline constexpr char kEnvLocalRank[] = "LOCAL_RANK";
inline constexpr char kEnvWorldSize[] = "WORLD_SIZE";
inline constexpr char kEnvLocalWorldSize[] = "LOCAL_WORLD_SIZE";
inline constexpr char kEnvGroupRank[] = "GROUP_RANK";
inline constexpr char kEnvGroupWorldSize[] = "GROUP_WORLD_SIZE";
inline constexpr char kEnvRoleRank[] = "ROLE_RANK";
inline constexpr char kEnvRoleWorldSize[] = "ROLE_WORLD_SIZE";
inline constexpr char kEnvRoleName[] = "ROLE_NAME";
inline constexpr char kEnvMasterAddr[] = "MASTER_ADDR";
inline constexpr char kEnvMasterPort[] = "MASTER_PORT";
inline constexpr char kEnvRestartCount[] = "TORCHELASTIC_RESTART_COUNT";
inline constexpr char kEnvMaxRestarts[] = "TORCHELASTIC_MAX_RESTARTS";
inline constexpr char kEnvRunId[] = "TORCHELASTIC_RUN_ID";
inline constexpr char kEnvUseAgentStore[] = "TORCHELASTIC_USE_AGENT_STORE";
inline constexpr char kEnvErrorFile[] = "TORCHELASTIC_ERROR_FILE";
inline constexpr char kEnvNcclAsyncErrorHandling[] = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
inline constexpr char kEnvOmpNumThreads[] = "OMP_NUM_THREADS";
/// FIFO of torch.distributed.elastic.timer's FileTimerClient; only with the watchdog.
inline constexpr char kEnvTimerFile[] = "TORCHELASTIC_TIMER_FILE";

// --- Environment: ours
/// Decimal generation number of the world this worker belongs to (fencing token; rises by one per
/// formed world).
inline constexpr char kEnvGeneration[] = "FSDPRUN_GENERATION";
/// Number of an inherited, connected AF_UNIX SOCK_STREAM descriptor; JSON lines in both directions.
/// Absent under torchrun. A worker that does not know it simply leaves it open.
inline constexpr char kEnvControlFd[] = "FSDPRUN_CONTROL_FD";
/// Id shared by all processes of one job (also the prefix of anything a worker must name
/// machine-wide).
inline constexpr char kEnvJobId[] = "FSDPRUN_JOB_ID";
/// Path of this worker's page, in which it says how it is (worker_vitals.h); absent: nobody reads.
inline constexpr char kEnvVitalsFile[] = "FSDPRUN_VITALS_FILE";
/// "terminal" when the launcher draws the progress line from control records; workers then print no
/// progress of their own. "plain" or absent: workers print plain progress lines to their standard
/// output.
inline constexpr char kEnvProgressView[] = "FSDPRUN_PROGRESS_VIEW";

// clang-format off
// --- Control records: one JSON object per line, at most kMaxRecordBytes
// Worker -> agent; the agent acts on "progress" and needs none of the others:
// {"v":1,"type":"hello","rank":R,"generation":G,"pid":P}
// {"v":1,"type":"progress","step":S,"total":T,"text":"loss 2.31 ..."}   text: rank 0 only
// {"v":1,"type":"checkpoint","step":S,"path":"..."}                     a checkpoint was committed
// {"v":1,"type":"checkpoint","step":S,"error":"..."}                    the one asked for was not
// {"v":1,"type":"done"}                                                 leaving; exit 0 follows
// Agent -> worker:
// {"v":1,"type":"stop","grace_ms":N}                                    finish, save, exit 0
// {"v":1,"type":"save"}                  save a checkpoint after this step, and go on; ranks get it
//                                        at different steps, and have to agree on one
// {"v":1,"type":"notice","signal":N}     a signal that is passed on while the job goes on follows
// Unknown types and unknown fields are ignored by both sides.
// clang-format on
inline constexpr std::string_view kRecordHello = "hello";
inline constexpr std::string_view kRecordProgress = "progress";
inline constexpr std::string_view kRecordCheckpoint = "checkpoint";
inline constexpr std::string_view kRecordDone = "done";
inline constexpr std::string_view kRecordStop = "stop";
inline constexpr std::string_view kRecordNotice = "notice";
/// Sent to all workers of a job. They get it at different times, so in a world of several ranks
/// that of rank 0 decides after which step all of them save.
inline constexpr std::string_view kRecordSave = "save";
inline constexpr int kMaxRecordBytes = 8192;

// --- Exit codes of a worker
inline constexpr int kExitOk = 0;
/// Failed; another try may succeed, so it is charged to the restart budget.
inline constexpr int kExitFailure = 1;
/// Command line or configuration cannot work however often it is tried (EX_CONFIG): the job ends at
/// once.
inline constexpr int kExitConfig = 78;
/// Failed only because another worker ended or could not be reached: the cause is elsewhere.
/// Charged like kExitFailure.
inline constexpr int kExitPeerLost = 79;
/// As shells have it: 128 + n stands for death by signal n.
inline constexpr int kSignalExitBase = 128;

// --- Error file (TORCHELASTIC_ERROR_FILE), torchelastic's schema
// clang-format off
// {"message": {"message": "<Type>: <text>",
//              "extraInfo": {"py_callstack": "<stack>", "timestamp": "<unix seconds>"}}}
// clang-format on
// Written to a temporary name and renamed, so that a reader never sees half of it.

/// Type of the error of a worker that was killed because one of its timers had expired.
inline constexpr char kWatchdogError[] = "WatchdogTimeout";

/// True for the exit codes after which a restart cannot help.
bool IsPermanentExit(int exit_code);

}  // namespace fsdprun::contract
