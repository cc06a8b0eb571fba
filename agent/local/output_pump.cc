#include "agent/local/output_pump.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace fsdprun {
namespace {

constexpr size_t kChunkBytes = 64u << 10;
/// A line longer than this is passed on in pieces.
constexpr size_t kMaxLineBytes = 4u << 20;

}  // namespace

OutputPump::OutputPump(EventLoop& loop, FileThread& files, Sink sink, Duration read_limit)
    : loop_(loop), files_(files), sink_(std::move(sink)), read_limit_(read_limit) {}

OutputPump::~OutputPump() {
  *is_live_ = false;
  loop_.Cancel(read_timer_);
  for (auto& [key, output] : outputs_) {
    while (!output.sources.empty()) {
      PopSource(output);
    }
  }
}

void OutputPump::Follow(int local_rank, keeper::Stream stream, const std::string& path) {
  const Key key{local_rank, stream};
  Output& output = outputs_.try_emplace(key, Output{.stream = stream}).first->second;
  output.sources.push_back(Source{.file = std::make_shared<LogFile>(LogFile{path, UniqueFd()})});
  Enqueue(key, output);
  Advance();
}

void OutputPump::Grew(int local_rank, keeper::Stream stream, uint64_t size_bytes) {
  const Key key{local_rank, stream};
  Output& output = OutputOf(key);
  Source& source = output.sources.back();
  source.size = std::max(source.size, source.file == nullptr ? 0 : size_bytes);
  Enqueue(key, output);
  Advance();
}

void OutputPump::Data(int local_rank, keeper::Stream stream, absl::string_view bytes) {
  const Key key{local_rank, stream};
  Output& output = OutputOf(key);
  Source& source = output.sources.back();
  const bool has_room = backlog_bytes_ + bytes.size() <= kMaxBacklogBytes &&
                        output.backlog_bytes + bytes.size() <= kMaxStreamBytes;
  if (source.dropped_bytes > 0 || !has_room) {
    source.dropped_bytes += bytes.size();
  } else {
    absl::StrAppend(&source.backlog, bytes);
    output.backlog_bytes += bytes.size();
    backlog_bytes_ += bytes.size();
  }
  Enqueue(key, output);
  Advance();
}

bool OutputPump::Pump() {
  files_.RunFinished();
  Advance();
  return ready_.empty() && unread_.empty();
}

OutputPump::Output& OutputPump::OutputOf(const Key& key) {
  Output& output = outputs_.try_emplace(key, Output{.stream = key.second}).first->second;
  if (output.sources.empty()) {
    output.sources.emplace_back();
  }
  return output;
}

void OutputPump::Enqueue(const Key& key, Output& output) {
  if (!output.is_queued && output.HasWork()) {
    output.is_queued = true;
    const Source& source = output.sources.front();
    (source.offset < source.size ? unread_ : ready_).push_back(key);
  }
}

/// Passes on what is in memory, and begins to read a file. One read at a time, however many workers
/// there are, and only while the sink has room: so little is in memory.
void OutputPump::Advance() {
  while (!is_draining_ && !ready_.empty() && sink_.has_room()) {
    const Key key = ready_.front();
    Output& output = outputs_.at(key);
    Source& source = output.sources.front();
    ready_.pop_front();
    output.is_queued = false;
    if (source.offset >= source.size) {
      PassBacklog(output);
      if (output.sources.size() > 1) {
        Finish(output.stream, source);
        PopSource(output);
      }
    }
    Enqueue(key, output);
  }
  if (!is_draining_ && !reading_ && !unread_.empty() && sink_.has_room()) {
    StartRead(unread_.front(), kChunkBytes);
  }
}

// --- Files

void OutputPump::StartRead(const Key& key, size_t at_most) {
  Source& source = outputs_.at(key).sources.front();
  source.was_opened = true;
  const size_t size = std::min<uint64_t>(at_most, source.size - source.offset);
  reading_ = Read{key, MonoNow() + read_limit_, next_read_++};
  WatchRead();
  auto bytes = std::make_shared<std::string>();
  files_.Run([file = source.file, offset = source.offset, size,
              bytes] { *bytes = ReadPiece(*file, offset, size); },
             [live = is_live_, this, id = reading_->id, bytes] {
               if (*live) {
                 OnRead(id, *bytes);
               }
             });
}

