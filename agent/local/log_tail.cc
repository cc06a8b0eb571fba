#include "agent/local/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace fsdprun {
namespace {

std::string ReadAt(int fd, uint64_t offset, size_t size) {
  std::string bytes(size, '\0');
  const ssize_t got = ::pread(fd, bytes.data(), size, static_cast<off_t>(offset));
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

}  // namespace

size_t BeginOfLastLines(std::string_view text, int lines) {
  size_t begin = text.size();
  for (size_t end = text.size(); lines > 0 && begin > 0; --lines) {
    // The newline that ends the line before is where this one begins.
    const size_t newline = end < 2 ? std::string_view::npos : text.rfind('\n', end - 2);
    begin = newline == std::string_view::npos ? 0 : newline + 1;
    end = begin;
  }
  return begin;
}

LogTail::LogTail(EventLoop& loop, std::vector<TailedLog> logs, int tail_lines, bool follows,
                 Hooks hooks)
    : loop_(loop), follows_(follows), hooks_(std::move(hooks)), files_(loop) {
  for (TailedLog& log : logs) {
    sources_.push_back(std::make_shared<Source>(
        Source{.log = std::move(log), .tail_lines = tail_lines, .is_last_round = !follows}));
  }
  loop_.Post([live = is_live_, this] {
    if (*live) {
      ReadNext();
    }
  });
}

LogTail::~LogTail() {
  *is_live_ = false;
  loop_.Cancel(timer_);
}

void LogTail::Replace(std::vector<TailedLog> logs) {
  for (const auto& source : sources_) {
    source->is_last_round = true;
  }
  for (TailedLog& log : logs) {
    sources_.push_back(std::make_shared<Source>(Source{.log = std::move(log)}));
  }
}

void LogTail::Drain(MonoTime deadline) {
  is_draining_ = true;
  for (const auto& source : sources_) {
    source->is_last_round = true;
  }
  if (timer_ != 0) {
    loop_.Cancel(std::exchange(timer_, 0));
    ReadNext();
  }
  while (!is_drained_ && files_.Await(deadline)) {
  }
}

void LogTail::EndRound() {
  next_ = 0;
  const bool found_any = std::exchange(found_any_, false);
  if (sources_.empty() && is_draining_) {
    is_drained_ = true;
  } else if (sources_.empty() && !follows_) {
    hooks_.on_end();
  } else if ((found_any || is_draining_) && hooks_.has_room()) {
    ReadNext();
  } else {
    Pause();
  }
}

void LogTail::ReadNext() {
  if (next_ >= ReadableCount()) {
    EndRound();
    return;
  }
  if (!hooks_.has_room()) {
    Pause();
    return;
  }
  const std::shared_ptr<Source> source = sources_[next_];
  auto bytes = std::make_shared<std::string>();
  // A read that began before it was the last round may have missed what came since.
  files_.Run([source, bytes] { *bytes = ReadPiece(*source); },
             [live = is_live_, this, source, bytes, is_last = source->is_last_round] {
               if (*live) {
                 OnPiece(source, *bytes, is_last);
               }
             });
}

/// Those that have been replaced come first, and before any other.
size_t LogTail::ReadableCount() const {
  const auto replaced =
      std::count_if(sources_.begin(), sources_.end(),
                    [](const std::shared_ptr<Source>& source) { return source->is_last_round; });
  return replaced > 0 ? static_cast<size_t>(replaced) : sources_.size();
}

void LogTail::Pause() {
  is_drained_ = is_draining_;  // As far as there is room.
  loop_.Cancel(timer_);
  timer_ = loop_.At(MonoNow() + kPause, [this] {
    timer_ = 0;
    ReadNext();
  });
}

/// On the file thread. A file that is not there is one in which nothing is yet.
std::string LogTail::ReadPiece(Source& source) {
  if (!source.fd.valid()) {
    source.fd = UniqueFd(::open(source.log.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  }
  struct stat info = {};
  if (!source.fd.valid() || ::fstat(source.fd.get(), &info) != 0) {
    source.is_at_end = true;
    source.tail_lines = -1;
    return "";
  }
  const auto size = static_cast<uint64_t>(std::max<off_t>(info.st_size, 0));
  Position(source, size);
  std::string bytes = ReadAt(source.fd.get(), source.offset, kPieceBytes);
  source.offset += bytes.size();
  source.is_at_end = bytes.empty() || source.offset >= size;
  return bytes;
}

/// On the file thread.
void LogTail::Position(Source& source, uint64_t size) {
  if (size < source.offset) {  // Somebody has emptied it.
    source.offset = 0;
    source.has_gap = true;
  }
  if (source.tail_lines < 0) {
    return;
  }
  const uint64_t from = size > kTailBytes ? size - kTailBytes : 0;
  const std::string end = ReadAt(source.fd.get(), from, static_cast<size_t>(size - from));
  source.offset = from + BeginOfLastLines(end, source.tail_lines);
  source.tail_lines = -1;
}

void LogTail::OnPiece(const std::shared_ptr<Source>& source, std::string_view bytes, bool is_last) {
  found_any_ |= !bytes.empty();
  Tell(*source, bytes);
  if (source->is_at_end && is_last) {
    if (!source->rest.empty()) {
      Tell(*source, "\n");
    }
    sources_.erase(sources_.begin() + static_cast<std::ptrdiff_t>(next_));
  } else {
    ++next_;
  }
  ReadNext();
}

void LogTail::Tell(Source& source, std::string_view bytes) {
  v1::LogLines lines;
  source.rest.append(bytes);
  size_t begin = 0;
  for (size_t end = source.rest.find('\n'); end != std::string::npos;
       end = source.rest.find('\n', begin)) {
    lines.add_lines(source.rest.substr(begin, end - begin));
    begin = end + 1;
  }
  source.rest.erase(0, begin);
  if (source.rest.size() >= kPieceBytes) {  // A line as long as that comes in parts.
    lines.add_lines(std::exchange(source.rest, ""));
  }
  if (lines.lines_size() == 0) {
    return;
  }
  lines.set_rank(source.log.rank);
  lines.set_is_stderr(source.log.is_stderr);
  lines.set_generation(source.log.generation);
  lines.set_has_gap(std::exchange(source.has_gap, false));
  hooks_.on_lines(std::move(lines));
}

}  // namespace fsdprun
