#include "launcher/control/node_asides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NodeAsidesTest : public testing::Test {
 protected:
  NodeAsides::Id Ask(uint64_t agent) {
    v1::ToNodeAside question;
    question.mutable_save();
    return asides_.Ask(Incarnation(agent), question, [this](const v1::NodeAnswer& answer) {
      heard_.push_back(answer.has_save() ? std::to_string(answer.save().workers())
                                         : answer.refusal());
    });
  }
  void Answer(uint64_t agent, NodeAsides::Id id, int workers, bool is_last) {
    v1::FromNodeAside aside;
    aside.mutable_answer()->set_id(id);
    aside.mutable_answer()->set_is_last(is_last);
    aside.mutable_answer()->mutable_save()->set_workers(workers);
    asides_.Hear(Incarnation(agent), aside);
  }

  std::vector<v1::ToNodeAside> sent_;
  std::vector<std::string> heard_;
  std::vector<uint64_t> vitals_of_;
  NodeAsides asides_{
      [this](Incarnation, const v1::ToNodeAside& aside) { sent_.push_back(aside); },
      [this](Incarnation agent, const v1::NodeVitals&) { vitals_of_.push_back(agent.value()); }};
};

TEST_F(NodeAsidesTest, AnswersReachWhoAskedUntilTheLast) {
  const NodeAsides::Id first = Ask(1);
  const NodeAsides::Id second = Ask(2);
  Answer(2, second, 20, false);
  Answer(1, first, 10, true);
  Answer(1, first, 11, true);
  Answer(2, second, 21, true);
  EXPECT_THAT(heard_, ElementsAre("20", "10", "21"));
}

TEST_F(NodeAsidesTest, AnAgentAnswersItsOwnQuestionsOnly) {
  const NodeAsides::Id id = Ask(1);
  Answer(2, id, 5, true);
  EXPECT_THAT(heard_, IsEmpty());
  Answer(1, id, 6, true);
  EXPECT_THAT(heard_, ElementsAre("6"));
}

TEST_F(NodeAsidesTest, TheEndOfAStreamIsTheEndOfItsQuestions) {
  Ask(1);
  const NodeAsides::Id other = Ask(2);
  asides_.StreamLost(Incarnation(1));
  EXPECT_THAT(heard_, ElementsAre(HasSubstr("ask again")));
  Answer(2, other, 7, true);
  EXPECT_EQ(heard_.back(), "7");
}

TEST_F(NodeAsidesTest, WhatIsDroppedIsToldToTheNodeAndHeardNoMore) {
  const NodeAsides::Id id = Ask(1);
  asides_.Drop(id);
  asides_.Drop(id);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_TRUE(sent_[1].has_unwanted());
  EXPECT_EQ(sent_[1].id(), id);
  Answer(1, id, 1, true);
  EXPECT_THAT(heard_, IsEmpty());
}

TEST_F(NodeAsidesTest, AnAnswerMayDropOtherQuestions) {
  NodeAsides::Id second = 0;
  v1::ToNodeAside question;
  question.mutable_save();
  asides_.Ask(Incarnation(1), question, [&](const v1::NodeAnswer&) { asides_.Drop(second); });
  second = Ask(1);
  asides_.StreamLost(Incarnation(1));
  EXPECT_THAT(heard_, IsEmpty());
}

TEST_F(NodeAsidesTest, VitalsNeedNoQuestion) {
  v1::FromNodeAside aside;
  aside.mutable_vitals();
  asides_.Hear(Incarnation(3), aside);
  EXPECT_THAT(vitals_of_, ElementsAre(3u));
}

}  // namespace
}  // namespace fsdprun