/// On the file thread.
std::string OutputPump::ReadPiece(LogFile& file, uint64_t offset, size_t size) {
  if (!file.fd.valid()) {
    file.fd.reset(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  std::string bytes(size, '\0');
  const ssize_t count = ::pread(file.fd.get(), bytes.data(), size, static_cast<off_t>(offset));
  bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return bytes;
}

void OutputPump::OnRead(uint64_t id, const std::string& bytes) {
  if (!reading_ || reading_->id != id) {
    return;  // Given up: what it read has been reported as not shown.
  }
  has_warned_of_stall_ = has_warned_of_stall_ && MonoNow() >= reading_->deadline;
  const Key key = reading_->key;
  reading_.reset();
  Output& output = outputs_.at(key);
  Source& source = output.sources.front();
  // An empty read: the file was removed or truncated; its content can no longer be shown.
  source.offset = bytes.empty() ? source.size : source.offset + bytes.size();
  PassOn(output.stream, source, bytes);
  if (!is_draining_) {
    unread_.pop_front();
    output.is_queued = false;
    Enqueue(key, output);
    Advance();
  }
}

/// One timer for all reads, which are many and short.
void OutputPump::WatchRead() {
  if (read_timer_ == 0) {
    read_timer_ = loop_.At(reading_->deadline, [this] { OnReadLate(); });
  }
}

void OutputPump::OnReadLate() {
  read_timer_ = 0;
  files_.RunFinished();  // It may have been answered in time, if this process was stopped.
  if (!reading_) {
    return;
  }
  if (!hangs()) {
    return WatchRead();
  }
  if (!std::exchange(has_warned_of_stall_, true)) {
    const std::string& path = outputs_.at(reading_->key).sources.front().file->path;
    Log(LogLevel::kWarning,
        absl::StrCat("reading ", path, " has taken longer than ", ToSeconds(read_limit_),
                     " s; output in log files is shown when their file system answers (warned once "
                     "until it does)"));
  }
}

// --- The end

void OutputPump::Drain() {
  is_draining_ = true;
  AwaitRead();
  size_t budget_bytes = kMaxBacklogBytes;
  for (auto& [key, output] : outputs_) {
    output.is_queued = false;
    for (;;) {
      DrainSource(key, output, budget_bytes);
      Finish(output.stream, output.sources.front());
      if (output.sources.size() == 1) {
        break;
      }
      PopSource(output);
    }
  }
  ready_.clear();
  unread_.clear();
  is_draining_ = false;
}

void OutputPump::DrainSource(const Key& key, Output& output, size_t& budget_bytes) {
  Source& source = output.sources.front();
  bool hangs = false;
  while (source.offset < source.size && budget_bytes > 0 && !hangs) {
    hangs = !ReadNow(key, budget_bytes);
  }
  if (source.offset < source.size) {
    Finish(key.second, source);
    sink_.write(key.second,
                absl::StrCat("[fsdprun: ", source.size - source.offset,
                             " bytes of output are not shown here because ",
                             budget_bytes > 0 ? "the file system of the log does not answer"
                                              : "the reader of this console was too slow",
                             "; they are at the end of ", source.file->path, "]\n"));
    source.offset = source.size;
  }
  if (!source.IsMoved()) {
    PassBacklog(output);
  }
}

/// False if the read hangs, or one before it did.
bool OutputPump::ReadNow(const Key& key, size_t& budget_bytes) {
  const Source& source = outputs_.at(key).sources.front();
  const uint64_t before = source.offset;
  if (!has_hung_) {
    StartRead(key, std::min(kChunkBytes, budget_bytes));
    AwaitRead();
  }
  budget_bytes -= std::min<uint64_t>(budget_bytes, source.offset - before);
  return !has_hung_;
}

/// Waits for the read that is in progress, but not longer than its limit.
void OutputPump::AwaitRead() {
  while (reading_) {
    if (!files_.Await(reading_->deadline)) {
      reading_.reset();
      has_hung_ = true;
    }
  }
}

// --- Passing on

void OutputPump::PassBacklog(Output& output) {
  Source& source = output.sources.front();
  const std::string backlog = std::exchange(source.backlog, std::string());
  output.backlog_bytes -= backlog.size();
  backlog_bytes_ -= backlog.size();
  PassOn(output.stream, source, backlog);
  if (const uint64_t dropped = std::exchange(source.dropped_bytes, 0); dropped > 0) {
    Finish(output.stream, source);
    sink_.write(output.stream,
                absl::StrCat("[fsdprun: ", dropped,
                             " bytes of output are lost: the log file cannot be written, "
                             "and the reader of this console was too slow]\n"));
  }
}

void OutputPump::PassOn(keeper::Stream stream, Source& source, absl::string_view bytes) {
  // A carriage return ends a line too, so that a worker's own progress bar keeps updating.
  const size_t end = bytes.find_last_of("\n\r");
  const size_t whole = end == absl::string_view::npos ? 0 : end + 1;
  if (whole > 0) {
    std::string lines = std::exchange(source.partial, std::string());
    absl::StrAppend(&lines, bytes.substr(0, whole));
    sink_.write(stream, lines);
  }
  absl::StrAppend(&source.partial, bytes.substr(whole));
  if (source.partial.size() > kMaxLineBytes) {
    Finish(stream, source);
  }
}

void OutputPump::Finish(keeper::Stream stream, Source& source) {
  if (!source.partial.empty()) {
    sink_.write(stream, std::exchange(source.partial, std::string()));
  }
}

/// The file is closed where it was opened.
void OutputPump::PopSource(Output& output) {
  Source& source = output.sources.front();
  if (source.was_opened) {
    files_.Run([file = std::move(source.file)]() mutable { file.reset(); }, [] {});
  }
  output.sources.pop_front();
}

}  // namespace fsdprun
