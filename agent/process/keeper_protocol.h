#pragma once

// Frames between the agent and fsdp-keeper on one AF_UNIX stream: u32 length of what follows, u8
// type, fields in order. Integers are host-endian (one machine), strings are u32 length + bytes.
// Standard library only: the keeper links it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fsdprun::keeper {

inline constexpr uint32_t kProtocolVersion = 9;
/// Bytes of a frame after its length field. Linux allows 6 MiB of arguments and environment at the
/// usual stack limit.
inline constexpr uint32_t kMaxCommandBytes = 8u << 20;
inline constexpr uint32_t kMaxReportBytes = 64u << 10;
inline constexpr uint32_t kFrameHeaderBytes = 4;
/// How much of a failed worker's standard error is part of ExitedReport.
inline constexpr uint32_t kStderrTailBytes = 16u << 10;
static_assert(kStderrTailBytes <= kMaxReportBytes / 2);
inline constexpr int kAllRanks = -1;
/// More workers than any node has accelerators or cores.
inline constexpr int kMaxLocalRank = 4095;
inline constexpr int kMaxCpu = 65535;

/// Exit code of a keeper whose lease is over.
inline constexpr int kExitLeaseOver = 3;
/// The log writer's process is called so.
inline constexpr char kLogWriterName[] = "fsdp-log-writer";

/// Of what an agent leaves to the next, see MemoCommand.
inline constexpr uint32_t kMaxMemoBytes = 32u << 10;
static_assert(kMaxMemoBytes <= kMaxReportBytes / 2);

enum class Stream : uint8_t { kStdout = 0, kStderr = 1 };

// Note [Lives]
// A slot of the node (its local rank) holds one worker after the other. Each is a life: the agent
// numbers them, in rising order and above 0, and every frame about a worker names its life. A
// command about a life that is over does nothing, and a report about one cannot be taken for its
// successor's. An agent gives all workers of a generation the generation's number.

// --- Commands, agent -> keeper
struct SpawnCommand {
  int32_t local_rank = 0;
  std::vector<std::string> argv;
  /// NAME=value; the whole environment.
  std::vector<std::string> environment;
  std::string stdout_path;
  std::string stderr_path;
  /// The file is made with the first byte of output; otherwise before the worker starts.
  bool opens_stdout_late = false;
  bool opens_stderr_late = false;
  bool wants_control_fd = false;
  /// Soft limit of open descriptors; 0: the keeper's own.
  uint64_t descriptor_limit = 0;
  /// The CPUs that it may run on; empty: those of the keeper.
  std::vector<int32_t> cpus;
  /// Its standard input is the keeper's; otherwise /dev/null.
  bool reads_stdin = true;
  uint64_t life = 0;
};
struct SignalCommand {
  int32_t local_rank = kAllRanks;
  int32_t signal = 0;
  bool group = false;
  /// 0: whichever there is.
  uint64_t life = 0;
};
/// Signals one process of the job, if it still is the one that started at `start_time_ticks`; any
/// other is refused with a note.
struct SignalProcessCommand {
  int32_t pid = 0;
  uint64_t start_time_ticks = 0;
  int32_t signal = 0;
};
struct ControlLineCommand {
  int32_t local_rank = 0;
  std::string line;
  /// 0: whichever there is.
  uint64_t life = 0;
};
/// Whatever lives; `life` is for the answer.
struct KillAllCommand {
  uint64_t life = 0;
};
struct ShutdownCommand {};
/// Sets how long the keeper goes on without hearing from its agent; 0: for ever. Every command is a
/// sign of life, this one says nothing else when repeated.
struct LeaseCommand {
  uint32_t lease_ms = 0;
};

// Note [A keeper that waits for its agent]
// A keeper with a named socket outlives its agent for a stated grace. Another agent that connects
// and says AttachCommand gets the hello, then the memo of the last agent, how far output was shown,
// and again all that was reported of the present life: sizes of logs, output that is in no log,
// starts, exits, the end of all. Exits are the keeper's to remember: it does not know which of them
// an agent has made use of before it died, and repeats them all. A start that is ordered again is
// none: the slot has had that life. Whoever connects while there is an agent, is of another user,
// or says anything else, is disconnected.

/// The first word of an agent that connects to the keeper's named socket.
struct AttachCommand {
  uint32_t version = kProtocolVersion;
};
/// What the next agent must know; replaces the last one. Nothing to the keeper.
struct MemoCommand {
  std::string memo;
};
/// So much of the log file has reached its reader.
struct ShownCommand {
  int32_t local_rank = 0;
  Stream stream = Stream::kStdout;
  uint64_t offset = 0;
  uint64_t life = 0;
};
using Command = std::variant<SpawnCommand, SignalCommand, SignalProcessCommand, ControlLineCommand,
                             KillAllCommand, ShutdownCommand, LeaseCommand, AttachCommand,
                             MemoCommand, ShownCommand>;

