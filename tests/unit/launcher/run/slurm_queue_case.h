#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/run/slurm_queue.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"
#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {

/// A SlurmQueue and a scontrol that says what the test wants.
class SlurmQueueCase : public testing::Test {
 protected:
  static constexpr char kShow[] = "--oneliner show job 7";
  static constexpr char kRequeue[] = "requeue 7";

  // Says what `record` says. As long as `fails` (of the question) or `busy` (of the requeue) has
  // lines, each call takes one and fails with it. As long as there is `slow` (of the requeue) or
  // `silent` (of the question), it says nothing.
  static constexpr char kScontrol[] = R"(#!/bin/sh
d=$(dirname "$0")
echo "$*" >>$d/calls
trouble() {
  if [ -s $d/$1 ]; then
    head -n 1 $d/$1 >&2
    sed -i 1d $d/$1
    exit 1
  fi
}
case "$1" in
requeue)
  trouble busy
  while [ -e $d/slow ]; do sleep 0.02; done
  ;;
*)
  trouble fails
  while [ -e $d/silent ]; do sleep 0.02; done
  cat $d/record
  ;;
esac
)";

  SlurmQueueCase() {
    char name[] = "/tmp/fsdprun_test_XXXXXX";
    folder_ = ::mkdtemp(name);
    Write("scontrol", kScontrol);
    std::filesystem::permissions(folder_ / "scontrol", std::filesystem::perms::owner_all);
    environment_ = {{"PATH", absl::StrCat(folder_.string(), ":", ::getenv("PATH"))},
                    {"XDG_CONFIG_HOME", (folder_ / "config").string()}};
    plan_.scheduler_job = SchedulerJob{.name = "7", .nodes = {"node-1", "node-2"}};
    plan_.requeue = RequeueMode::kAlways;
    Say("RUNNING", 3600);
  }
  ~SlurmQueueCase() override {
    queue_.reset();
    RemoveFolder(folder_);
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / "part") << text;
    std::filesystem::rename(folder_ / "part", folder_ / name);
  }
  /// What scontrol says of the job from now on.
  void Say(const std::string& state, int64_t seconds_left, const std::string& reason = "None",
           int restarts = 0) {
    const int64_t now = std::time(nullptr);
    Write("record",
          absl::StrCat("JobId=7 JobName=x JobState=", state, " Reason=", reason,
                       " Dependency=(null) Requeue=1 Restarts=", restarts,
                       " BatchFlag=1 StartTime=", now - 10, " EndTime=", now + seconds_left, "\n"));
  }
  std::vector<std::string> Calls() const {
    std::vector<std::string> calls;
    std::ifstream file(folder_ / "calls");
    for (std::string line; std::getline(file, line);) {
      calls.push_back(line);
    }
    return calls;
  }
  bool HasCalled(const std::string& call) const {
    const std::vector<std::string> calls = Calls();
    return std::find(calls.begin(), calls.end(), call) != calls.end();
  }

  /// No machine is so slow that one of the limits is reached that are the product's for a reason of
  /// its own.
  SlurmQueue::Means Means() {
    SlurmQueue::Means means = SlurmQueue::UsualMeans(loop_, environment_);
    means.files_timeout = means.doubt_timeout = std::chrono::seconds(60);
    return means;
  }
  SlurmQueue& Queue() { return Queue(Means()); }
  SlurmQueue& Queue(SlurmQueue::Means means) {
    SlurmQueue::Hooks hooks;
    hooks.stop = [this](int signal) {
      stops_.push_back(signal);
      waiter_.Notice();
    };
    hooks.is_stopping = [this] { return !stops_.empty(); };
    hooks.print = [this](const std::string& text) { absl::StrAppend(&printed_, text, "\n"); };
    queue_ = std::make_unique<SlurmQueue>(loop_, plan_, environment_, std::move(hooks),
                                          std::move(means));
    return *queue_;
  }
  static JobOutcome StoppedBy(int signal, int well = 2) {
    JobOutcome outcome;
    outcome.kind = OutcomeKind::kStoppedBySignal;
    outcome.signal = signal;
    outcome.ends = {.workers = 2, .well = well, .killed = 2 - well};
    return outcome;
  }
  /// Calls `then` as soon as `is_so`, while somebody else runs the loop.
  void WhenSo(std::function<bool()> is_so, std::function<void()> then) {
    loop_.At(MonoNow() + std::chrono::milliseconds(2),
             [this, is_so, then] { is_so() ? then() : WhenSo(is_so, then); });
  }
  /// The same as soon as `call` is there.
  void When(const std::string& call, std::function<void()> then) {
    WhenSo([this, call] { return HasCalled(call); }, std::move(then));
  }

  /// Ten seconds after its start the run number `run` gets a notice, and its workers are killed
  /// before they have saved. If `goes_on`, Slurm ends the requeued job.
  void StopShortRun(int run, bool goes_on) {
    Say("RUNNING", 3600, "None", run);
    plan_.scheduler_job->restarts = run;
    printed_.clear();
    std::filesystem::remove(folder_ / "calls");
    Queue().NoteSignal(SIGUSR1);
    if (goes_on) {
      When(kRequeue, [this] { queue_->NoteSignal(SIGTERM); });
    }
    queue_->EndRun(StoppedBy(SIGUSR1, /*well=*/0), machine_);
  }

  std::filesystem::path folder_;
  Environment environment_;
  LaunchPlan plan_;
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  JobMachine machine_{Spec(1, 2, 0)};
  std::vector<int> stops_;
  std::string printed_;
  std::unique_ptr<SlurmQueue> queue_;
};

}  // namespace fsdprun
