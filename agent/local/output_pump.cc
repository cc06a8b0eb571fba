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
/// A spool gives back its beginning in parts of this size.
constexpr uint64_t kSpoolPartBytes = 1u << 20;

keeper::Stream Other(keeper::Stream stream) {
  return stream == keeper::Stream::kStdout ? keeper::Stream::kStderr : keeper::Stream::kStdout;
}

}  // namespace

std::string Describe(const MissingOutput& missing) {
  if (missing.why == MissingOutput::Why::kLost) {
    return absl::StrCat("[fsdprun: ", missing.bytes,
                        " bytes of output are lost: the log file cannot be written, "
                        "and the reader of this console was too slow]\n");
  }
  return absl::StrCat("[fsdprun: ", missing.bytes, " bytes of output are not shown here because ",
                      missing.why == MissingOutput::Why::kHangs
                          ? "the file system of the log does not answer"
                          : "the reader of this console was too slow",
                      "; they are at the end of ", missing.path, "]\n");
}

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

void OutputPump::Follow(int local_rank, keeper::Stream stream, Route route) {
  const Key key{local_rank, stream};
  Output& output = outputs_.try_emplace(key, Output{.stream = stream}).first->second;
  Source& source = output.sources.emplace_back();
  source.format = std::move(route.format);
  source.target = std::move(route.target);
  source.is_wanted = route.is_wanted;
  if (!route.path.empty()) {
    source.file = std::make_shared<LogFile>();
    source.file->path = std::move(route.path);
    source.file->is_spool = route.is_spool;
  }
  Enqueue(key, output);
  Advance();
}

void OutputPump::Skip(int local_rank, keeper::Stream stream, uint64_t offset) {
  Source& source = OutputOf({local_rank, stream}).sources.back();
  source.offset = source.size = std::max(source.offset, offset);
}

void OutputPump::GiveBack(int local_rank, keeper::Stream stream, uint64_t offset) {
  OutputOf({local_rank, stream}).sources.back().unwanted = offset;
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
  if (!source.is_wanted) {
    return;
  }
  const bool has_room = backlog_bytes_ + bytes.size() <= kMaxBacklogBytes &&
                        output.backlog_bytes + bytes.size() <= kMaxStreamBytes;
  if (source.dropped_bytes > 0 || !has_room) {
    source.dropped_bytes += bytes.size();
    dropped_bytes_ += bytes.size();
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
  return std::all_of(queues_.begin(), queues_.end(), [](const Queues& queues) {
    return queues.ready.empty() && queues.unread.empty();
  });
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
    Queues& queues = QueuesOf(key.second);
    (source.offset < source.size ? queues.unread : queues.ready).push_back(key);
  }
}

/// Passes on what is in memory, and begins to read a file. One read at a time, however many workers
/// there are, and only while the sink has room: so little is in memory.
void OutputPump::Advance() {
  if (is_draining_) {
    return;
  }
  PassReady(keeper::Stream::kStdout);
  PassReady(keeper::Stream::kStderr);
  if (!reading_) {
    StartNextRead();
  }
}

void OutputPump::PassReady(keeper::Stream stream) {
  std::deque<Key>& ready = QueuesOf(stream).ready;
  while (!ready.empty() && sink_.has_room(stream)) {
    const Key key = ready.front();
    Output& output = outputs_.at(key);
    Source& source = output.sources.front();
    ready.pop_front();
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
}

void OutputPump::StartNextRead() {
  for (const keeper::Stream stream : {next_stream_, Other(next_stream_)}) {
    const std::deque<Key>& unread = QueuesOf(stream).unread;
    if (!unread.empty() && sink_.has_room(stream)) {
      next_stream_ = Other(stream);
      return StartRead(unread.front(), kChunkBytes);
    }
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
  // Another agent would read the latest file only.
  const bool may_be_reread = on_shown_ && outputs_.at(key).sources.size() == 1;
  const uint64_t unwanted = may_be_reread ? source.unwanted : source.offset;
  files_.Run([file = source.file, offset = source.offset, size, unwanted,
              bytes] { *bytes = ReadPiece(*file, offset, size, unwanted); },
             [live = is_live_, this, id = reading_->id, bytes] {
               if (*live) {
                 OnRead(id, *bytes);
               }
             });
}

/// So a job of months needs no more room than what its console has not shown yet. A file system
/// that cannot do it keeps everything to the end.
void OutputPump::FreeSpool(LogFile& file, uint64_t offset) {
  const uint64_t end = offset - offset % kSpoolPartBytes;
  if (file.is_spool && end > file.freed_bytes) {
    ::fallocate(file.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(file.freed_bytes), static_cast<off_t>(end - file.freed_bytes));
    file.freed_bytes = end;
  }
}

/// On the file thread.
std::string OutputPump::ReadPiece(LogFile& file, uint64_t offset, size_t size, uint64_t unwanted) {
  if (!file.fd.valid()) {
    file.fd.reset(::open(file.path.c_str(), (file.is_spool ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  }
  FreeSpool(file, unwanted);
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
  if (on_shown_ && output.sources.size() == 1) {
    on_shown_(key.first, key.second, source.offset - source.format.held_bytes());
  }
  if (!is_draining_) {
    QueuesOf(key.second).unread.pop_front();
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
  queues_ = {};
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
    sink_.on_missing(
        key.second, source.target,
        {.why = budget_bytes > 0 ? MissingOutput::Why::kHangs : MissingOutput::Why::kTooSlow,
         .bytes = source.size - source.offset,
         .path = source.file->path});
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
    sink_.on_missing(output.stream, source.target,
                     {.why = MissingOutput::Why::kLost, .bytes = dropped});
  }
}

void OutputPump::PassOn(keeper::Stream stream, Source& source, absl::string_view bytes) {
  if (const std::string lines = source.format.Take(bytes); !lines.empty()) {
    sink_.write(stream, source.target, lines);
  }
}

void OutputPump::Finish(keeper::Stream stream, Source& source) {
  if (const std::string rest = source.format.TakeRest(); !rest.empty()) {
    sink_.write(stream, source.target, rest);
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
