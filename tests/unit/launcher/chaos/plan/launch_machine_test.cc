#include "launcher/chaos/plan/launch_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "absl/strings/str_cat.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kKilled = 128 + SIGKILL;

std::string TextOf(const LaunchMachine::Action& action) {
  using Kind = LaunchMachine::Action::Kind;
  switch (action.kind) {
    case Kind::kStart:
      return absl::StrCat("start ", action.index);
    case Kind::kSignal:
      return absl::StrCat("signal ", action.index, " ", action.signal);
    case Kind::kSignalGroup:
      return absl::StrCat("signal group ", action.index, " ", action.signal);
    case Kind::kSignalMembers:
      return absl::StrCat("signal members ", action.index, " ", action.signal);
    case Kind::kSignalRest:
      return absl::StrCat("signal rest ", action.signal);
    case Kind::kKillAll:
      return "kill all";
    case Kind::kSay:
      return "say: " + action.text;
    case Kind::kGiveUp:
      return "give up: " + action.text;
    case Kind::kOver:
      return absl::StrCat("over ", action.code);
  }
  return "";
}

/// A coordinator, 0, and two launchers, with virtual time.
class LaunchMachineTest : public ::testing::Test {
 protected:
  explicit LaunchMachineTest(LaunchMachine::Form form = LaunchMachine::Form::kNodes,
                             const std::vector<std::string>& names = {"the coordinator", "node 0",
                                                                      "node 1"})
      : machine_(form, names), count_(names.size()) {}

  void StartAll() {
    EXPECT_EQ(Step().size(), count_);
    for (size_t i = 0; i < count_; ++i) {
      machine_.OnStarted(i, now_);
    }
  }
  std::vector<std::string> Step(Duration later = {}, int rest = 0) {
    now_ += later;
    std::vector<std::string> texts;
    for (const LaunchMachine::Action& action : machine_.Step(now_, rest)) {
      texts.push_back(TextOf(action));
    }
    return texts;
  }
  void End(size_t index, int code) { machine_.OnEnd(index, now_, code); }
  void StartAgain(size_t index, Duration pause) {
    EXPECT_THAT(Step(pause - milliseconds(1)), IsEmpty());
    EXPECT_THAT(Step(milliseconds(1)), ElementsAre(absl::StrCat("start ", index)));
    machine_.OnStarted(index, now_);
  }
  /// The same, of one that has ended by itself.
  void StartAgainAndSay(size_t index, Duration pause) {
    EXPECT_THAT(Step(pause - milliseconds(1)), IsEmpty());
    EXPECT_THAT(Step(milliseconds(1)),
                ElementsAre(HasSubstr("before the job was over, and is started again"),
                            absl::StrCat("start ", index)));
    machine_.OnStarted(index, now_);
  }

  LaunchMachine machine_;
  const size_t count_;
  MonoTime now_{};
};

class LaunchMachineJobTest : public LaunchMachineTest {
 protected:
  LaunchMachineJobTest() : LaunchMachineTest(LaunchMachine::Form::kJob, {"the job"}) {}
};

TEST_F(LaunchMachineTest, WhoWasKilledIsStartedAgain) {
  StartAll();
  for (const size_t index : {size_t{0}, size_t{2}, size_t{2}}) {
    machine_.OnKilled(index);
    End(index, kKilled);
    StartAgain(index, milliseconds(300));
  }
}

TEST_F(LaunchMachineTest, ALauncherThatEndsBadlyIsStartedAgainAndThatIsSaid) {
  StartAll();
  now_ += seconds(5);
  End(1, 1);
  EXPECT_THAT(Step(milliseconds(299)), IsEmpty());
  EXPECT_THAT(Step(milliseconds(1)),
              ElementsAre("say: node 0 has ended with 1 before the job was over, and is started "
                          "again",
                          "start 1"));
  machine_.OnStarted(1, now_);
  End(2, 0);
  EXPECT_THAT(Step(seconds(60)), IsEmpty());
}

TEST_F(LaunchMachineTest, NothingIsSaidOfLaunchersThatEndALittleBeforeTheJob) {
  StartAll();
  End(1, 1);
  EXPECT_THAT(Step(milliseconds(299)), IsEmpty());
  End(0, 1);
  End(2, 1);
  EXPECT_THAT(Step(milliseconds(1)), ElementsAre("over 1"));
}

