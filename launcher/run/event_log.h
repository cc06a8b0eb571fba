#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "agent/node/node_machine.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/coordinator/job_events.h"
#include "launcher/events/event_line.h"
#include "launcher/ledger/time_ledger.h"
#include "launcher/run/event_file.h"

namespace fsdprun {

/// What happens to a job, kept where the user keeps logs: see docs/EVENTS.md. Without --log-dir
/// nothing is. Thread: loop thread only.
class EventLog {
 public:
  /// How long the end may wait for a file system.
  static constexpr Duration kPatience = std::chrono::milliseconds(500);

  EventLog(EventLoop& loop, EventSource source);
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  /// In this folder, from now on; empty: nowhere.
  void Open(const std::string& folder);
  /// In a folder of its own, for who has no workers. What goes wrong is logged.
  void OpenForCoordinator(const LaunchPlan& plan);

  /// With the last news, the ledger is left beside the events.
  void Record(const job::News& news, const TimeLedger& ledger);
  void Record(const node::News& news);
  void Record(const watch::Finding& finding);
  /// A file of its own in the same folder. Returns its path, for people; empty: nothing is kept.
  std::string LeaveBeside(const std::string& name, const std::string& text);

  /// EventFile::Finish().
  void Finish(MonoTime deadline);

 private:
  template <class News>
  void Append(const News& news);

  EventLoop& loop_;
  const EventSource source_;
  std::unique_ptr<EventFile> file_;
  /// The folder, for people: in one that is made with the first event, * stands for its end.
  std::string place_;
};

}  // namespace fsdprun
