#include "agent/node/contact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST_F(ContactTest, DelaysDoubleAndAreLongerBeforeTheFirstAdmission) {
  EXPECT_THAT(Redial(9), ElementsAre(milliseconds(10), milliseconds(20), milliseconds(40),
                                     milliseconds(80), milliseconds(160), milliseconds(320),
                                     milliseconds(640), seconds(1), seconds(1)));
  Admit();
  EXPECT_THAT(Redial(6), ElementsAre(milliseconds(0), milliseconds(10), milliseconds(20),
                                     milliseconds(40), milliseconds(80), milliseconds(100)));
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
  Admit();
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
  Admit();
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

}  // namespace
}  // namespace fsdprun