TEST_F(LaunchMachineTest, AKillThatComesTooLateIsNoExcuse) {
  StartAll();
  machine_.OnKilled(0);
  End(0, 3);
  End(1, 3);
  End(2, 3);
  EXPECT_THAT(Step(), ElementsAre("over 3"));
}

TEST_F(LaunchMachineTest, ALauncherThatNeverGetsFarIsGivenUp) {
  StartAll();
  for (const int pause : {300, 600, 1200, 2400}) {
    End(1, 2);
    StartAgainAndSay(1, milliseconds(pause));
  }
  End(1, 2);
  EXPECT_THAT(Step(), ElementsAre(HasSubstr("give up: node 0 has ended with 2 within 1 s of its "
                                            "start, 5 times in a row"),
                                  "signal 0 15"));
  End(0, 143);
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_THAT(Step(seconds(20)), ElementsAre("signal 2 15"));
  End(2, 1);
  EXPECT_THAT(Step(), ElementsAre("over 143"));
  EXPECT_THAT(Step(seconds(99)), IsEmpty());
}

TEST_F(LaunchMachineTest, OnlyQuickEndsInARowCount) {
  StartAll();
  for (int i = 0; i < 20; ++i) {
    now_ += i % 4 == 3 ? seconds(2) : seconds(0);
    End(1, 2);
    EXPECT_THAT(Step(seconds(5)), ElementsAre(HasSubstr("is started again"), "start 1"));
    machine_.OnStarted(1, now_);
  }
}

TEST_F(LaunchMachineTest, AStartThatMayPassIsTriedAgainWithPauses) {
  EXPECT_EQ(Step().size(), count_);
  Duration tried{};
  for (int i = 0; i < 9; ++i) {
    machine_.OnCannotStart(1, now_, absl::UnavailableError("no process"));
    const MonoTime since = now_;
    while (Step(milliseconds(10)).empty()) {
      ASSERT_LE(now_ - since, seconds(1));
    }
    tried += now_ - since;
  }
  EXPECT_GT(tried, seconds(4));
  machine_.OnStarted(1, now_);
  EXPECT_THAT(Step(), IsEmpty());
}

TEST_F(LaunchMachineTest, WhatCannotBeStartedAgainEndsAll) {
  StartAll();
  machine_.OnKilled(1);
  End(1, kKilled);
  EXPECT_THAT(Step(seconds(1)), ElementsAre("start 1"));
  for (int i = 0; i < 9; ++i) {
    machine_.OnCannotStart(1, now_, absl::NotFoundError("no such program"));
    EXPECT_THAT(Step(seconds(1)), ElementsAre("start 1")) << i;
  }
  machine_.OnCannotStart(1, now_, absl::NotFoundError("no such program"));
  EXPECT_THAT(
      Step(),
      ElementsAre(
          testing::AllOf(
              HasSubstr(
                  "give up: node 0 could not be started again, in 10 attempts: no such program"),
              HasSubstr("the job is not to blame")),
          "signal 0 15"));
}

TEST_F(LaunchMachineTest, WithoutACoordinatorTheLaunchersAreTold) {
  StartAll();
  machine_.OnKilled(0);
  End(0, kKilled);
  machine_.End(now_, SIGINT);
  EXPECT_THAT(Step(), ElementsAre("signal 1 2", "signal 2 2"));
  EXPECT_THAT(Step(seconds(59)), IsEmpty());
  EXPECT_THAT(Step(seconds(1)), ElementsAre("kill all"));
  End(1, kKilled);
  End(2, kKilled);
  EXPECT_THAT(Step(), ElementsAre("over 1"));
}

TEST_F(LaunchMachineTest, ACoordinatorThatIsKilledAtTheEndHasToldNobody) {
  StartAll();
  machine_.End(now_, SIGTERM);
  EXPECT_THAT(Step(), ElementsAre("signal 0 15"));
  machine_.OnKilled(0);
  End(0, kKilled);
  EXPECT_THAT(Step(), ElementsAre("signal 1 15", "signal 2 15"));
}

TEST_F(LaunchMachineTest, ACoordinatorThatIsJustBeingStartedIsTold) {
  EXPECT_EQ(Step().size(), count_);
  machine_.End(now_, SIGTERM);
  EXPECT_THAT(Step(), ElementsAre("signal 0 15"));
  machine_.OnStarted(1, now_);
  machine_.OnCannotStart(2, now_, absl::UnavailableError("no process"));
  machine_.OnCannotStart(0, now_, absl::UnavailableError("no process"));
  EXPECT_THAT(Step(), ElementsAre("signal 1 15"));
}

