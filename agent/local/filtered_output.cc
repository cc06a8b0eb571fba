#include "agent/local/filtered_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "base/write_all.h"

namespace fsdprun {
namespace {

constexpr Duration kHangCheckInterval = std::chrono::milliseconds(20);

/// On the file thread. An errno; `written` is how much is in the file.
int Append(const std::string& path, absl::string_view text, size_t* written) {
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644));
  if (!file.valid()) {
    return errno;
  }
  return WriteAll(file.get(), text, written);
}

uint64_t CountLines(absl::string_view text) {
  return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

FilteredOutput::FilteredOutput(EventLoop& loop, Duration hang_limit)
    : hang_limit_(hang_limit), files_(loop), pump_(loop, files_, MakeSink()) {}

FilteredOutput::~FilteredOutput() { *is_live_ = false; }

OutputPump::Sink FilteredOutput::MakeSink() {
  OutputPump::Sink sink;
  sink.write = [this](keeper::Stream, const std::string& target, absl::string_view lines) {
    if (!target.empty()) {
      Write(target, lines);
    }
  };
  sink.has_room = [this](keeper::Stream) { return queued_bytes_ < kRoomBytes; };
  sink.on_missing = [this](keeper::Stream, const std::string& target,
                           const MissingOutput& missing) {
    if (!target.empty()) {
      losses_[target].unsearched_bytes += missing.bytes;
    }
  };
  return sink;
}

void FilteredOutput::Write(const std::string& path, absl::string_view lines) {
  if (const auto it = losses_.find(path); it != losses_.end() && it->second.is_closed) {
    it->second.lines += CountLines(lines);
    return;
  }
  queued_bytes_ += lines.size();
  const bool may_join = batches_.size() > (is_writing_ ? 1 : 0) && batches_.back().path == path;
  if (may_join) {
    absl::StrAppend(&batches_.back().lines, lines);
  } else {
    batches_.push_back({path, std::string(lines)});
  }
  StartWrite();
}

/// One batch at a time; the first one is being written.
void FilteredOutput::StartWrite() {
  if (is_writing_ || batches_.empty()) {
    return;
  }
  is_writing_ = true;
  write_deadline_ = MonoNow() + hang_limit_;
  struct Result {
    Batch batch;
    size_t written = 0;
    int error = 0;
  };
  auto result = std::make_shared<Result>(Result{.batch = batches_.front()});
  files_.Run(
      [result] {
        result->error = Append(result->batch.path, result->batch.lines, &result->written);
      },
      [live = is_live_, this, id = ++write_id_, result] {
        if (*live) {
          OnWritten(id, result->written, result->error);
        }
      });
}

void FilteredOutput::OnWritten(uint64_t id, size_t written, int error) {
  if (id != write_id_) {
    return;  // Given up.
  }
  is_writing_ = false;
  const Batch batch = std::move(batches_.front());
  batches_.pop_front();
  queued_bytes_ -= batch.lines.size();
  if (error != 0) {
    Loss& loss = losses_[batch.path];
    if (!std::exchange(loss.is_closed, true)) {
      loss.why = ErrorText(error);
      Log(LogLevel::kWarning, absl::StrCat("cannot write ", batch.path, ": ", loss.why,
                                           "; how many lines it lacks is told at the end"));
    }
    loss.lines += CountLines(absl::string_view(batch.lines).substr(written));
  }
  StartWrite();
  pump_.Pump();
}

bool FilteredOutput::Await(MonoTime deadline) {
  while ((!pump_.Pump() || is_writing_) && !hangs()) {
    if (!files_.Await(std::min(deadline, MonoNow() + kHangCheckInterval)) &&
        MonoNow() >= deadline) {
      return false;
    }
  }
  return true;
}

void FilteredOutput::Finish() {
  pump_.Drain();
  while (is_writing_ && !hangs()) {
    files_.Await(MonoNow() + kHangCheckInterval);
  }
  if (is_writing_) {
    GiveUp();
  }
  Report();
}

void FilteredOutput::GiveUp() {
  for (const Batch& batch : std::exchange(batches_, {})) {
    Loss& loss = losses_[batch.path];
    loss.lines += CountLines(batch.lines);
    loss.why = "its file system does not answer";
    loss.is_closed = true;
  }
  is_writing_ = false;
  ++write_id_;
  queued_bytes_ = 0;
}

void FilteredOutput::Report() {
  for (auto& [path, loss] : losses_) {
    if (const uint64_t lines = std::exchange(loss.lines, 0); lines > 0) {
      Log(LogLevel::kWarning, absl::StrCat(lines, lines == 1 ? " line is" : " lines are",
                                           " missing in ", path, ": ", loss.why));
    }
    if (const uint64_t bytes = std::exchange(loss.unsearched_bytes, 0); bytes > 0) {
      Log(LogLevel::kWarning,
          absl::StrCat(bytes, " bytes of output were not searched for ", path,
                       ": the log files could not be read or written fast enough"));
    }
  }
}

}  // namespace fsdprun
