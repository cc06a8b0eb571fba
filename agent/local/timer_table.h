#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/process/process_scan.h"
#include "base/mono_time.h"

namespace fsdprun {

/// One line of torch.distributed.elastic.timer's FileTimerClient.
struct TimerRequest {
  int32_t pid = 0;
  std::string scope;
  /// Unix time; negative releases the timer.
  double expires_unix_s = -1;
  /// Sent to the process when the timer expires; 0 or less: none.
  int signal = 0;

  bool IsRelease() const { return expires_unix_s < 0; }
};

/// {"version":1,"pid":7,"scope_id":"step","expiration_time":1.5e9,"signal":9}, without the newline.
/// Nothing for any other line. Pure.
std::optional<TimerRequest> ParseTimerRequest(std::string_view line);

/// A timer that its process did not release in time.
struct ExpiredTimer {
  ProcessInfo process;
  std::string scope;
  double expires_unix_s = 0;
  int signal = 0;
  Duration late{};
};

/// The timers that processes of a job have set. Wall clock on the wire, which all processes of a
/// machine share, is turned into this process's monotonic time when a request comes, so that a
/// clock that is set later moves no deadline. Pure: time comes in as an argument.
class TimerTable {
 public:
  /// More than any job has; a program that never releases must not fill the memory.
  static constexpr size_t kMaxTimers = 4096;

  /// Sets the timer of `scope`, or sets it anew. False if there are too many.
  bool Acquire(const TimerRequest& request, const ProcessInfo& process, double unix_now_s,
               MonoTime now);
  void Release(int32_t pid, const std::string& scope);
  /// The process has ended.
  void Drop(int32_t pid);
  void Clear() { timers_.clear(); }

  /// When the next timer expires; MonoTime::max() without one.
  MonoTime next() const;
  /// Removes and returns what has expired. Of a process that gets a signal all timers go, and the
  /// first that has one tells which. `stall`: for how long this process has just not run. Its
  /// workers may have been stopped with it, so what expired meanwhile gets the time again, at most
  /// its whole length.
  std::vector<ExpiredTimer> TakeExpired(MonoTime now, Duration stall);

 private:
  struct Timer {
    ProcessInfo process;
    double expires_unix_s = 0;
    int signal = 0;
    MonoTime deadline;
    Duration length;
  };
  using Key = std::pair<int32_t, std::string>;

  std::map<Key, Timer> timers_;
};

}  // namespace fsdprun
