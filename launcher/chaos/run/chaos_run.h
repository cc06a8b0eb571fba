#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "launcher/chaos/plan/campaign.h"
#include "launcher/chaos/plan/chaos_options.h"
#include "launcher/chaos/plan/course.h"
#include "launcher/chaos/plan/report.h"
#include "launcher/chaos/plan/wrapped_job.h"
#include "launcher/chaos/run/injector.h"
#include "launcher/chaos/run/job_processes.h"
#include "launcher/chaos/run/job_watch.h"
#include "launcher/chaos/run/launches.h"
#include "launcher/chaos/run/scratch_folder.h"
#include "launcher/chaos/run/tcp_link.h"
#include "launcher/cli/option_table.h"
#include "launcher/run/signals.h"

namespace fsdprun::chaos {

/// A run of `fsdprun chaos` from the job's start, or where it is found, to the report. Construct on
/// the main thread before other threads exist.
class ChaosRun {
 public:
  struct Setting {
    ChaosOptions options;
    FaultPlan plan;
    /// Printed, so that the plan can be had again.
    std::optional<uint64_t> seed;
    /// What is started; unset: the job runs already.
    std::optional<WrappedJob> wrapped;
    /// Where the report goes with --json; standard output is standard error then.
    int report_fd = 1;
  };

  ChaosRun(Setting setting, const Environment& environment);
  ~ChaosRun();
  ChaosRun(const ChaosRun&) = delete;
  ChaosRun& operator=(const ChaosRun&) = delete;

  /// Returns the exit code.
  int Run();

 private:
  absl::Status Start();
  absl::Status StartJob();
  absl::Status StartNodes();
  absl::Status Attach();
  JobWatch::Find Finder();
  std::vector<JobProcess> FindProcesses() const;
  void Tick();
  void OnView(const JobView& view);
  void OnJobEnd(int code);
  void OnCannot(const absl::Status& why);
  void Carry(const std::vector<Campaign::Action>& actions);
  void Carry(const std::vector<Course::Action>& actions);
  void BeginFault(size_t index);
  void LiftFault(size_t index);
  void TellAnswers();
  void WarnOfRestarts();
  /// Of a job that was not started here, whose coordinator may be gone for good.
  void LookForTheEnd();
  void Verify();
  void OnVerifyEnd(int code);
  void Finish();
  Outcome OutcomeNow() const;
  bool Report() const;
  void Say(const std::string& line) const;
  bool StartsJob() const { return setting_.wrapped.has_value(); }

  // Constant after construction.
  const Setting setting_;
  const Environment environment_;

  // Owned by the loop thread.
  EventLoop loop_;
  SignalWatcher signals_;
  Campaign campaign_;
  Course course_;
  std::vector<std::unique_ptr<TcpLink>> links_;
  /// Set if the job is started here.
  std::unique_ptr<ScratchFolder> scratch_;
  std::unique_ptr<Launches> launches_;
  Injector injector_;
  std::unique_ptr<JobWatch> watch_;
  std::unique_ptr<ChildProcess> verify_;
  /// Of a job that was not started here.
  std::shared_ptr<JobFollower> attached_;
  JobView view_;
  MonoTime seen_at_{};
  /// What the job has said, of its own end.
  std::optional<int> finished_code_;
  Outcome outcome_;
  /// Which records were told of, since they were answered or not.
  std::vector<bool> told_;
  bool is_warned_ = false;
  bool is_finished_ = false;
};

}  // namespace fsdprun::chaos
