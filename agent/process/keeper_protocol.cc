#include "agent/process/keeper_protocol.h"

#include <cstring>
#include <utility>

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
};

/// Appends one frame to a string; the length is filled in by the destructor.
class FrameWriter {
 public:
  FrameWriter(FrameType type, std::string& out) : out_(out), start_(out.size()) {
    out_.append(kFrameHeaderBytes, '\0');
    Int(static_cast<uint8_t>(type));
  }
  ~FrameWriter() {
    const auto length = static_cast<uint32_t>(out_.size() - start_ - kFrameHeaderBytes);
    std::memcpy(out_.data() + start_, &length, sizeof(length));
  }
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  template <class Integer>
  FrameWriter& Int(Integer value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  FrameWriter& Text(std::string_view text) {
    Int(static_cast<uint32_t>(text.size()));
    out_.append(text);
    return *this;
  }
  FrameWriter& List(const std::vector<std::string>& list) {
    Int(static_cast<uint32_t>(list.size()));
    for (const std::string& text : list) {
      Text(text);
    }
    return *this;
  }

 private:
  std::string& out_;
  const size_t start_;
};

/// Reads fields in order. After the first field that does not fit, everything reads as zero and
/// Done() is false.
class FrameReader {
 public:
  explicit FrameReader(std::string_view frame) : left_(frame) {}

  template <class Integer>
  Integer Int() {
    Integer value{};
    if (left_.size() < sizeof(value)) {
      Break();
      return value;
    }
    std::memcpy(&value, left_.data(), sizeof(value));
    left_.remove_prefix(sizeof(value));
    return value;
  }
  bool Flag() {
    const auto value = Int<uint8_t>();
    if (value > 1) {
      Break();
    }
    return value == 1;
  }
  Stream StreamField() { return Flag() ? Stream::kStderr : Stream::kStdout; }
  std::string Text() {
    const auto size = Int<uint32_t>();
    if (left_.size() < size) {
      Break();
      return "";
    }
    std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  std::vector<std::string> List() {
    const auto count = Int<uint32_t>();
    // Each element takes at least its length field, so a huge count cannot reserve or loop.
    if (left_.size() / sizeof(uint32_t) < count) {
      Break();
      return {};
    }
    std::vector<std::string> list;
    list.reserve(count);
    for (uint32_t i = 0; i < count && !broken_; ++i) {
      list.push_back(Text());
    }
    return list;
  }
  /// A slot, or kAllRanks where the command allows it.
  int32_t LocalRank(bool may_be_all) {
    const auto rank = Int<int32_t>();
    if (rank < (may_be_all ? kAllRanks : 0) || rank > kMaxLocalRank) {
      Break();
    }
    return rank;
  }
  bool Done() const { return !broken_ && left_.empty(); }

 private:
  void Break() {
    broken_ = true;
    left_ = {};
  }

  std::string_view left_;
  bool broken_ = false;
};

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
  spawn.argv = reader.List();
  spawn.environment = reader.List();
  spawn.stdout_path = reader.Text();
  spawn.stderr_path = reader.Text();
  spawn.wants_control_fd = reader.Flag();
  spawn.descriptor_limit = reader.Int<uint64_t>();
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
    FrameWriter(FrameType::kSpawn, out)
        .Int(c.local_rank)
        .List(c.argv)
        .List(c.environment)
        .Text(c.stdout_path)
        .Text(c.stderr_path)
        .Int(static_cast<uint8_t>(c.wants_control_fd))
        .Int(c.descriptor_limit);
  }
  void operator()(const SignalCommand& c) const {
    FrameWriter(FrameType::kSignal, out)
        .Int(c.local_rank)
        .Int(c.signal)
        .Int(static_cast<uint8_t>(c.group));
  }
  void operator()(const SignalProcessCommand& c) const {
    FrameWriter(FrameType::kSignalProcess, out).Int(c.pid).Int(c.start_time_ticks).Int(c.signal);
  }
  void operator()(const ControlLineCommand& c) const {
    FrameWriter(FrameType::kControlLine, out).Int(c.local_rank).Text(c.line);
  }
  void operator()(const KillAllCommand&) const { FrameWriter(FrameType::kKillAll, out); }
  void operator()(const ShutdownCommand&) const { FrameWriter(FrameType::kShutdown, out); }
  void operator()(const LeaseCommand& c) const {
    FrameWriter(FrameType::kLease, out).Int(c.lease_ms);
  }
};

