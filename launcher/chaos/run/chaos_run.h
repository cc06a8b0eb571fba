#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "launcher/chaos/plan/awake_time.h"
#include "launcher/chaos/plan/campaign.h"
#include "launcher/chaos/plan/chaos_options.h"
#include "launcher/chaos/plan/course.h"
#include "launcher/chaos/plan/job_over.h"
#include "launcher/chaos/plan/report.h"
#include "launcher/chaos/plan/wrapped_job.h"
#include "launcher/chaos/run/injector.h"
#include "launcher/chaos/run/job_processes.h"
#include "launcher/chaos/run/job_watch.h"
#include "launcher/chaos/run/launches.h"
#include "launcher/chaos/run/scratch_folder.h"
#include "launcher/chaos/run/tcp_link.h"
#include "launcher/cli/option_table.h"
#include "launcher/report/console.h"
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
  // chaos_run_job.cc: where the job comes from, and where it is.
  absl::Status Start();
  absl::Status StartJob();
  absl::Status StartNodes();
  absl::Status Attach();
  JobWatch::Which WhichJob() const;
  std::vector<JobProcess> FindProcesses() const;

  MonoTime Now();
  void Tick();
  void OnView(JobView view);
  void OnJobEnd(const JobOver& over);
  void OnOtherSignal(int signal);
  void OnCannot(const absl::Status& why);
  void Carry(const std::vector<Campaign::Action>& actions);
  void Carry(const std::vector<Course::Action>& actions);
  void BeginFault(size_t index);
  void OnFaultBegun(size_t index, absl::StatusOr<Injector::Done> done);
  void LiftFault(size_t index);
  void TellAnswers();
  void WarnOfRestarts();
  /// Of a job of which no process that was started here tells.
  void LookForTheEnd();
  void OnJobOfCommandOver(const JobOver& over);
  void Verify();
  void OnVerifyEnd(int code);
  void Finish();
  Outcome OutcomeNow() const;
  /// False if somebody has asked for it as JSON and has not got it.
  bool Report();
  bool ReportAsJson(const Outcome& outcome);
  void Say(const std::string& line);
  void SayWarning(const std::string& warning);
  bool StartsJob() const { return setting_.wrapped.has_value(); }
  Form form() const { return StartsJob() ? setting_.wrapped->form : Form::kAttached; }

  // Constant after construction.
  const Setting setting_;
  const Environment environment_;

  // Owned by the loop thread.
  EventLoop loop_;
  SignalWatcher signals_;
  /// Nobody who does not read it holds up faults, or the ways of the nodes to their coordinator.
  Console console_;
  /// Of what Now() returns; the loop's timers and the console go by the clock.
  AwakeTime awake_;
  Campaign campaign_;
  Course course_;
  std::vector<std::unique_ptr<TcpLink>> links_;
  /// Set if the job is started here.
  std::unique_ptr<ScratchFolder> scratch_;
  std::unique_ptr<Launches> launches_;
  Injector injector_;
  std::unique_ptr<JobWatch> watch_;
  std::unique_ptr<ChildProcess> verify_;
  /// A job that was not started here.
  std::optional<JobEntry> attached_;
  JobView view_;
  MonoTime seen_at_{};
  /// What the job has said, of its own end.
  std::optional<int> finished_code_;
  Outcome outcome_;
  /// Which records were told of, since they were answered or not.
  std::vector<bool> told_;
  bool is_warned_ = false;
  /// Another job was told of, which is none of ours.
  bool has_told_of_other_ = false;
  bool is_finished_ = false;
};

}  // namespace fsdprun::chaos
