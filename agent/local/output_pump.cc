#include "agent/local/output_pump.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

constexpr size_t kChunkBytes = 64u << 10;
/// A line longer than this is passed on in pieces.
constexpr size_t kMaxLineBytes = 4u << 20;

}  // namespace

OutputPump::OutputPump(Sink sink) : sink_(std::move(sink)) {}

void OutputPump::Follow(int local_rank, keeper::Stream stream, const std::string& path) {
  Sources& sources = sources_[{local_rank, stream}];
  sources.push_back(Source{.path = path});
  PumpStream(stream, sources, /*budget_bytes=*/nullptr);
}

void OutputPump::Grew(int local_rank, keeper::Stream stream, uint64_t size_bytes) {
  Sources& sources = SourcesOf(local_rank, stream);
  sources.back().size = std::max(sources.back().size, size_bytes);
  PumpStream(stream, sources, /*budget_bytes=*/nullptr);
}

void OutputPump::Data(int local_rank, keeper::Stream stream, absl::string_view bytes) {
  Sources& sources = SourcesOf(local_rank, stream);
  Source& source = sources.back();
  if (source.dropped_bytes > 0 || backlog_bytes_ + bytes.size() > kMaxBacklogBytes) {
    source.dropped_bytes += bytes.size();
  } else {
    absl::StrAppend(&source.backlog, bytes);
    backlog_bytes_ += bytes.size();
  }
  PumpStream(stream, sources, /*budget_bytes=*/nullptr);
}

bool OutputPump::Pump() {
  bool is_all_moved = true;
  for (auto& [key, sources] : sources_) {
    PumpStream(key.second, sources, /*budget_bytes=*/nullptr);
    is_all_moved &= sources.back().IsMoved();
  }
  return is_all_moved;
}

void OutputPump::Drain() {
  size_t budget_bytes = kMaxBacklogBytes;
  for (auto& [key, sources] : sources_) {
    PumpStream(key.second, sources, &budget_bytes);
    Finish(key.second, sources.back());
  }
}

OutputPump::Sources& OutputPump::SourcesOf(int local_rank, keeper::Stream stream) {
  Sources& sources = sources_[{local_rank, stream}];
  if (sources.empty()) {
    sources.emplace_back();
  }
  return sources;
}

void OutputPump::PumpStream(keeper::Stream stream, Sources& sources, size_t* budget_bytes) {
  for (;;) {
    PumpOne(stream, sources.front(), budget_bytes);
    if (!sources.front().IsMoved() || sources.size() == 1) {
      return;
    }
    Finish(stream, sources.front());
    sources.pop_front();
  }
}

void OutputPump::PumpOne(keeper::Stream stream, Source& source, size_t* budget_bytes) {
  PumpFile(stream, source, budget_bytes);
  if (budget_bytes != nullptr && source.offset < source.size) {
    Finish(stream, source);
    sink_.write(stream, absl::StrCat("[fsdprun: ", source.size - source.offset,
                                     " bytes of output are not shown here because the reader of "
                                     "this console was too slow; they are at the end of ",
                                     source.path, "]\n"));
    source.offset = source.size;
  }
  if (source.offset >= source.size && !source.IsMoved() &&
      (budget_bytes != nullptr || sink_.has_room())) {
    PassBacklog(stream, source);
  }
}

void OutputPump::PumpFile(keeper::Stream stream, Source& source, size_t* budget_bytes) {
  if (source.offset < source.size && !source.file.valid()) {
    source.file.reset(::open(source.path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  char buffer[kChunkBytes];
  while (source.offset < source.size &&
         (budget_bytes != nullptr ? *budget_bytes > 0 : sink_.has_room())) {
    size_t wanted = std::min<uint64_t>(sizeof(buffer), source.size - source.offset);
    wanted = budget_bytes != nullptr ? std::min(wanted, *budget_bytes) : wanted;
    const ssize_t count =
        ::pread(source.file.get(), buffer, wanted, static_cast<off_t>(source.offset));
    if (count <= 0) {
      // The file was removed or truncated; its content can no longer be shown.
      source.offset = source.size;
      return;
    }
    source.offset += static_cast<uint64_t>(count);
    if (budget_bytes != nullptr) {
      *budget_bytes -= static_cast<size_t>(count);
    }
    Pass(stream, source, absl::string_view(buffer, static_cast<size_t>(count)));
  }
}

void OutputPump::PassBacklog(keeper::Stream stream, Source& source) {
  const std::string backlog = std::exchange(source.backlog, std::string());
  backlog_bytes_ -= backlog.size();
  Pass(stream, source, backlog);
  if (const uint64_t dropped = std::exchange(source.dropped_bytes, 0); dropped > 0) {
    Finish(stream, source);
    sink_.write(stream, absl::StrCat("[fsdprun: ", dropped,
                                     " bytes of output are lost: the log file cannot be written, "
                                     "and the reader of this console was too slow]\n"));
  }
}

void OutputPump::Pass(keeper::Stream stream, Source& source, absl::string_view bytes) {
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

}  // namespace fsdprun
