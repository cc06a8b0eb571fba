#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "base/unique_fd.h"
#include "tests/unit/base/failing_system_call.h"
#include "tests/unit/launcher/run/slurm_queue_case.h"

namespace fsdprun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SlurmQueueEndTest : public SlurmQueueCase {
 protected:
  /// Ends when `is_so`, by an operator's impatience.
  void EndWhen(std::function<bool()> is_so, SlurmQueue::Means means) {
    Queue(std::move(means)).NoteSignal(SIGTERM);
    WhenSo(std::move(is_so), [this] { queue_->NoteSignal(SIGINT); });
    queue_->EndRun(StoppedBy(SIGTERM), machine_);
  }
  /// The same with a longer limit for a call each time, until the queue says `what`: how long this
  /// machine takes to start a program is its own affair.
  void EndUntilToldThat(const std::string& what) {
    for (Duration limit = std::chrono::milliseconds(100);
         limit < std::chrono::minutes(1) && !absl::StrContains(printed_, what); limit *= 2) {
      printed_.clear();
      SlurmQueue::Means means = Means();
      means.call_timeout = means.death_timeout = limit;
      EndWhen([this] { return !printed_.empty(); }, std::move(means));
    }
    EXPECT_THAT(printed_, HasSubstr(what));
  }
};

TEST_F(SlurmQueueEndTest, ControllerThatDoesNotAnswerIsAskedAgain) {
  Say("COMPLETING", 0, "TimeLimit");
  Write("fails", "Socket timed out on send/recv operation\nUnable to contact slurm controller\n");
  Write("busy", "Socket timed out on send/recv operation\n");
  Queue().NoteSignal(SIGTERM);
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kShow, kShow, kRequeue, kShow, kRequeue));
  EXPECT_THAT(printed_, HasSubstr("cannot requeue job 7 yet: scontrol --oneliner show job 7 ended "
                                  "with 1: Socket timed out"));
}

TEST_F(SlurmQueueEndTest, RequeueThatWasDoneThoughNobodySaidSoIsSeen) {
  Write("busy", "Socket timed out on send/recv operation\n");
  Queue().NoteSignal(SIGTERM);
  When(kRequeue, [this] { Say("COMPLETING", 0, "None", 1); });
  bool has_come = false;
  const auto is_told = [this] { return printed_.find("Slurm has requeued") != std::string::npos; };
  WhenSo(is_told, [this, &has_come] {
    has_come = true;
    queue_->NoteSignal(SIGTERM);
  });
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue, kShow));
  EXPECT_TRUE(has_come) << "what follows in the batch file begins before Slurm has ended the job";
}

TEST_F(SlurmQueueEndTest, JobThatIsCancelledBetweenTwoTriesIsLeftWithoutAWord) {
  Write("busy", "Socket timed out on send/recv operation\n");
  Queue().NoteSignal(SIGTERM);
  When(kRequeue, [this] { Say("COMPLETING", 0); });
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue, kShow));
  EXPECT_THAT(printed_, Not(HasSubstr("\n\n")));
}