// --- Reports, keeper -> agent
struct HelloReport {
  int32_t pid = 0;
  uint32_t version = kProtocolVersion;
};
struct SpawnedReport {
  int32_t local_rank = 0;
  int32_t pid = 0;
  uint64_t life = 0;
};
/// Nothing was started. `attempted` is a verb phrase ("run", "start a session for", ...), `path`
/// its object.
struct SpawnFailedReport {
  int32_t local_rank = 0;
  int32_t error = 0;
  std::string attempted;
  std::string path;
  uint64_t life = 0;
};
struct ExitedReport {
  int32_t local_rank = 0;
  int32_t pid = 0;
  /// Exit code 0..255 when `signal` is 0.
  int32_t exit_code = 0;
  int32_t signal = 0;
  bool dumped_core = false;
  /// CLOCK_MONOTONIC when the death was seen; keeper and agent share the clock.
  int64_t seen_ns = 0;
  /// The last kStderrTailBytes of standard error, from memory: present even if the log file could
  /// not be written. Empty if the worker succeeded or its standard error does not go through the
  /// keeper.
  std::string stderr_tail;
  /// Earlier output is missing from stderr_tail.
  bool stderr_is_cut = false;
  uint64_t life = 0;
};
struct LogGrewReport {
  int32_t local_rank = 0;
  Stream stream = Stream::kStdout;
  uint64_t size_bytes = 0;
  uint64_t life = 0;
};
struct LogDataReport {
  int32_t local_rank = 0;
  Stream stream = Stream::kStdout;
  std::string data;
  uint64_t life = 0;
};
struct LogDegradedReport {
  int32_t local_rank = 0;
  Stream stream = Stream::kStdout;
  /// errno; ETIMEDOUT and EPIPE also stand for a log writer that hangs or died.
  int32_t error = 0;
  std::string path;
  /// For people.
  std::string why;
  uint64_t life = 0;
};
/// A log writer has been started. It is no descendant that must be gone, and may be impossible to
/// kill; see Note [Log writer].
struct LogWriterReport {
  int32_t pid = 0;
};
struct ControlRecordReport {
  int32_t local_rank = 0;
  std::string line;
  uint64_t life = 0;
};
struct NoteReport {
  int32_t local_rank = kAllRanks;
  std::string text;
};
/// No process of the job is left. `life`: the latest that was started or that KillAllCommand named.
struct AllGoneReport {
  uint64_t life = 0;
};
/// To an agent that attaches, right behind the hello: the last agent's memo, empty if there is
/// none.
struct MemoReport {
  std::string memo;
};
/// To an agent that attaches, before the log's size.
struct ShownReport {
  int32_t local_rank = 0;
  Stream stream = Stream::kStdout;
  uint64_t offset = 0;
  uint64_t life = 0;
};
using Report =
    std::variant<HelloReport, SpawnedReport, SpawnFailedReport, ExitedReport, LogGrewReport,
                 LogDataReport, LogDegradedReport, LogWriterReport, ControlRecordReport, NoteReport,
                 AllGoneReport, MemoReport, ShownReport>;

/// Appends one whole frame (length, type, fields) to `out`.
void AppendCommand(const Command& command, std::string& out);
/// The same for reports; the view forms exist so that the keeper copies payloads once and allocates
/// nothing.
void AppendReport(const Report& report, std::string& out);
void AppendLogData(int local_rank, uint64_t life, Stream stream, std::string_view data,
                   std::string& out);
void AppendControlRecord(int local_rank, uint64_t life, std::string_view line, std::string& out);

/// Output, and what workers have said: reports that nothing else can tell again.
bool IsOutput(std::string_view frame);

/// Decodes one frame without its length field. Nothing for unknown types, truncated or over-long
/// fields, trailing bytes or values out of range: the peer is broken and the connection must end.
std::optional<Command> DecodeCommand(std::string_view frame);
std::optional<Report> DecodeReport(std::string_view frame);

/// State of the frame at the front of a stream buffer.
enum class FrameState { kComplete, kIncomplete, kInvalid };
/// Finds the first frame in `buffer`. On kComplete `frame` is its content; it occupies
/// kFrameHeaderBytes + frame.size().
FrameState NextFrame(std::string_view buffer, uint32_t max_bytes, std::string_view& frame);

}  // namespace fsdprun::keeper