struct ReportAppender {
  std::string& out;
  void operator()(const HelloReport& r) const {
    FrameWriter(FrameType::kHello, out).Int(r.pid).Int(r.version);
  }
  void operator()(const SpawnedReport& r) const {
    FrameWriter(FrameType::kSpawned, out).Int(r.local_rank).Int(r.pid);
  }
  void operator()(const SpawnFailedReport& r) const {
    FrameWriter(FrameType::kSpawnFailed, out)
        .Int(r.local_rank)
        .Int(r.error)
        .Text(r.attempted)
        .Text(r.path);
  }
  void operator()(const ExitedReport& r) const {
    FrameWriter(FrameType::kExited, out)
        .Int(r.local_rank)
        .Int(r.pid)
        .Int(r.exit_code)
        .Int(r.signal)
        .Int(static_cast<uint8_t>(r.dumped_core))
        .Int(r.seen_ns)
        .Text(r.stderr_tail)
        .Int(static_cast<uint8_t>(r.stderr_is_cut));
  }
  void operator()(const LogGrewReport& r) const {
    FrameWriter(FrameType::kLogGrew, out).Int(r.local_rank).Int(r.stream).Int(r.size_bytes);
  }
  void operator()(const LogDataReport& r) const {
    AppendLogData(r.local_rank, r.stream, r.data, out);
  }
  void operator()(const LogDegradedReport& r) const {
    FrameWriter(FrameType::kLogDegraded, out)
        .Int(r.local_rank)
        .Int(r.stream)
        .Int(r.error)
        .Text(r.path)
        .Text(r.why);
  }
  void operator()(const LogWriterReport& r) const {
    FrameWriter(FrameType::kLogWriter, out).Int(r.pid);
  }
  void operator()(const ControlRecordReport& r) const {
    AppendControlRecord(r.local_rank, r.line, out);
  }
  void operator()(const NoteReport& r) const {
    FrameWriter(FrameType::kNote, out).Int(r.local_rank).Text(r.text);
  }
  void operator()(const AllGoneReport&) const { FrameWriter(FrameType::kAllGone, out); }
};

bool IsSignal(int32_t signal) { return signal > 0 && signal <= 64; }

std::optional<Command> DecodeSignal(FrameReader& reader) {
  SignalCommand c;
  c.local_rank = reader.LocalRank(true);
  c.signal = reader.Int<int32_t>();
  c.group = reader.Flag();
  return IsSignal(c.signal) ? IfDone<SignalCommand, Command>(reader, c) : std::nullopt;
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
      r.pid = reader.Int<int32_t>();
      return Finish(reader, r);
    }
    case FrameType::kSpawnFailed: {
      SpawnFailedReport r;
      r.local_rank = reader.LocalRank(false);
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
      return Finish(reader, AllGoneReport{});
    default:
      return std::nullopt;
  }
}

std::optional<Report> DecodeOutputReport(FrameType type, FrameReader& reader) {
  const int32_t rank = reader.LocalRank(type == FrameType::kNote);
  switch (type) {
    case FrameType::kLogGrew: {
      LogGrewReport r{.local_rank = rank, .stream = reader.StreamField()};
      r.size_bytes = reader.Int<uint64_t>();
      return Finish(reader, r);
    }
    case FrameType::kLogData: {
      LogDataReport r{.local_rank = rank, .stream = reader.StreamField()};
      r.data = reader.Text();
      return Finish(reader, std::move(r));
    }
    case FrameType::kLogDegraded: {
      LogDegradedReport r{.local_rank = rank, .stream = reader.StreamField()};
      r.error = reader.Int<int32_t>();
      r.path = reader.Text();
      r.why = reader.Text();
      return Finish(reader, std::move(r));
    }
    case FrameType::kControlRecord:
      return Finish(reader, ControlRecordReport{rank, reader.Text()});
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

void AppendLogData(int local_rank, Stream stream, std::string_view data, std::string& out) {
  FrameWriter(FrameType::kLogData, out)
      .Int(static_cast<int32_t>(local_rank))
      .Int(stream)
      .Text(data);
}

void AppendControlRecord(int local_rank, std::string_view line, std::string& out) {
  FrameWriter(FrameType::kControlRecord, out).Int(static_cast<int32_t>(local_rank)).Text(line);
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
      c.line = reader.Text();
      return IfDone<ControlLineCommand, Command>(reader, std::move(c));
    }
    case FrameType::kKillAll:
      return IfDone<KillAllCommand, Command>(reader, {});
    case FrameType::kShutdown:
      return IfDone<ShutdownCommand, Command>(reader, {});
    case FrameType::kLease:
      return IfDone<LeaseCommand, Command>(reader, {reader.Int<uint32_t>()});
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
