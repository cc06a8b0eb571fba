#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/launcher/control/asked_job.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::ControlQuestion Logs(bool follow) {
  v1::ControlQuestion question;
  question.mutable_nodes()->mutable_logs()->set_tail_lines(5);
  question.mutable_nodes()->mutable_logs()->set_follow(follow);
  return question;
}

v1::FromNodeAside Line(uint64_t id, int rank, const std::string& line) {
  v1::FromNodeAside aside;
  v1::NodeAnswer& answer = *aside.mutable_answer();
  answer.set_id(id);
  answer.mutable_logs()->set_rank(rank);
  answer.mutable_logs()->add_lines(line);
  return aside;
}

/// One worker on each of two nodes.
class ControlDeskLogsTest : public testing::Test {
 protected:
  void SetUp() override {
    job_.Join(1);
    job_.Join(2);
    job_.Run(1, {1, 2});
    ASSERT_EQ(job_.machine().phase(), job::Phase::kRunning);
  }
  void Return(uint64_t who) { job_.Join(who, "", {}, 1); }
  /// Once they have been asked.
  std::unique_ptr<AskedJob::Call> Ask(bool follow) {
    auto call = job_.Ask(Logs(follow));
    while (asked_.size() < 2) {
      for (const auto& each : job_.TakeAsides()) {
        asked_.push_back(each);
      }
    }
    return call;
  }

  AskedJob job_;
  std::vector<std::pair<Incarnation, v1::ToNodeAside>> asked_;
};

TEST_F(ControlDeskLogsTest, ANodeThatIsBackIsAskedForWhatComesFromThenOn) {
  const auto call = Ask(/*follow=*/true);
  job_.LoseStream(2);
  EXPECT_THAT(call->Next()->from_node().answer().refusal(), HasSubstr("shown again once it is"));
  EXPECT_THAT(job_.TakeAsides(), IsEmpty());
  job_.Say(1, 1, AgentHeartbeat{});
  EXPECT_THAT(job_.TakeAsides(), IsEmpty());
  Return(2);
  const auto again = job_.TakeAsides();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].first, Incarnation(2));
  EXPECT_EQ(again[0].second.logs().tail_lines(), 0);
  EXPECT_TRUE(again[0].second.logs().follow());
  job_.Say(2, 1, AgentHeartbeat{});
  EXPECT_THAT(job_.TakeAsides(), IsEmpty());

  job_.Hear(2, Line(again[0].second.id(), 1, "on"));
  job_.Hear(2, Line(again[0].second.id(), 1, "and on"));
  const std::optional<v1::ControlAnswer> first = call->Next();
  EXPECT_EQ(first->from_node().answer().logs().lines(0), "on");
  EXPECT_TRUE(first->from_node().answer().logs().has_gap());
  EXPECT_FALSE(call->Next()->from_node().answer().logs().has_gap());
}

TEST_F(ControlDeskLogsTest, ANodeThatIsAwayWhenAskedIsAskedLater) {
  job_.LoseStream(2);
  const auto call = job_.Ask(Logs(/*follow=*/true));
  EXPECT_THAT(call->Next()->from_node().answer().refusal(), HasSubstr("not connected now"));
  EXPECT_THAT(job_.TakeAsides(), SizeIs(1));
  Return(2);
  EXPECT_THAT(job_.TakeAsides(), SizeIs(1));
}

TEST_F(ControlDeskLogsTest, WhoDoesNotFollowIsToldToAskAgain) {
  const auto call = Ask(/*follow=*/false);
  job_.LoseStream(2);
  EXPECT_THAT(call->Next()->from_node().answer().refusal(), HasSubstr("ask again"));
  Return(2);
  EXPECT_THAT(job_.TakeAsides(), IsEmpty());
}

}  // namespace
}  // namespace fsdprun
