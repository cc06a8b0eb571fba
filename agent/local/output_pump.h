#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "agent/local/file_thread.h"
#include "agent/output/line_format.h"
#include "agent/process/keeper_protocol.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// Output that did not reach its reader.
struct MissingOutput {
  enum class Why {
    kLost,     ///< It could not be logged to a file, and there was no room in memory.
    kHangs,    ///< The file system of the log did not answer. It is at the end of `path`.
    kTooSlow,  ///< The reader was too slow. It is at the end of `path`.
  };
  Why why = Why::kLost;
  uint64_t bytes = 0;
  std::string path;
};

/// The line that stands for it on the console.
std::string Describe(const MissingOutput& missing);

/// Copies the workers' output from their log files to its readers (the console), in whole lines, as
/// fast as they accept it, each of standard output and error on its own. The files hold everything,
/// so a slow console blocks no worker and loses nothing. Output that cannot be logged to a file is
/// buffered, up to kMaxStreamBytes of a stream and kMaxBacklogBytes in all; the rest is dropped and
/// counted. Files are read on a FileThread, one piece at a time: a file system that hangs delays
/// what is in files, and nothing else. Thread: loop thread only.
class OutputPump {
 public:
  static constexpr size_t kMaxBacklogBytes = 64u << 20;
  /// So one worker that writes much does not take the room of the others.
  static constexpr size_t kMaxStreamBytes = 16u << 20;

  struct Sink {
    /// Whole lines of one worker's stream; `target` is that of its route.
    std::function<void(keeper::Stream, const std::string& target, absl::string_view lines)> write;
    /// False: come back with Pump() later.
    std::function<bool(keeper::Stream)> has_room;
    /// Comes in the place of what is missing.
    std::function<void(keeper::Stream, const std::string& target, const MissingOutput&)> on_missing;
  };

  /// What becomes of a stream for one start of its worker.
  struct Route {
    /// Empty: what is in a file is not for this reader, only what could not be written there.
    std::string path;
    LineFormat format = LineFormat::Plain();
    /// For the sink.
    std::string target;
    /// False: not even what could not be written to a file is for this reader.
    bool is_wanted = true;
    /// The file is nobody else's: what has been read of it is given back to the file system.
    bool is_spool = false;
  };

  /// A read that takes longer is warned of, once until one is answered in time, and given up when
  /// everything must be shown at once.
  static constexpr Duration kReadLimit = std::chrono::seconds(5);

  OutputPump(EventLoop& loop, FileThread& files, Sink sink, Duration read_limit = kReadLimit);
  ~OutputPump();
  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  /// Follows the route's file for a worker's stream from its beginning, after the rest of the
  /// stream's previous file.
  void Follow(int local_rank, keeper::Stream stream, Route route);
  /// So much of a followed stream's file was shown before: goes on behind that. Before Grew().
  void Skip(int local_rank, keeper::Stream stream, uint64_t offset);
  /// Is told how much of the latest file of a stream has been passed on as whole lines.
  using OnShown = std::function<void(int local_rank, keeper::Stream, uint64_t offset)>;
  /// From here on, what is in a spool stays there until GiveBack().
  void TellShown(OnShown on_shown) { on_shown_ = std::move(on_shown); }
  /// Nobody will want to read so much of the latest file of a stream again.
  void GiveBack(int local_rank, keeper::Stream stream, uint64_t offset);
  /// The file of a followed stream has grown to `size_bytes`.
  void Grew(int local_rank, keeper::Stream stream, uint64_t size_bytes);
  /// Bytes of a stream that could not be written to its file.
  void Data(int local_rank, keeper::Stream stream, absl::string_view bytes);
  /// Moves as much as the sink has room for; true if nothing but unterminated last lines is left.
  bool Pump();
  /// A file is being read: Await() waits for it.
  bool is_reading() const { return reading_.has_value(); }
  /// Waits until a piece of a file has been read; for when the loop does not run any more.
  void Await(MonoTime deadline) { files_.Await(deadline); }
  /// A read has taken longer than the limit.
  bool hangs() const { return reading_ && MonoNow() >= reading_->deadline; }
  /// Of all output that could be in no file: what was dropped so far.
  uint64_t dropped_bytes() const { return dropped_bytes_; }
  /// Moves everything at once, unterminated last lines too, even if the sink has no room. At most
  /// kMaxBacklogBytes are read from files, and a read that hangs is given up; the rest is missing.
  void Drain();

