// What is known of a world whose nodes tell rarely, late, or not at all; and of ranks that say
// nothing yet.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/watch/simulated_training.h"

namespace fsdprun::watch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Nodes of one rank each, whose samples the test makes.
class NodesTest : public ::testing::Test {
 protected:
  void Begin(int nodes, Duration every = seconds(1)) {
    WorldBegan began{Generation(1), {}, every};
    for (int rank = 0; rank < nodes; ++rank) {
      began.nodes.push_back({"node-" + std::to_string(rank), rank, 1});
    }
    Step(began);
  }
  void Tell(int rank, const std::optional<OwnSample>& own) {
    cpu_ += milliseconds(500);
    Step(VitalsCame{Generation(1), {{rank, 100 + rank, 'S', cpu_, own}}});
  }
  void Pass(Duration time) {
    now_ += time;
    while (watch_.wake_at() <= now_) {
      Step(TimerDue{});
    }
  }
  static OwnSample Own(int64_t step, Activity activity, uint64_t begun = 0, uint64_t ended = 0,
                       const std::string& collective = "", const std::string& unit = "") {
    OwnSample own;
    own.step = step;
    own.activity = activity;
    own.begun = begun;
    own.ended = ended;
    own.collective = collective;
    own.unit = unit;
    return own;
  }
  /// Six steps of two seconds, of all.
  void WarmUp(int nodes) {
    for (int64_t step = 0; step <= 6; ++step) {
      for (int second = 0; second < 2; ++second) {
        for (int rank = 0; rank < nodes; ++rank) {
          Tell(rank, Own(step, Activity::kForward));
        }
        Pass(seconds(1));
      }
    }
  }
  void Step(const Event& event) {
    const Findings found = watch_.Step(event, now_);
    found_.insert(found_.end(), found.begin(), found.end());
  }
  const HangFound& hang() const { return std::get<HangFound>(found_.front()); }

  ProgressWatch watch_{{}};
  MonoTime now_{std::chrono::hours(1)};
  Duration cpu_{};
  Findings found_;
};

TEST_F(NodesTest, RankThatIsNotThereYetIsWhatTheOthersWaitFor) {
  Begin(3);
  for (int second = 0; second < 640 && found_.empty(); ++second) {
    Tell(0, Own(-1, Activity::kStarting));
    Tell(1, Own(-1, Activity::kStarting));
    Tell(2, std::nullopt);
    Pass(seconds(1));
  }
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_EQ(hang().kind, HangKind::kBehind);
  EXPECT_THAT(RanksOf(hang().culprits), ElementsAre(2));
  EXPECT_THAT(hang().what, AllOf(HasSubstr("rank 2 (pid 102) on node node-2 has not said anything"),
                                 HasSubstr("the others have not done a step")));
  Tell(2, Own(-1, Activity::kStarting));
  Pass(seconds(2));
  ASSERT_EQ(found_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<HangEnded>(found_.back()));
}

/// The first world was quick; in the next one a node imports from a cold file system.
TEST_F(NodesTest, StartOfALaterWorldMayTakeAsLongAsThatOfTheFirst) {
  Begin(2);
  WarmUp(2);
  Begin(2);
  for (int second = 0; second < 500; ++second) {
    Tell(0, Own(-1, Activity::kStarting));
    Tell(1, second < 400 ? std::nullopt : std::optional(Own(-1, Activity::kStarting)));
    Pass(seconds(1));
  }
  EXPECT_TRUE(found_.empty());
  Begin(2);
  for (int second = 0; second < 500; ++second) {  // All of them start, and wait for a store.
    Tell(0, Own(-1, Activity::kStarting));
    Tell(1, Own(-1, Activity::kStarting));
    Pass(seconds(1));
  }
  EXPECT_TRUE(found_.empty());
}

