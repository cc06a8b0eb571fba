#include "launcher/coordinator/agent_signals.h"

#include <gtest/gtest.h>

#include <csignal>

namespace fsdprun {
namespace {

using std::chrono::seconds;

/// Nodes node-1 to node-3 of an allocation, and a stranger.
class AgentSignalsTest : public ::testing::Test {
 protected:
  AgentSignalsTest() {
    spec_.signalled_together = {"node-1", "node-2", "node-3"};
    for (const char* name : {"node-1", "node-2", "node-3", "stranger"}) {
      job::Node node;
      node.info.incarnation = Incarnation(nodes_.size() + 1);
      node.info.name = name;
      node.last_heard = now_;
      nodes_.Insert(node);
    }
  }
  job::Node& Node(int i) { return nodes_.At(Incarnation(i)); }
  /// As an agent that gets a signal does, it leaves.
  bool Heard(int i, int signal = SIGTERM, Duration after = {}) {
    const bool is_for_all = signals_.Heard(Node(i), signal, nodes_, has_formed_, now_ + after);
    Node(i).leaving = true;
    return is_for_all;
  }
  bool IsForAllWithout(int i) {
    const job::Node lost = Node(i);
    nodes_.Erase(lost.info.incarnation);
    return signals_.IsForAllWithout(lost, nodes_, has_formed_);
  }

  JobSpec spec_;
  AgentSignals signals_{spec_};
  NodeTable nodes_;
  bool has_formed_ = true;
  const MonoTime now_{std::chrono::hours(1)};
};

TEST_F(AgentSignalsTest, SignalOfANodeOutsideTheAllocationIsItsOwn) {
  EXPECT_FALSE(Heard(4));
  EXPECT_FALSE(Heard(4, SIGUSR1));
  EXPECT_EQ(signals_.doubts(), 0u);
}

TEST_F(AgentSignalsTest, NoticeIsForAll) {
  EXPECT_TRUE(Heard(1, SIGUSR1));
  EXPECT_TRUE(Heard(2, SIGUSR2));
  EXPECT_EQ(signals_.doubts(), 0u);
}

TEST_F(AgentSignalsTest, SignalIsForAllOnceEveryConnectedNodeOfTheAllocationHasIt) {
  EXPECT_FALSE(Heard(1));
  EXPECT_EQ(signals_.doubts(), 1u);
  EXPECT_FALSE(Heard(2));
  EXPECT_EQ(signals_.doubts(), 2u);
  EXPECT_TRUE(Heard(3, SIGINT, seconds(5)));
  EXPECT_EQ(signals_.doubts(), 2u);
  EXPECT_EQ(signals_.last_signal(), SIGINT);
}

TEST_F(AgentSignalsTest, NodeWithoutAConnectionIsNotWaitedFor) {
  Heard(1);
  Node(3).connected = false;
  EXPECT_TRUE(Heard(2));
}

TEST_F(AgentSignalsTest, SignalsFarApartAreNotOne) {
  Heard(1);
  Heard(2);
  EXPECT_FALSE(signals_.IsForAllWithout(Node(3), nodes_, true));
  Node(1).leaving = false;
  EXPECT_FALSE(Heard(3, SIGTERM, seconds(6)));
}

TEST_F(AgentSignalsTest, BeforeTheFirstWorldTheOthersMayBeOnTheirWay) {
  has_formed_ = false;
  nodes_.Erase(Incarnation(3));
  Heard(1);
  EXPECT_FALSE(Heard(2));
  has_formed_ = true;
  EXPECT_TRUE(Heard(2));
}

TEST_F(AgentSignalsTest, AgentThatComesAfterTheSignalHasNotGotIt) {
  Heard(1);
  Heard(2);
  signals_.ForgetNode("node-1");
  Node(1).leaving = false;
  EXPECT_FALSE(Heard(3));
}

TEST_F(AgentSignalsTest, LossOfTheLastThatCouldHaveToldDecides) {
  Heard(1);
  Heard(2);
  EXPECT_TRUE(IsForAllWithout(3));
}

TEST_F(AgentSignalsTest, LossDecidesNothingWhileAnotherCouldTell) {
  Heard(1);
  EXPECT_FALSE(IsForAllWithout(3));
}

TEST_F(AgentSignalsTest, LossDecidesNothingWithoutASignal) { EXPECT_FALSE(IsForAllWithout(3)); }

TEST_F(AgentSignalsTest, LossOfAStrangerOrOfOneThatHasToldDecidesNothing) {
  Heard(1);
  Heard(2);
  Node(3).connected = false;
  EXPECT_FALSE(IsForAllWithout(4));
  EXPECT_FALSE(IsForAllWithout(1));
}

TEST_F(AgentSignalsTest, NodeThatWasHeardLongAfterTheSignalHasNotGotIt) {
  Heard(1);
  Heard(2);
  Node(3).last_heard = now_ + seconds(6);
  EXPECT_FALSE(signals_.IsForAllWithout(Node(3), nodes_, true));
  Node(3).connected = false;
  Node(3).stream_lost_at = now_ + seconds(5);
  EXPECT_TRUE(signals_.IsForAllWithout(Node(3), nodes_, true));
  Node(3).stream_lost_at = now_ + seconds(6);
  EXPECT_FALSE(signals_.IsForAllWithout(Node(3), nodes_, true));
}

}  // namespace
}  // namespace fsdprun
