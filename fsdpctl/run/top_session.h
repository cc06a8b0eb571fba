#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "fsdpctl/jobs/job_feed.h"
#include "fsdpctl/jobs/job_options.h"
#include "fsdpctl/jobs/job_pin.h"
#include "fsdpctl/screen/screen.h"
#include "fsdpctl/top/link.h"
#include "fsdpctl/top/snapshot.h"
#include "fsdpctl/top/step_rate.h"
#include "fsdpctl/top/view.h"
#include "fsdpctl/top/world_clock.h"
#include "launcher/cli/option_table.h"
#include "launcher/run/signals.h"

namespace fsdprun {

/// Shows a job on the whole screen until somebody quits. Thread: main thread.
class TopSession {
 public:
  TopSession(const JobOptions& options, const Environment& environment);
  ~TopSession();
  TopSession(const TopSession&) = delete;
  TopSession& operator=(const TopSession&) = delete;

  /// Errors: the job's, if it has never answered, and Screen::Open()'s. A signal that ends it ends
  /// the process, once the terminal is restored.
  absl::Status Run();

 private:
  JobFeed::Ask Asking(const v1::ControlQuestion& question, const std::string& job) const;
  void BeginStates();
  void BeginEvents();
  void OnStatus(const v1::JobStatus& status);
  void TakeStatus(const v1::JobStatus& status, MonoTime now);
  void OnEvents(const v1::EventLines& lines);
  bool OnEnded(const absl::Status& status);
  void OnSignal(int signal);
  void OnKeys(uint32_t events);
  void OnWritable(uint32_t events);
  void AwaitTerminal(bool awaits);
  void Suspend();
  void OpenScreen();
  void Tick();
  void Draw();
  /// What is known, as of now.
  void Refresh(MonoTime now);
  void Quit(absl::Status status);

  const JobOptions options_;
  const Environment& environment_;
  EventLoop loop_;
  SignalWatcher signals_;

  // Owned by the loop thread.
  std::unique_ptr<top::Screen> screen_;
  JobPin pin_;
  top::Link link_;
  top::WorldClock world_;
  top::StepRate rate_;
  top::Snapshot snapshot_;
  /// What its ages are as of.
  MonoTime aged_to_{};
  top::View view_;
  /// Rows of the table at once.
  int page_ = 1;
  EventLoop::TimerId timer_ = 0;
  absl::Status result_;
  int ending_signal_ = 0;
  bool are_events_new_ = true;
  /// The terminal has yet to take what was drawn last.
  bool awaits_terminal_ = false;
  /// Nor has a newer frame been drawn.
  bool is_outdated_ = false;
  std::unique_ptr<JobFeed> states_;
  std::unique_ptr<JobFeed> events_;
};

}  // namespace fsdprun
