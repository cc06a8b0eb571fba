#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "base/mutex.h"
#include "fsdpctl/jobs/job_options.h"
#include "fsdpctl/run/job_feed.h"
#include "fsdpctl/screen/screen.h"
#include "fsdpctl/top/link.h"
#include "fsdpctl/top/snapshot.h"
#include "fsdpctl/top/step_rate.h"
#include "fsdpctl/top/view.h"
#include "launcher/cli/option_table.h"
#include "launcher/run/signals.h"

namespace fsdprun {

/// Which job is asked: once it has answered, no other one that takes its place. Any thread.
class ChosenJob {
 public:
  /// As --job says.
  explicit ChosenJob(std::string name) : name_(std::move(name)) {}

  std::string name() const;
  void Answered(const v1::JobStatus& status);
  /// There is no such job. Its coordinator may have another pid now.
  void NotFound();

 private:
  mutable Mutex mu_;
  std::string name_ ABSL_GUARDED_BY(mu_);
  std::string run_id_ ABSL_GUARDED_BY(mu_);
};

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
  JobFeed::Ask Asking(const v1::ControlQuestion& question) const;
  void BeginFeeds();
  void OnStatus(const v1::JobStatus& status);
  void OnEvents(const v1::EventLines& lines);
  bool OnEnded(const absl::Status& status);
  void OnSignal(int signal);
  void OnKeys(uint32_t events);
  void Suspend();
  void OpenScreen();
  void Tick();
  void Draw();
  void Quit(absl::Status status);

  const JobOptions options_;
  const Environment& environment_;
  EventLoop loop_;
  SignalWatcher signals_;

  // Owned by the loop thread.
  std::unique_ptr<top::Screen> screen_;
  top::Link link_;
  top::StepRate rate_;
  top::Snapshot snapshot_;
  top::View view_;
  /// Rows of the table at once.
  int page_ = 1;
  EventLoop::TimerId timer_ = 0;
  absl::Status result_;
  int ending_signal_ = 0;
  bool are_events_new_ = true;
  const std::shared_ptr<ChosenJob> chosen_;
  std::unique_ptr<JobFeed> states_;
  std::unique_ptr<JobFeed> events_;
};

}  // namespace fsdprun
