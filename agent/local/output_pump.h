#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "agent/process/keeper_protocol.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// Copies the workers' output from their log files to the console, in whole lines, as fast as the
/// console accepts it. The files hold everything, so a slow console blocks no worker and loses
/// nothing. Output that cannot be logged to a file is buffered up to kMaxBacklogBytes; the rest is
/// dropped and the console says how much. Thread: loop thread only.
class OutputPump {
 public:
  static constexpr size_t kMaxBacklogBytes = 64u << 20;

  struct Sink {
    /// Whole lines of one worker's stream.
    std::function<void(keeper::Stream, absl::string_view lines)> write;
    /// False: come back with Pump() later.
    std::function<bool()> has_room;
  };

  explicit OutputPump(Sink sink);

  /// Follows this file for a worker's stream from its beginning, after the rest of the stream's
  /// previous file.
  void Follow(int local_rank, keeper::Stream stream, const std::string& path);
  /// The file of a followed stream has grown to `size_bytes`.
  void Grew(int local_rank, keeper::Stream stream, uint64_t size_bytes);
  /// Bytes of a stream that could not be written to its file.
  void Data(int local_rank, keeper::Stream stream, absl::string_view bytes);
  /// Moves as much as the sink has room for; true if nothing but unterminated last lines is left.
  bool Pump();
  /// Moves everything at once, unterminated last lines too, even if the sink has no room. At most
  /// kMaxBacklogBytes are read from files; for the rest the path of the file is printed.
  void Drain();

 private:
  struct Source {
    std::string path;
    UniqueFd file;
    uint64_t offset = 0;
    uint64_t size = 0;
    /// Output that follows what is in the file.
    std::string backlog;
    uint64_t dropped_bytes = 0;
    std::string partial;

    /// Nothing but an unterminated last line is left.
    bool IsMoved() const { return offset >= size && backlog.empty() && dropped_bytes == 0; }
  };
  /// Never empty once created: the last source is being followed, those before it are being
  /// drained.
  using Sources = std::deque<Source>;

  Sources& SourcesOf(int local_rank, keeper::Stream stream);
  /// `budget_bytes`: how much may still be read from files regardless of the sink's room; nullptr:
  /// as much as the sink has room for.
  void PumpStream(keeper::Stream stream, Sources& sources, size_t* budget_bytes);
  void PumpOne(keeper::Stream stream, Source& source, size_t* budget_bytes);
  void PumpFile(keeper::Stream stream, Source& source, size_t* budget_bytes);
  void Pass(keeper::Stream stream, Source& source, absl::string_view bytes);
  void PassBacklog(keeper::Stream stream, Source& source);
  void Finish(keeper::Stream stream, Source& source);

  const Sink sink_;
  size_t backlog_bytes_ = 0;
  std::map<std::pair<int, keeper::Stream>, Sources> sources_;
};

}  // namespace fsdprun