 private:
  using Key = std::pair<int, keeper::Stream>;
  /// Used by the file thread only.
  struct LogFile {
    std::string path;
    bool is_spool = false;
    UniqueFd fd;
    uint64_t freed_bytes = 0;
  };
  struct Source {
    std::shared_ptr<LogFile> file;
    bool was_opened = false;
    uint64_t offset = 0;
    uint64_t size = 0;
    /// See GiveBack().
    uint64_t unwanted = 0;
    /// Output that follows what is in the file.
    std::string backlog;
    uint64_t dropped_bytes = 0;
    LineFormat format = LineFormat::Plain();
    std::string target;
    bool is_wanted = true;

    /// Nothing but an unterminated last line is left.
    bool IsMoved() const { return offset >= size && backlog.empty() && dropped_bytes == 0; }
  };
  struct Output {
    keeper::Stream stream;
    /// Never empty: the last source is being followed, those before it are being drained.
    std::deque<Source> sources;
    /// Of all sources.
    size_t backlog_bytes = 0;
    /// In one of its stream's queues.
    bool is_queued = false;

    bool HasWork() const { return sources.size() > 1 || !sources.back().IsMoved(); }
  };
  /// Outputs of one stream with something to move, in the order of their turns.
  struct Queues {
    std::deque<Key> ready;
    /// Those that must be read from a file first; if one is being read, it is the first.
    std::deque<Key> unread;
  };
  struct Read {
    Key key;
    MonoTime deadline;
    uint64_t id = 0;
  };

  Output& OutputOf(const Key& key);
  void Enqueue(const Key& key, Output& output);
  Queues& QueuesOf(keeper::Stream stream) { return queues_[static_cast<size_t>(stream)]; }
  void Advance();
  void PassReady(keeper::Stream stream);
  void StartNextRead();
  void StartRead(const Key& key, size_t at_most);
  void OnRead(uint64_t id, const std::string& bytes);
  void WatchRead();
  void OnReadLate();
  static void FreeSpool(LogFile& file, uint64_t offset);
  static std::string ReadPiece(LogFile& file, uint64_t offset, size_t size, uint64_t unwanted);
  bool ReadNow(const Key& key, size_t& budget_bytes);
  void AwaitRead();
  void DrainSource(const Key& key, Output& output, size_t& budget_bytes);
  void PassOn(keeper::Stream stream, Source& source, absl::string_view bytes);
  void PassBacklog(Output& output);
  void Finish(keeper::Stream stream, Source& source);
  void PopSource(Output& output);

  EventLoop& loop_;
  FileThread& files_;
  const Sink sink_;
  const Duration read_limit_;
  OnShown on_shown_;
  uint64_t dropped_bytes_ = 0;
  size_t backlog_bytes_ = 0;
  std::map<Key, Output> outputs_;
  std::array<Queues, 2> queues_;
  /// Whose turn to be read it is.
  keeper::Stream next_stream_ = keeper::Stream::kStdout;
  std::optional<Read> reading_;
  uint64_t next_read_ = 1;
  /// Runs when a read, not necessarily the latest, may have taken too long.
  EventLoop::TimerId read_timer_ = 0;
  bool has_warned_of_stall_ = false;
  bool is_draining_ = false;
  /// A read was given up: what is in files is not tried any more.
  bool has_hung_ = false;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
