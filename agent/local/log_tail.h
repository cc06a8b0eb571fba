#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"
#include "fsdprun/v1/aside.pb.h"

namespace fsdprun {

/// A log file of one worker.
struct TailedLog {
  int rank = 0;
  bool is_stderr = false;
  std::string path;
  uint64_t generation = 0;
};

/// Tells the latest lines of some log files, and what is added to them. Reads them on a thread of
/// its own, a piece of one after the other: a file system that hangs delays this reader and nothing
/// else. Thread: loop thread only.
class LogTail {
 public:
  struct Hooks {
    std::function<void(v1::LogLines lines)> on_lines;
    /// Everything has been told, and nothing more will be.
    std::function<void()> on_end;
    /// False: nothing is read for now.
    std::function<bool()> has_room;
  };

  /// Of a file, at once.
  static constexpr size_t kPieceBytes = 64u << 10;
  /// How far back lines are looked for.
  static constexpr uint64_t kTailBytes = 1u << 20;
  static constexpr Duration kPause = std::chrono::milliseconds(200);

  /// Begins with the last `tail_lines` of each log. Unless it follows, it ends with what is there
  /// now.
  LogTail(EventLoop& loop, std::vector<TailedLog> logs, int tail_lines, bool follows, Hooks hooks);
  ~LogTail();
  LogTail(const LogTail&) = delete;
  LogTail& operator=(const LogTail&) = delete;

  /// Other files take the place of all, from their beginning, once these have been read to their
  /// ends.
  void Replace(std::vector<TailedLog> logs);
  /// Tells what is left now, as far as there is room and it can be read by the deadline. For the
  /// end.
  void Drain(MonoTime deadline);

 private:
  /// Used by the file thread while it reads.
  struct Source {
    TailedLog log;
    UniqueFd fd;
    uint64_t offset = 0;
    /// < 0: from the beginning.
    int tail_lines = -1;
    /// Ends where it is empty.
    bool is_last_round = false;
    /// A line without its end.
    std::string rest;
    bool has_gap = false;
    bool is_at_end = false;
  };

  static std::string ReadPiece(Source& source);
  static void Position(Source& source, uint64_t size);
  void ReadNext();
  void EndRound();
  size_t ReadableCount() const;
  void OnPiece(const std::shared_ptr<Source>& source, std::string_view bytes, bool is_last);
  void Tell(Source& source, std::string_view bytes);
  void Pause();

  EventLoop& loop_;
  const bool follows_;
  const Hooks hooks_;
  FileThread files_;
  std::deque<std::shared_ptr<Source>> sources_;
  /// How many of the front have been read in this round.
  size_t next_ = 0;
  bool found_any_ = false;
  bool is_draining_ = false;
  bool is_drained_ = false;
  EventLoop::TimerId timer_ = 0;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

/// Where the last `lines` lines of `text` begin; 0 if it has no more. An unterminated last line
/// counts. Pure.
size_t BeginOfLastLines(std::string_view text, int lines);

}  // namespace fsdprun
