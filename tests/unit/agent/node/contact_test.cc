#include "agent/node/contact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

NodeSpec ContactSpec() {
  NodeSpec spec;
  spec.coordinator_endpoint = "10.0.0.1:29400";
  spec.connect_timeout = seconds(600);
  return spec;
}

class ContactTest : public ::testing::Test {
 protected:
  void Admit(Duration node_lease = {}) {
    contact_.StreamUp(now_);
    contact_.Admitted(node_lease, now_);
  }
  /// In a job whose workers have been started.
  void AdmitToJob() {
    contact_.JobRuns();
    Admit();
  }
  Duration Lose(bool nothing_listens = false) {
    return contact_.Redial(contact_.Break("reset"), nothing_listens, now_);
  }
  std::vector<Duration> Redial(int times) {
    std::vector<Duration> delays;
    delays.reserve(times);
    for (int i = 0; i < times; ++i) {
      delays.push_back(Lose());
    }
    return delays;
  }

  Contact contact_{ContactSpec()};
  MonoTime now_{std::chrono::hours(1)};
};

TEST_F(ContactTest, BeforeTheFirstAdmissionTheConnectTimeoutRuns) {
  contact_.Begin(now_);
  EXPECT_EQ(contact_.deadline(), now_ + seconds(600));
  contact_.StreamUp(now_ + seconds(1));
  now_ += seconds(2);
  Lose();
  EXPECT_EQ(contact_.deadline(), now_ + seconds(598));
  EXPECT_THAT(contact_.GiveUp(), HasSubstr("could not join through the coordinator at "
                                           "10.0.0.1:29400 within 600 s (reset)"));
  EXPECT_FALSE(contact_.IsAwaited());
}

/// Half of it or more, but not more than it.
MATCHER_P(About, delay, "") { return arg >= Duration(delay) / 2 && arg <= Duration(delay); }

TEST_F(ContactTest, DelaysDoubleAndAreLongerBeforeTheJobRuns) {
  EXPECT_THAT(
      Redial(9),
      ElementsAre(About(milliseconds(10)), About(milliseconds(20)), About(milliseconds(40)),
                  About(milliseconds(80)), About(milliseconds(160)), About(milliseconds(320)),
                  About(milliseconds(640)), About(seconds(1)), About(seconds(1))));
  AdmitToJob();
  EXPECT_THAT(Redial(6), ElementsAre(milliseconds(0), About(milliseconds(10)),
                                     About(milliseconds(20)), About(milliseconds(40)),
                                     About(milliseconds(80)), About(milliseconds(100))));
}

TEST_F(ContactTest, AgentsThatAreLostTogetherDoNotDialTogether) {
  std::set<Duration> delays;
  for (uint64_t agent = 1; agent <= 100; ++agent) {
    NodeSpec spec = ContactSpec();
    spec.node.incarnation = Incarnation(agent);
    Contact contact(spec);
    for (int i = 0; i < 8; ++i) {
      const Duration delay = contact.Redial(contact.Break("reset"), false, now_);
      if (i == 7) {
        delays.insert(delay);
      }
    }
  }
  EXPECT_GT(delays.size(), 50u);
  EXPECT_LT(*delays.begin(), milliseconds(600));
  EXPECT_GT(*delays.rbegin(), milliseconds(900));
}

TEST_F(ContactTest, AttemptsLastLongerUntilTheJobRuns) {
  EXPECT_EQ(contact_.patience(), 1);
  std::vector<int> patience;
  for (int i = 0; i < 5; ++i) {
    Lose();
    patience.push_back(contact_.patience());
  }
  EXPECT_THAT(patience, ElementsAre(2, 4, 8, 8, 8));
  Lose(/*nothing_listens=*/true);
  EXPECT_EQ(contact_.patience(), 1);
  Lose();
  contact_.JobRuns();
  Lose();
  EXPECT_EQ(contact_.patience(), 1);
}

TEST_F(ContactTest, SilenceIsNoticedSoonWhereWorkersRun) {
  AdmitToJob();
  EXPECT_EQ(contact_.silent_at(), MonoTime::max());
  EXPECT_TRUE(contact_.Asks(now_));
  EXPECT_FALSE(contact_.Asks(now_ + milliseconds(999)));
  EXPECT_EQ(contact_.silent_at(), now_ + seconds(2));
  EXPECT_TRUE(contact_.Asks(now_ + seconds(1)));
  EXPECT_EQ(contact_.silent_at(), now_ + seconds(2));  // The first question is still open.
  EXPECT_EQ(contact_.Silence(), "no answer for 2 s");
  contact_.Heard();
  EXPECT_EQ(contact_.silent_at(), MonoTime::max());
}

TEST_F(ContactTest, BeforeThatAnAnswerMayTakeAsLongAsACoordinatorMayBeSilent) {
  Admit();
  ASSERT_TRUE(contact_.Asks(now_));
  EXPECT_EQ(contact_.silent_at(), now_ + seconds(30));
  contact_.JobRuns();
  EXPECT_EQ(contact_.silent_at(), now_ + seconds(2));
}

TEST_F(ContactTest, AnswerIsOwedByAStreamThatIsOpen) {
  AdmitToJob();
  contact_.Asks(now_);
  Lose();
  EXPECT_EQ(contact_.silent_at(), MonoTime::max());
  Admit();
  contact_.Asks(now_);
  contact_.StreamUp(now_);
  EXPECT_EQ(contact_.silent_at(), MonoTime::max());
}

