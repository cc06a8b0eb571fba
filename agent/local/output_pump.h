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

/// Carries the workers' output from their log files to the console, in whole lines, as fast as the
/// console takes it. The files hold everything in any case, so a slow console delays nobody and
/// loses nothing. Of output that cannot be kept in files, kMaxBacklogBytes wait for a slow console;
/// more is dropped, and that is said. Thread: loop thread only.
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

  /// Follows this file for a worker's stream from its beginning. What an earlier one still holds
  /// comes first, at the reader's pace.
  void Follow(int local_rank, keeper::Stream stream, const std::string& path);
  /// The file of a followed stream has `size_bytes` by now.
  void Grew(int local_rank, keeper::Stream stream, uint64_t size_bytes);
  /// Bytes of a stream that did not go to a file.
  void Data(int local_rank, keeper::Stream stream, absl::string_view bytes);
  /// Moves what is there and fits; true if nothing is left but last lines without an end.
  bool Pump();
  /// Moves everything at once, also last lines without an end. The sink keeps it, whatever room it
  /// has: of what is in files, only the first kMaxBacklogBytes go to it, and where the rest lies is
  /// said.
  void Drain();

 private:
  struct Source {
    std::string path;
    UniqueFd file;
    uint64_t offset = 0;
    uint64_t size = 0;
    /// Came after what is in the file.
    std::string backlog;
    uint64_t dropped_bytes = 0;
    std::string partial;

    /// Nothing is left but a last line without an end.
    bool IsMoved() const { return offset >= size && backlog.empty() && dropped_bytes == 0; }
  };
  /// Never empty once it is known: the last is the one followed, those before it are being emptied.
  using Sources = std::deque<Source>;

  Sources& SourcesOf(int local_rank, keeper::Stream stream);
  /// `budget_bytes`: what may be read from files whatever room there is, less what was; nullptr: as
  /// much as there is room for.
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