TEST_F(LaunchMachineTest, LaunchersHaveAWhileOnceTheJobIsOver) {
  StartAll();
  End(0, 0);
  End(1, 1);
  EXPECT_THAT(Step(seconds(19)), IsEmpty());
  EXPECT_THAT(Step(seconds(1)), ElementsAre("signal 2 15"));
  EXPECT_THAT(Step(seconds(60)), ElementsAre("kill all"));
  End(2, kKilled);
  EXPECT_THAT(Step(), ElementsAre("over 0"));
}

TEST_F(LaunchMachineTest, WhatIsPassedReachesLaunchersAndEndsNothing) {
  machine_.Pass(SIGUSR1);
  EXPECT_THAT(Step(), ElementsAre("start 0", "start 1", "start 2")) << "nobody is there yet";
  for (size_t i = 0; i < 3; ++i) {
    machine_.OnStarted(i, now_);
  }
  machine_.Pass(SIGUSR1);
  EXPECT_THAT(Step(),
              ElementsAre(absl::StrCat("signal 1 ", SIGUSR1), absl::StrCat("signal 2 ", SIGUSR1)));
  EXPECT_THAT(Step(seconds(1000)), IsEmpty());
}

TEST_F(LaunchMachineTest, WhatCannotBeKilledIsLeftAndSaid) {
  StartAll();
  machine_.KillAll(now_);
  EXPECT_THAT(Step(), ElementsAre("kill all"));
  End(0, kKilled);
  EXPECT_THAT(Step(seconds(10)), ElementsAre("kill all"));
  EXPECT_THAT(Step(milliseconds(1)), ElementsAre(HasSubstr("cannot be killed"), "over 137"));
}

TEST_F(LaunchMachineJobTest, ItsEndIsTheJobs) {
  StartAll();
  machine_.OnKilled(0);
  End(0, kKilled);
  EXPECT_THAT(Step(), ElementsAre("over 137"));
}

TEST_F(LaunchMachineJobTest, WhatIsPassedReachesTheCommand) {
  StartAll();
  machine_.Pass(SIGUSR2);
  EXPECT_THAT(Step(), ElementsAre(absl::StrCat("signal 0 ", SIGUSR2)));
}

TEST_F(LaunchMachineJobTest, AProgramThatIsNotThereIsGivenUpAtOnce) {
  EXPECT_THAT(Step(), ElementsAre("start 0"));
  machine_.OnCannotStart(0, now_, absl::NotFoundError("no such program"));
  EXPECT_THAT(Step(), ElementsAre(HasSubstr("the job could not be started: no such program; check"),
                                  "over 1"));
}

TEST_F(LaunchMachineJobTest, WhatAScriptLeavesIsToldAndThenKilled) {
  StartAll();
  machine_.End(now_, SIGINT);
  EXPECT_THAT(Step(), ElementsAre("signal group 0 2"));
  EXPECT_FALSE(machine_.LooksForRest());
  End(0, 130);
  EXPECT_TRUE(machine_.LooksForRest());
  EXPECT_THAT(Step({}, 3), ElementsAre("signal rest 2"));
  EXPECT_THAT(Step(seconds(60), 1), ElementsAre("signal rest 2", "kill all"));
  EXPECT_THAT(Step({}, 0), ElementsAre("over 130"));
}

TEST_F(LaunchMachineJobTest, WhatIsLeftOfAJobThatHasEndedIsToldToEnd) {
  StartAll();
  End(0, 0);
  EXPECT_THAT(Step({}, 1), ElementsAre("signal rest 15"));
  EXPECT_THAT(Step({}, 0), ElementsAre("over 0"));
}

TEST_F(LaunchMachineJobTest, AScriptThatWaitsGetsTheSignalToItsGroupLater) {
  StartAll();
  machine_.End(now_, SIGTERM);
  EXPECT_THAT(Step(), ElementsAre("signal 0 15"));
  EXPECT_THAT(Step(seconds(10)), ElementsAre("signal members 0 15"));
  EXPECT_THAT(Step(seconds(10)), IsEmpty());
  machine_.End(now_, SIGINT);
  EXPECT_THAT(Step(), ElementsAre("signal group 0 2"));
  EXPECT_THAT(Step(seconds(40)), ElementsAre("kill all"));
}

}  // namespace
}  // namespace fsdprun::chaos