TEST_F(SlurmQueueEndTest, NoticeIsObeyedThoughTheControllerDoesNotSayHowTheJobIs) {
  Write("fails", "Socket timed out on send/recv operation\n");
  Queue().NoteSignal(SIGUSR1);
  When(kRequeue, [this] { queue_->NoteSignal(SIGTERM); });
  queue_->EndRun(StoppedBy(SIGUSR1), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
}

TEST_F(SlurmQueueEndTest, SlurmsSignalBeforeScontrolHasEndedIsNotWaitedForAgain) {
  Write("slow", "");
  Queue().NoteSignal(SIGUSR1);
  When(kRequeue, [this] {
    queue_->NoteSignal(SIGTERM);
    std::filesystem::remove(folder_ / "slow");
  });
  const EventLoop::TimerId limit = loop_.At(MonoNow() + std::chrono::seconds(30), [this] {
    ADD_FAILURE() << "waits for a second one";
    queue_->NoteSignal(SIGTERM);
  });
  queue_->EndRun(StoppedBy(SIGUSR1), machine_);
  loop_.Cancel(limit);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
}

TEST_F(SlurmQueueEndTest, NoticeIsNoEndOfARequeuedJob) {
  Queue().NoteSignal(SIGUSR1);
  bool has_come = false;
  When(kRequeue, [this, &has_come] {
    queue_->NoteSignal(SIGUSR1);
    loop_.At(MonoNow() + std::chrono::milliseconds(20), [this, &has_come] {
      has_come = true;
      queue_->NoteSignal(SIGTERM);
    });
  });
  queue_->EndRun(StoppedBy(SIGUSR1), machine_);
  EXPECT_TRUE(has_come);
}

TEST_F(SlurmQueueEndTest, NoticeAfterTheOutcomeAsksForNothing) {
  plan_.requeue = RequeueMode::kAuto;
  Queue();
  machine_.Step(job::OperatorStop{SIGTERM}, MonoNow());
  ASSERT_TRUE(machine_.outcome().has_value());
  queue_->OnStep(machine_);
  queue_->NoteSignal(SIGUSR1);
  queue_->EndRun(JobOutcome{}, machine_);
  EXPECT_THAT(Calls(), IsEmpty());
}

/// Two nodes whose workers have all ended with 0.
Job Done(const Progress& progress) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Say(1, 1, AgentHeartbeat{progress});
  for (const uint64_t who : {1, 2}) {
    job.Exit(who, 1, 0, 0);
    job.Exit(who, 1, 1, 0);
  }
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kSucceeded);
  return job;
}

TEST_F(SlurmQueueEndTest, SignalThatIsPassedOnAfterTheOutcomeAsksForNothing) {
  const Job job = Done({});
  Queue().OnStep(job.machine_);
  queue_->NotePassedSignal(SIGUSR1);
  queue_->EndRun(job.machine_.outcome(), job.machine_);
  EXPECT_THAT(Calls(), IsEmpty());
}

// Slurm has told the workers before the launcher, and they have saved and ended at once.
TEST_F(SlurmQueueEndTest, NoticeAfterTheOutcomeAsksForTheStepsThatAreLeft) {
  plan_.requeue = RequeueMode::kAuto;
  for (const int64_t step : {10, 9}) {
    const Job job = Done({.step = step, .total = 10});
    Queue().OnStep(job.machine_);
    queue_->NoteSignal(SIGUSR1);
    if (step < 10) {
      When(kRequeue, [this] { queue_->NoteSignal(SIGTERM); });
    }
    queue_->EndRun(job.machine_.outcome(), job.machine_);
    EXPECT_EQ(HasCalled(kRequeue), step < 10);
  }
}

// The same at the end of a time limit, and in a cancellation.
TEST_F(SlurmQueueEndTest, SlurmIsAskedWhyASignalCameAfterTheOutcomeIfThereAreStepsLeft) {
  plan_.requeue = RequeueMode::kAuto;
  const Job job = Done({.step = 9, .total = 10});
  for (const char* reason : {"None", "TimeLimit"}) {
    Say("COMPLETING", 0, reason);
    Queue().OnStep(job.machine_);
    queue_->NoteSignal(SIGTERM);
    queue_->EndRun(job.machine_.outcome(), job.machine_);
    EXPECT_TRUE(HasCalled(kShow));
    EXPECT_EQ(HasCalled(kRequeue), reason == std::string("TimeLimit"));
  }
}

