#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "agent/local/file_thread.h"
#include "agent/local/output_pump.h"
#include "base/event_loop.h"
#include "base/mono_time.h"

namespace fsdprun {

/// Copies lines of the workers' output to files that several workers share, as they are appended to
/// the logs. Has a thread and a place in the logs of its own, so that neither a slow console nor a
/// file system that hangs elsewhere holds it up. What cannot be written is counted and warned of.
/// Memory: kRoomBytes, and what OutputPump has. Thread: loop thread only.
class FilteredOutput {
 public:
  /// A write that takes longer is given up at the end.
  static constexpr Duration kHangLimit = std::chrono::seconds(5);

  explicit FilteredOutput(EventLoop& loop, Duration hang_limit = kHangLimit);
  ~FilteredOutput();
  FilteredOutput(const FilteredOutput&) = delete;
  FilteredOutput& operator=(const FilteredOutput&) = delete;

  /// The target of a route is the file to which its lines go.
  OutputPump& pump() { return pump_; }
  /// Copies what is left, for when the loop does not run any more; false if that is not done by
  /// `deadline`, and no file system hangs.
  bool Await(MonoTime deadline);
  /// Copies a bounded part of what is left, unless a file system hangs, and warns of what is
  /// missing since the last call; for when no worker writes any more.
  void Finish();

 private:
  static constexpr size_t kRoomBytes = 1u << 20;

  struct Batch {
    std::string path;
    std::string lines;
  };
  /// What a file lacks.
  struct Loss {
    uint64_t lines = 0;
    uint64_t unsearched_bytes = 0;
    std::string why;
    /// Nothing more is written to it: it holds the beginning.
    bool is_closed = false;
  };

  OutputPump::Sink MakeSink();
  void Write(const std::string& path, absl::string_view lines);
  void StartWrite();
  void OnWritten(uint64_t id, size_t written, int error);
  bool hangs() const { return pump_.hangs() || (is_writing_ && MonoNow() >= write_deadline_); }
  void GiveUp();
  void Report();

  const Duration hang_limit_;
  FileThread files_;
  std::deque<Batch> batches_;
  size_t queued_bytes_ = 0;
  bool is_writing_ = false;
  MonoTime write_deadline_;
  /// Of the last write that was begun or given up.
  uint64_t write_id_ = 0;
  std::map<std::string, Loss> losses_;
  OutputPump pump_;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