TEST_F(ContactTest, AgentThatWasLateGivesTheAnswerAsMuchMoreTime) {
  AdmitToJob();
  contact_.Asks(now_);
  contact_.ForgiveStall(milliseconds(700));
  EXPECT_EQ(contact_.silent_at(), now_ + milliseconds(2700));
}

TEST_F(ContactTest, AdmissionEndsTheWaitAndBeginsTheBeats) {
  contact_.Begin(now_);
  Admit();
  EXPECT_FALSE(contact_.IsAwaited());
  EXPECT_EQ(contact_.next_heartbeat(), now_ + milliseconds(500));
  contact_.HeartbeatIsSent(now_ + seconds(1));
  EXPECT_EQ(contact_.next_heartbeat(), now_ + milliseconds(1500));
  Lose();
  EXPECT_EQ(contact_.next_heartbeat(), MonoTime::max());
}

TEST_F(ContactTest, SilentCoordinatorHasItsGraceFromTheLossOn) {
  Admit();
  Lose();
  const MonoTime lost_at = now_;
  EXPECT_EQ(contact_.deadline(), lost_at + seconds(30));
  now_ += seconds(20);
  Lose();
  EXPECT_EQ(contact_.deadline(), lost_at + seconds(30));
  EXPECT_THAT(contact_.GiveUp(), HasSubstr("could not reach it again within 30 s"));
}

TEST_F(ContactTest, CoordinatorWhoseAddressRefusesHasEnded) {
  AdmitToJob();
  Lose();
  now_ += seconds(5);
  Lose(/*nothing_listens=*/true);
  const MonoTime refused_at = now_;
  now_ += milliseconds(100);
  Lose(/*nothing_listens=*/true);
  EXPECT_EQ(contact_.deadline(), refused_at + milliseconds(500));
  EXPECT_THAT(contact_.GiveUp(), HasSubstr("nothing listens there any more"));
}

TEST_F(ContactTest, RefusalThatEndsIsForgotten) {
  Admit();
  Lose();
  const MonoTime lost_at = now_;
  Lose(/*nothing_listens=*/true);
  Lose(/*nothing_listens=*/false);
  EXPECT_EQ(contact_.deadline(), lost_at + seconds(30));
  Lose(/*nothing_listens=*/true);
  contact_.StreamUp(now_ + seconds(1));
  EXPECT_EQ(contact_.deadline(), lost_at + seconds(30));
}

TEST_F(ContactTest, StreamThatComesLateHasTimeForTheAdmission) {
  Admit();
  Lose();
  now_ += seconds(29);
  contact_.StreamUp(now_);
  EXPECT_EQ(contact_.deadline(), now_ + seconds(10));
  contact_.Admitted({}, now_);
  EXPECT_FALSE(contact_.IsAwaited());
}

TEST_F(ContactTest, LossOfAStreamWithoutAdmissionDoesNotBeginTheGraceAnew) {
  Admit();
  Lose();
  const MonoTime lost_at = now_;
  now_ += seconds(5);
  contact_.StreamUp(now_);
  now_ += seconds(5);
  EXPECT_EQ(Lose(), Duration{});
  EXPECT_EQ(contact_.deadline(), lost_at + seconds(30));
}

TEST_F(ContactTest, NewStreamTellsOfALossThatNothingElseTold) {
  Admit();
  contact_.StreamUp(now_);
  EXPECT_EQ(contact_.deadline(), now_ + seconds(30));
  Lose();
  EXPECT_EQ(contact_.deadline(), now_ + seconds(30));
}

TEST_F(ContactTest, CoordinatorsLeaseIsFollowed) {
  Admit(seconds(60));
  EXPECT_EQ(contact_.next_heartbeat(), now_ + milliseconds(500));
  Lose();
  EXPECT_EQ(contact_.deadline(), now_ + seconds(70));
  Admit(seconds(1));
  EXPECT_EQ(contact_.next_heartbeat(), now_ + Duration(seconds(1)) / 6);
  Admit(seconds(0));
  EXPECT_EQ(contact_.next_heartbeat(), now_ + Duration(seconds(1)) / 6);
}

TEST_F(ContactTest, StallPutsOffWhatTheCoordinatorHasToAnswer) {
  AdmitToJob();
  Lose();
  contact_.ForgiveStall(seconds(8));
  EXPECT_EQ(contact_.deadline(), now_ + seconds(38));
  Lose(/*nothing_listens=*/true);
  EXPECT_EQ(contact_.deadline(), now_ + milliseconds(500));
  contact_.ForgiveStall(seconds(8));
  Lose(/*nothing_listens=*/true);
  EXPECT_EQ(contact_.deadline(), now_ + milliseconds(500));
  Admit();
  contact_.ForgiveStall(seconds(8));
  EXPECT_FALSE(contact_.IsAwaited());
}

TEST_F(ContactTest, ASuccessorIsAwaitedByWhoWasAdmittedAndToldOfIt) {
  contact_.Begin(now_);
  contact_.ExpectSuccessor(true);
  EXPECT_FALSE(contact_.AwaitsSuccessor());
  Admit();
  EXPECT_FALSE(contact_.AwaitsSuccessor());
  Lose(/*nothing_listens=*/true);
  EXPECT_TRUE(contact_.AwaitsSuccessor());
  contact_.Moved("10.0.0.2:7");
  EXPECT_EQ(contact_.endpoint(), "10.0.0.2:7");
  EXPECT_THAT(contact_.GiveUp(), HasSubstr("lost the coordinator at 10.0.0.2:7"));
  Admit();
  contact_.ExpectSuccessor(false);
  Lose();
  EXPECT_FALSE(contact_.AwaitsSuccessor());
}

}  // namespace
}  // namespace fsdprun