TEST_F(SlurmQueueEndTest, RefusalIsNotRepeated) {
  Write("busy", "Requested operation is presently disabled for job 7\n");
  Queue().NoteSignal(SIGUSR1);
  queue_->EndRun(StoppedBy(SIGUSR1), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
  EXPECT_THAT(printed_, HasSubstr("is presently disabled for job 7; to go on, scontrol requeue 7"));
}

TEST_F(SlurmQueueEndTest, OperatorNeedNotWaitForTheController) {
  Write("fails", std::string(200, '\n'));
  Queue().NoteSignal(SIGTERM);
  When(kShow, [this] { queue_->NoteSignal(SIGINT); });
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(Calls(), Contains(kShow));
}

TEST_F(SlurmQueueEndTest, RunBeganWhileTheLoopRunsForOthersEndsThere) {
  Say("COMPLETING", 0, "TimeLimit");
  Queue().NoteSignal(SIGTERM);
  queue_->BeginEnd(StoppedBy(SIGTERM), machine_);
  EXPECT_TRUE(waiter_.PollUntil([this] { return HasCalled(kRequeue); }));
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
}

TEST_F(SlurmQueueEndTest, RunsThatBringTheJobNoFurtherAreCountedFromRunToRun) {
  plan_.requeue = RequeueMode::kAuto;
  for (int run = 3; run < 5; ++run) {
    StopShortRun(run, /*goes_on=*/true);
    EXPECT_THAT(printed_, HasSubstr("2 killed when the grace was over"));
    EXPECT_THAT(printed_,
                HasSubstr(absl::StrCat("run ", run - 2, " of 3 without a sign of progress")));
    EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
  }
  StopShortRun(5, /*goes_on=*/false);
  EXPECT_THAT(printed_, HasSubstr("3 runs in a row"));
  EXPECT_THAT(Calls(), ElementsAre(kShow));
  // The last run leaves nothing behind.
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "config/fsdprun/slurm-runs"));
}

TEST_F(SlurmQueueEndTest, OtherLaunchersOfTheJobDoNotChangeTheCount) {
  plan_.requeue = RequeueMode::kAuto;
  plan_.program = {"train.py"};
  for (int run = 0; run < 2; ++run) {
    StopShortRun(run, /*goes_on=*/true);
    for (const char* program : {"prepare.py", "train.py"}) {  // Also one that ends by itself.
      plan_.program = {program};
      plan_.scheduler_job->restarts = run + 1;
      Queue().EndRun(JobOutcome{}, machine_);
    }
  }
  StopShortRun(2, /*goes_on=*/false);
  EXPECT_THAT(printed_, HasSubstr("3 runs in a row"));
}

TEST_F(SlurmQueueEndTest, JobThatIsAlwaysRequeuedHasNoLastRun) {
  for (int run = 0; run < 4; ++run) {
    StopShortRun(run, /*goes_on=*/true);
    EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
  }
  EXPECT_THAT(printed_, HasSubstr("run 4 in a row without a sign of progress"));
}

TEST_F(SlurmQueueEndTest, EveryRunCountsWithoutAHomeDirectory) {
  environment_.erase("XDG_CONFIG_HOME");
  plan_.requeue = RequeueMode::kAuto;
  StopShortRun(2, /*goes_on=*/false);
  EXPECT_THAT(printed_, HasSubstr("3 runs in a row"));
  Say("COMPLETING", 0, "TimeLimit", 2);
  Queue().NoteSignal(SIGTERM);
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_EQ(Calls().back(), kRequeue);
}

TEST_F(SlurmQueueEndTest, MachineWithoutScontrolIsNotAskedAgain) {
  environment_["PATH"] = (folder_ / "none").string();
  Queue().NoteSignal(SIGTERM);
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(printed_, HasSubstr("cannot requeue job 7: cannot start scontrol: no such program on "
                                  "PATH"));
  EXPECT_THAT(Calls(), IsEmpty());
}

/// A search for scontrol that hangs until the test ends it.
class HangingSearch {
 public:
  std::function<ProgramLookup::Found()> Of(const std::string& found) const {
    return [ends = ends_, found]() -> ProgramLookup::Found {
      ends.wait();
      return found;
    };
  }
  void End() { end_.set_value(); }

 private:
  std::promise<void> end_;
  std::shared_future<void> ends_ = end_.get_future().share();
};

TEST_F(SlurmQueueEndTest, QuestionWaitsForTheSearchForScontrol) {
  Say("COMPLETING", 0, "TimeLimit");
  HangingSearch search;
  SlurmQueue::Means means = Means();
  means.find_scontrol = search.Of(folder_ / "scontrol");
  Queue(std::move(means)).NoteSignal(SIGTERM);
  queue_->BeginEnd(StoppedBy(SIGTERM), machine_);
  EXPECT_TRUE(waiter_.RunUntil([] { return true; }));
  EXPECT_THAT(Calls(), IsEmpty());
  search.End();
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
}

