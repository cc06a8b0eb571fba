#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/local/file_thread.h"
#include "agent/local/local_agent.h"
#include "agent/node/node_machine.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/metrics/metric_page.h"
#include "launcher/metrics/node_metrics.h"
#include "launcher/metrics/node_tally.h"
#include "launcher/metrics/process_metrics.h"

namespace fsdprun {

/// The proportional memory of processes, as it was a moment ago. To find it out, the kernel takes a
/// lock that a process which waits for a dead file system may hold for ever, and walks all of its
/// pages: so a thread asks. Thread: loop thread only.
class ProportionalSizes {
 public:
  /// Between two questions.
  static constexpr Duration kPause = std::chrono::seconds(5);

  explicit ProportionalSizes(EventLoop& loop) : files_(loop) {}

  /// Finds it out anew for these, unless it has just been.
  void Refresh(std::vector<pid_t> processes, MonoTime now);
  /// Empty if it is not known, or the last question is still not answered.
  std::optional<uint64_t> Of(pid_t process) const;

 private:
  bool is_asking_ = false;
  MonoTime asked_at_{};
  std::map<pid_t, uint64_t> bytes_;
  FileThread files_;
};

/// What a launcher tells Prometheus of its node and of its own process. Thread: loop thread only.
class NodeMonitor {
 public:
  explicit NodeMonitor(EventLoop& loop) : sizes_(loop) {}

  void On(const node::News& news) { tally_.On(news); }
  void On(const node::Event& event) { tally_.On(event, MonoNow()); }

  /// `agent`: null without one.
  void Collect(const LocalAgent* agent, MetricPage* page);

 private:
  NodeTally tally_;
  ProportionalSizes sizes_;
};

/// Of this process.
void CollectOwnProcess(MetricPage* page);

}  // namespace fsdprun
