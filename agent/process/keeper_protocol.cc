#include "agent/process/keeper_protocol.h"

#include <cstring>
#include <utility>

#include "agent/process/frame_codec.h"

namespace fsdprun::keeper {
namespace {

enum class FrameType : uint8_t {
  kSpawn = 1,
  kSignal = 2,
  kControlLine = 3,
  kKillAll = 4,
  kShutdown = 5,
  kLease = 6,
  kSignalProcess = 7,
  kAttach = 8,
  kMemo = 9,
  kShown = 10,
  kHello = 64,
  kSpawned = 65,
  kSpawnFailed = 66,
  kExited = 67,
  kLogGrew = 68,
  kLogData = 69,
  kLogDegraded = 70,
  kControlRecord = 71,
  kNote = 72,
  kAllGone = 73,
  kLogWriter = 74,
  kKeptMemo = 75,
  kShownBefore = 76,
};

FrameWriter WriteFrame(FrameType type, std::string& out) {
  return {static_cast<uint8_t>(type), out};
}

bool HasZeroByte(const std::vector<std::string>& list) {
  for (const std::string& text : list) {
    if (text.find('\0') != std::string::npos) {
      return true;
    }
  }
  return false;
}

std::optional<Command> DecodeSpawn(FrameReader& reader) {
  SpawnCommand spawn;
  spawn.local_rank = reader.LocalRank(false);
  spawn.life = reader.Int<uint64_t>();
  spawn.argv = reader.List();
  spawn.environment = reader.List();
  spawn.stdout_path = reader.Text();
  spawn.stderr_path = reader.Text();
  spawn.opens_stdout_late = reader.Flag();
  spawn.opens_stderr_late = reader.Flag();
  spawn.wants_control_fd = reader.Flag();
  spawn.descriptor_limit = reader.Int<uint64_t>();
  spawn.cpus = reader.Ints(kMaxCpu);
  spawn.reads_stdin = reader.Flag();
  // These become C strings.
  if (!reader.Done() || spawn.argv.empty() || HasZeroByte(spawn.argv) ||
      HasZeroByte(spawn.environment) || HasZeroByte({spawn.stdout_path, spawn.stderr_path})) {
    return std::nullopt;
  }
  return spawn;
}

template <class Message, class Result>
std::optional<Result> IfDone(const FrameReader& reader, Message message) {
  return reader.Done() ? std::optional<Result>(std::move(message)) : std::nullopt;
}

struct CommandAppender {
  std::string& out;
  void operator()(const SpawnCommand& c) const {
    WriteFrame(FrameType::kSpawn, out)
        .Int(c.local_rank)
        .Int(c.life)
        .List(c.argv)
        .List(c.environment)
        .Text(c.stdout_path)
        .Text(c.stderr_path)
        .Int(static_cast<uint8_t>(c.opens_stdout_late))
        .Int(static_cast<uint8_t>(c.opens_stderr_late))
        .Int(static_cast<uint8_t>(c.wants_control_fd))
        .Int(c.descriptor_limit)
        .Ints(c.cpus)
        .Int(static_cast<uint8_t>(c.reads_stdin));
  }
  void operator()(const SignalCommand& c) const {
    WriteFrame(FrameType::kSignal, out)
        .Int(c.local_rank)
        .Int(c.life)
        .Int(c.signal)
        .Int(static_cast<uint8_t>(c.group));
  }
  void operator()(const SignalProcessCommand& c) const {
    WriteFrame(FrameType::kSignalProcess, out).Int(c.pid).Int(c.start_time_ticks).Int(c.signal);
  }
  void operator()(const ControlLineCommand& c) const {
    WriteFrame(FrameType::kControlLine, out).Int(c.local_rank).Int(c.life).Text(c.line);
  }
  void operator()(const KillAllCommand& c) const {
    WriteFrame(FrameType::kKillAll, out).Int(c.life);
  }
  void operator()(const ShutdownCommand&) const { WriteFrame(FrameType::kShutdown, out); }
  void operator()(const LeaseCommand& c) const {
    WriteFrame(FrameType::kLease, out).Int(c.lease_ms);
  }
  void operator()(const AttachCommand& c) const {
    WriteFrame(FrameType::kAttach, out).Int(c.version);
  }
  void operator()(const MemoCommand& c) const { WriteFrame(FrameType::kMemo, out).Text(c.memo); }
  void operator()(const ShownCommand& c) const {
    WriteFrame(FrameType::kShown, out).Int(c.local_rank).Int(c.life).Int(c.stream).Int(c.offset);
  }
};

struct ReportAppender {
  std::string& out;
  void operator()(const HelloReport& r) const {
    WriteFrame(FrameType::kHello, out).Int(r.pid).Int(r.version);
  }
  void operator()(const SpawnedReport& r) const {
    WriteFrame(FrameType::kSpawned, out).Int(r.local_rank).Int(r.life).Int(r.pid);
  }
  void operator()(const SpawnFailedReport& r) const {
    WriteFrame(FrameType::kSpawnFailed, out)
        .Int(r.local_rank)
        .Int(r.life)
        .Int(r.error)
        .Text(r.attempted)
        .Text(r.path);
  }
  void operator()(const ExitedReport& r) const {
    WriteFrame(FrameType::kExited, out)
        .Int(r.local_rank)
        .Int(r.life)
        .Int(r.pid)
        .Int(r.exit_code)
        .Int(r.signal)
        .Int(static_cast<uint8_t>(r.dumped_core))
        .Int(r.seen_ns)
        .Text(r.stderr_tail)
        .Int(static_cast<uint8_t>(r.stderr_is_cut));
  }
  void operator()(const LogGrewReport& r) const {
    WriteFrame(FrameType::kLogGrew, out)
        .Int(r.local_rank)
        .Int(r.life)
        .Int(r.stream)
        .Int(r.size_bytes);
  }
  void operator()(const LogDataReport& r) const {
    AppendLogData(r.local_rank, r.life, r.stream, r.data, out);
  }
  void operator()(const LogDegradedReport& r) const {
    WriteFrame(FrameType::kLogDegraded, out)
        .Int(r.local_rank)
        .Int(r.life)
        .Int(r.stream)
        .Int(r.error)
        .Text(r.path)
        .Text(r.why);
  }
  void operator()(const LogWriterReport& r) const {
    WriteFrame(FrameType::kLogWriter, out).Int(r.pid);
  }
  void operator()(const ControlRecordReport& r) const {
    AppendControlRecord(r.local_rank, r.life, r.line, out);
  }
  void operator()(const NoteReport& r) const {
    WriteFrame(FrameType::kNote, out).Int(r.local_rank).Text(r.text);
  }
  void operator()(const AllGoneReport& r) const {
    WriteFrame(FrameType::kAllGone, out).Int(r.life);
  }
  void operator()(const MemoReport& r) const { WriteFrame(FrameType::kKeptMemo, out).Text(r.memo); }
  void operator()(const ShownReport& r) const {
    WriteFrame(FrameType::kShownBefore, out)
        .Int(r.local_rank)
        .Int(r.life)
        .Int(r.stream)
        .Int(r.offset);
  }
};

bool IsSignal(int32_t signal) { return signal > 0 && signal <= 64; }

std::optional<Command> DecodeSignal(FrameReader& reader) {
  SignalCommand c;
  c.local_rank = reader.LocalRank(true);
  c.life = reader.Int<uint64_t>();
  c.signal = reader.Int<int32_t>();
  c.group = reader.Flag();
  return IsSignal(c.signal) ? IfDone<SignalCommand, Command>(reader, c) : std::nullopt;
}

/// Of a command or a report.
template <class Message, class Result>
std::optional<Result> DecodeShown(FrameReader& reader) {
  Message m;
  m.local_rank = reader.LocalRank(false);
  m.life = reader.Int<uint64_t>();
  m.stream = reader.StreamField();
  m.offset = reader.Int<uint64_t>();
  return IfDone<Message, Result>(reader, m);
}

std::optional<Command> DecodeMemo(FrameReader& reader) {
  MemoCommand c{reader.Text()};
  const bool fits = c.memo.size() <= kMaxMemoBytes;
  return fits ? IfDone<MemoCommand, Command>(reader, std::move(c)) : std::nullopt;
}

std::optional<Command> DecodeSignalProcess(FrameReader& reader) {
  SignalProcessCommand c;
  c.pid = reader.Int<int32_t>();
  c.start_time_ticks = reader.Int<uint64_t>();
  c.signal = reader.Int<int32_t>();
  // 0 and negative numbers stand for groups.
  const bool is_valid = c.pid > 0 && IsSignal(c.signal);
  return is_valid ? IfDone<SignalProcessCommand, Command>(reader, c) : std::nullopt;
}

template <class Message>
std::optional<Report> Finish(const FrameReader& reader, Message message) {
  return IfDone<Message, Report>(reader, std::move(message));
}

std::optional<Report> DecodeExited(FrameReader& reader) {
  ExitedReport r;
  r.local_rank = reader.LocalRank(false);
  r.life = reader.Int<uint64_t>();
  r.pid = reader.Int<int32_t>();
  r.exit_code = reader.Int<int32_t>();
  r.signal = reader.Int<int32_t>();
  r.dumped_core = reader.Flag();
  r.seen_ns = reader.Int<int64_t>();
  r.stderr_tail = reader.Text();
  r.stderr_is_cut = reader.Flag();
  return Finish(reader, std::move(r));
}

std::optional<Report> DecodeProcessReport(FrameType type, FrameReader& reader) {
  switch (type) {
    case FrameType::kHello: {
      HelloReport r;
      r.pid = reader.Int<int32_t>();
      r.version = reader.Int<uint32_t>();
      return Finish(reader, r);
    }
    case FrameType::kSpawned: {
      SpawnedReport r;
      r.local_rank = reader.LocalRank(false);
      r.life = reader.Int<uint64_t>();
      r.pid = reader.Int<int32_t>();
      return Finish(reader, r);
    }
    case FrameType::kSpawnFailed: {
      SpawnFailedReport r;
      r.local_rank = reader.LocalRank(false);
      r.life = reader.Int<uint64_t>();
      r.error = reader.Int<int32_t>();
      r.attempted = reader.Text();
      r.path = reader.Text();
      return Finish(reader, std::move(r));
    }
    case FrameType::kExited:
      return DecodeExited(reader);
    case FrameType::kLogWriter:
      return Finish(reader, LogWriterReport{reader.Int<int32_t>()});
    case FrameType::kAllGone:
      return Finish(reader, AllGoneReport{reader.Int<uint64_t>()});
    case FrameType::kKeptMemo:
      return Finish(reader, MemoReport{reader.Text()});
    case FrameType::kShownBefore:
      return DecodeShown<ShownReport, Report>(reader);
    default:
      return std::nullopt;
  }
}

std::optional<Report> DecodeOutputReport(FrameType type, FrameReader& reader) {
  const int32_t rank = reader.LocalRank(type == FrameType::kNote);
  const uint64_t life = type == FrameType::kNote ? 0 : reader.Int<uint64_t>();
  switch (type) {
    case FrameType::kLogGrew: {
      LogGrewReport r{.local_rank = rank, .stream = reader.StreamField()};
      r.size_bytes = reader.Int<uint64_t>();
      r.life = life;
      return Finish(reader, r);
    }
    case FrameType::kLogData: {
      LogDataReport r{.local_rank = rank, .stream = reader.StreamField()};
      r.data = reader.Text();
      r.life = life;
      return Finish(reader, std::move(r));
    }
    case FrameType::kLogDegraded: {
      LogDegradedReport r{.local_rank = rank, .stream = reader.StreamField()};
      r.error = reader.Int<int32_t>();
      r.path = reader.Text();
      r.why = reader.Text();
      r.life = life;
      return Finish(reader, std::move(r));
    }
    case FrameType::kControlRecord:
      return Finish(reader, ControlRecordReport{rank, reader.Text(), life});
    case FrameType::kNote:
      return Finish(reader, NoteReport{rank, reader.Text()});
    default:
      return std::nullopt;
  }
}

}  // namespace

void AppendCommand(const Command& command, std::string& out) {
  std::visit(CommandAppender{out}, command);
}

void AppendReport(const Report& report, std::string& out) {
  std::visit(ReportAppender{out}, report);
}

void AppendLogData(int local_rank, uint64_t life, Stream stream, std::string_view data,
                   std::string& out) {
  WriteFrame(FrameType::kLogData, out)
      .Int(static_cast<int32_t>(local_rank))
      .Int(life)
      .Int(stream)
      .Text(data);
}

void AppendControlRecord(int local_rank, uint64_t life, std::string_view line, std::string& out) {
  WriteFrame(FrameType::kControlRecord, out)
      .Int(static_cast<int32_t>(local_rank))
      .Int(life)
      .Text(line);
}

bool IsOutput(std::string_view frame) {
  FrameReader reader(frame);
  switch (static_cast<FrameType>(reader.Int<uint8_t>())) {
    case FrameType::kLogData:
    case FrameType::kControlRecord:
    case FrameType::kNote:
      return true;
    default:
      return false;
  }
}

std::optional<Command> DecodeCommand(std::string_view frame) {
  FrameReader reader(frame);
  switch (static_cast<FrameType>(reader.Int<uint8_t>())) {
    case FrameType::kSpawn:
      return DecodeSpawn(reader);
    case FrameType::kSignal:
      return DecodeSignal(reader);
    case FrameType::kSignalProcess:
      return DecodeSignalProcess(reader);
    case FrameType::kControlLine: {
      ControlLineCommand c;
      c.local_rank = reader.LocalRank(false);
      c.life = reader.Int<uint64_t>();
      c.line = reader.Text();
      return IfDone<ControlLineCommand, Command>(reader, std::move(c));
    }
    case FrameType::kKillAll:
      return IfDone<KillAllCommand, Command>(reader, {reader.Int<uint64_t>()});
    case FrameType::kShutdown:
      return IfDone<ShutdownCommand, Command>(reader, {});
    case FrameType::kLease:
      return IfDone<LeaseCommand, Command>(reader, {reader.Int<uint32_t>()});
    case FrameType::kAttach:
      return IfDone<AttachCommand, Command>(reader, {reader.Int<uint32_t>()});
    case FrameType::kMemo:
      return DecodeMemo(reader);
    case FrameType::kShown:
      return DecodeShown<ShownCommand, Command>(reader);
    default:
      return std::nullopt;
  }
}

std::optional<Report> DecodeReport(std::string_view frame) {
  FrameReader reader(frame);
  const auto type = static_cast<FrameType>(reader.Int<uint8_t>());
  switch (type) {
    case FrameType::kLogGrew:
    case FrameType::kLogData:
    case FrameType::kLogDegraded:
    case FrameType::kControlRecord:
    case FrameType::kNote:
      return DecodeOutputReport(type, reader);
    default:
      return DecodeProcessReport(type, reader);
  }
}

FrameState NextFrame(std::string_view buffer, uint32_t max_bytes, std::string_view& frame) {
  if (buffer.size() < kFrameHeaderBytes) {
    return FrameState::kIncomplete;
  }
  uint32_t length = 0;
  std::memcpy(&length, buffer.data(), sizeof(length));
  if (length == 0 || length > max_bytes) {
    return FrameState::kInvalid;
  }
  if (buffer.size() - kFrameHeaderBytes < length) {
    return FrameState::kIncomplete;
  }
  frame = buffer.substr(kFrameHeaderBytes, length);
  return FrameState::kComplete;
}

}  // namespace fsdprun::keeper