/// Each node of 10,000 tells every 39 s; one sample is lost now and then.
TEST_F(NodesTest, NodesThatTellRarelyAreNotTakenForSilentOnes) {
  Begin(4, seconds(39));
  std::mt19937_64 random(3);
  uint64_t collective = 0;
  for (int round = 0; round < 100; ++round) {
    for (int rank = 0; rank < 4; ++rank) {
      if (random() % 20 != 0) {
        Tell(rank, Own(round, Activity::kForward, collective, collective));
      }
      Pass(seconds(39) / 4);
    }
    ++collective;
  }
  EXPECT_TRUE(found_.empty());
  for (int round = 0; round < 40; ++round) {
    for (int rank = 0; rank < 4; ++rank) {
      const bool is_behind = rank == 2;
      Tell(rank, Own(100, Activity::kBackward, collective + (is_behind ? 0 : 1), collective,
                     is_behind ? "" : "all_gather"));
      Pass(seconds(39) / 4);
    }
  }
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_THAT(RanksOf(hang().culprits), ElementsAre(2));
}

/// A node that tells in bursts with 8 s between them would hide every hang of the others.
TEST_F(NodesTest, NodeThatIsSilentAgainAndAgainHidesNothing) {
  Begin(3);
  WarmUp(3);
  int second = 0;
  for (; second < 600 && found_.empty(); ++second) {
    Tell(0, Own(6, Activity::kForward));  // It does not go on.
    Tell(1, Own(6, Activity::kBackward, 8, 7, "all_gather"));
    if (second % 8 == 0) {
      Tell(2, Own(6, Activity::kBackward, 8, 7, "all_gather"));
    }
    Pass(seconds(1));
  }
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_THAT(RanksOf(hang().culprits), ElementsAre(0));
  EXPECT_LT(second, 180);
}

TEST_F(NodesTest, HangOfARankThatIsHeardOfNoMoreIsNotSaidToGoOn) {
  Begin(2);
  WarmUp(2);
  for (int second = 0; second < 120; ++second) {
    if (found_.empty()) {
      Tell(0, Own(6, Activity::kBackward));
    }
    Tell(1, Own(6, Activity::kBackward, 8, 7, "all_gather"));
    Pass(seconds(1));
  }
  ASSERT_GE(found_.size(), 2u);
  EXPECT_EQ(std::get<HangEnded>(found_[1]).what, "nothing is heard of rank 0 any more");
}

/// Two threads carry a rank's collectives: which is the oldest one is chance.
TEST_F(NodesTest, LanesInAnotherOrderAreNoOtherWayThroughTheProgram) {
  const auto found = [&](const OwnSample& of_one) {
    Begin(3);
    found_.clear();
    WarmUp(3);
    for (int second = 0; second < 60 && found_.empty(); ++second) {
      Tell(0, Own(6, Activity::kBackward, 9, 7, "all_gather of ranks 0-2", "layers.3"));
      Tell(1, Own(6, Activity::kBackward, 9, 7, "all_gather of ranks 0-2", "layers.3"));
      Tell(2, of_one);
      Pass(seconds(1));
    }
    return hang().kind;
  };
  const auto own = [](uint64_t begun, const std::string& collective, const std::string& unit) {
    return Own(6, Activity::kBackward, begun, begun - 2, collective, unit);
  };
  EXPECT_EQ(found(own(9, "reduce_scatter of ranks 0-2", "layers.4")), HangKind::kCollective);
  EXPECT_EQ(found(own(9, "all_gather of ranks 2-4", "layers.3")), HangKind::kCollective);
  EXPECT_EQ(found(own(9, "all_gather of ranks 0-2", "layers.7")), HangKind::kDisagree);
  EXPECT_THAT(RanksOf(hang().culprits), ElementsAre(2));
}

TEST_F(NodesTest, NobodyIsIdleWhileRankZeroReportsSteps) {
  Begin(1);
  for (int second = 0; second < 3600; ++second) {
    Step(VitalsCame{Generation(1), {{0, 100, 'S', Duration{}, std::nullopt}}});
    if (second % 30 == 0) {
      Step(StepReported{second});
    }
    Pass(seconds(1));
  }
  EXPECT_TRUE(found_.empty());
}

}  // namespace
}  // namespace fsdprun::watch