TEST_F(SlurmQueueEndTest, ScontrolThatWasNotThereAtFirstIsLookedForAgain) {
  const auto searches = std::make_shared<std::atomic<int>>(0);
  SlurmQueue::Means means = Means();
  means.find_scontrol = [searches,
                         path = (folder_ / "scontrol").string()]() -> ProgramLookup::Found {
    if (++*searches == 1) {
      return absl::NotFoundError("an automounter is late");
    }
    return path;
  };
  Queue(std::move(means));
  ASSERT_TRUE(waiter_.PollUntil([&searches] { return *searches == 1; }));
  queue_->NoteSignal(SIGTERM);
  Say("COMPLETING", 0, "TimeLimit");
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
}

TEST_F(SlurmQueueEndTest, ScontrolThatHasMovedIsLookedForAgain) {
  const auto searches = std::make_shared<std::atomic<int>>(0);
  SlurmQueue::Means means = Means();
  means.find_scontrol = [searches, folder = folder_]() -> ProgramLookup::Found {
    if (++*searches == 2) {
      return absl::NotFoundError("being replaced");
    }
    return (folder / (*searches == 1 ? "old/scontrol" : "scontrol")).string();
  };
  Queue(std::move(means)).NoteSignal(SIGTERM);
  Say("COMPLETING", 0, "TimeLimit");
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(Calls(), ElementsAre(kShow, kRequeue));
}

TEST_F(SlurmQueueEndTest, SearchThatHangsIsNotWaitedForWithoutEnd) {
  HangingSearch search;
  SlurmQueue::Means means = Means();
  means.find_scontrol = search.Of("");
  means.call_timeout = std::chrono::milliseconds(10);
  EndWhen([this] { return !printed_.empty(); }, std::move(means));
  EXPECT_THAT(printed_, HasSubstr("scontrol --oneliner show job 7 was not started: the search for "
                                  "scontrol on PATH has not ended within 0.01 s"));
  search.End();
}

// Its file system answers no more since it was found.
TEST_F(SlurmQueueEndTest, ScontrolThatCannotBeOpenedIsNotWaitedForWithoutEnd) {
  ::signal(SIGIO, SIG_IGN);
  // Whoever opens a file with a lease waits until that is given back.
  UniqueFd leased(::open((folder_ / "scontrol").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fcntl(leased.get(), F_SETLEASE, F_WRLCK), 0);
  EndUntilToldThat("show job 7 was not started: to open it has not ended within ");
  EXPECT_THAT(Calls(), IsEmpty());
}

TEST_F(SlurmQueueEndTest, ScontrolThatHangsIsNotWaitedForWithoutEnd) {
  Write("silent", "");
  SlurmQueue::Means means = Means();
  means.call_timeout = std::chrono::milliseconds(200);
  EndWhen([this] { return Calls().size() >= 2; }, std::move(means));
  EXPECT_THAT(printed_, HasSubstr(" has not ended within 0.2 s"));
}

// As one that waits for a file system.
TEST_F(SlurmQueueEndTest, ScontrolThatCannotBeKilledIsLeft) {
  Write("silent", "");
  bool is_filtered = false;
  std::thread([&] {
    is_filtered = FailFromNowOn({.number = SYS_pidfd_send_signal});
    EndUntilToldThat(" s, nor when it was killed");
  }).join();
  ASSERT_TRUE(is_filtered) << "this kernel takes no filter of system calls";
  std::filesystem::remove(folder_ / "silent");
  EXPECT_TRUE(waiter_.PollUntil([] { return ::waitpid(-1, nullptr, WNOHANG) != 0; }));
}

TEST_F(SlurmQueueEndTest, JobThatEndsByItselfAsksNobody) {
  Queue().EndRun(JobOutcome{}, machine_);
  EXPECT_THAT(Calls(), IsEmpty());
}

}  // namespace
}  // namespace fsdprun
