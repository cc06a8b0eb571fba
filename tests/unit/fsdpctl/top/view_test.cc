#include "fsdpctl/top/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "fsdpctl/top/link.h"
#include "fsdpctl/top/step_rate.h"
#include "tests/unit/fsdpctl/top/shown_job.h"

namespace fsdprun::top {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(ViewTest, KeysScroll) {
  View view;
  view = After(view, Key::kDown, 10);
  view = After(view, Key::kDown, 10);
  EXPECT_EQ(view.first_row, 2);
  EXPECT_EQ(After(view, Key::kUp, 10).first_row, 1);
  EXPECT_EQ(After(View{}, Key::kUp, 10).first_row, 0);
  view = After(view, Key::kPageDown, 10);
  EXPECT_EQ(view.first_row, 11);  // One row is seen again.
  EXPECT_EQ(After(view, Key::kPageUp, 10).first_row, 2);
  EXPECT_GT(After(view, Key::kEnd, 10).first_row, 1 << 20);
  EXPECT_EQ(After(view, Key::kHome, 10).first_row, 0);
  EXPECT_EQ(After(view, Key::kPageDown, 0).first_row, 12);
}

TEST(ViewTest, KeysChooseWhatIsShown) {
  View view{.first_row = 5};
  view = After(view, KeyOf('s'), 10);
  EXPECT_EQ(view, (View{.sort = SortKey::kStep}));
  for (int i = 0; i < 4; ++i) {
    view = After(view, KeyOf('s'), 10);
  }
  EXPECT_EQ(view.sort, SortKey::kRank);
  EXPECT_TRUE(After(view, KeyOf('r'), 10).is_reversed);
  EXPECT_TRUE(After(view, KeyOf('p'), 10).only_problems);
  EXPECT_TRUE(After(view, KeyOf('n'), 10).shows_nodes);
  EXPECT_TRUE(After(view, KeyOf('e'), 10).shows_events);
  EXPECT_EQ(After(view, KeyOf('x'), 10), view);
  EXPECT_EQ(After(view, Key::kNone, 10), view);
}

TEST(ViewTest, AnyKeyLeavesTheHelp) {
  const View help = After(View{}, KeyOf('?'), 10);
  EXPECT_TRUE(help.shows_help);
  EXPECT_EQ(After(help, Key::kNone, 10), help);
  for (const int letter : {'?', 'q', 's', 'x'}) {
    EXPECT_EQ(After(help, KeyOf(letter), 10), View{});
  }
}

TEST(StepRateTest, StepsOfOneGenerationAreCounted) {
  StepRate rate;
  const MonoTime start{};
  EXPECT_EQ(rate.per_second(), std::nullopt);
  rate.See(1, 10, start);
  rate.See(1, 10, start + seconds(1));
  EXPECT_EQ(rate.per_second(), std::nullopt);
  rate.See(1, 14, start + seconds(2));
  EXPECT_EQ(rate.per_second(), 2.0);
  rate.See(2, 12, start + seconds(3));
  EXPECT_EQ(rate.per_second(), std::nullopt);
  rate.See(2, -1, start + seconds(4));
  rate.See(2, 13, start + seconds(5));
  EXPECT_EQ(rate.per_second(), 0.5);
}

TEST(StepRateTest, OldStepsAreForgottenUnlessThereAreFewer) {
  StepRate rate;
  const MonoTime start{};
  rate.See(1, 0, start);
  rate.See(1, 1, start + minutes(10));
  EXPECT_EQ(rate.per_second(), 1.0 / 600);
  rate.See(1, 11, start + minutes(10) + seconds(10));
  EXPECT_EQ(rate.per_second(), 1.0);
}

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    link_.Asked(now_);
    link_.Answered(status_, now_);
  }

  Link link_;
  v1::JobStatus status_ = ShownJob(1, 4);
  MonoTime now_{seconds(100)};
};

TEST_F(LinkTest, SilenceIsToldAndThenAskedAnew) {
  EXPECT_EQ(link_.Trouble(now_ + seconds(5)), "");
  EXPECT_EQ(link_.Trouble(now_ + seconds(6)), "no answer of the coordinator for 6.0s");
  EXPECT_FALSE(link_.IsStuck(now_ + seconds(25)));
  EXPECT_TRUE(link_.IsStuck(now_ + seconds(26)));
  link_.Asked(now_ + seconds(27));
  EXPECT_FALSE(link_.IsStuck(now_ + seconds(30)));
}

TEST_F(LinkTest, ManyWorkersAreAnsweredForLessOften) {
  status_.set_world_size(10'000);
  link_.Answered(status_, now_);
  EXPECT_EQ(link_.Trouble(now_ + seconds(14)), "");
  EXPECT_NE(link_.Trouble(now_ + seconds(16)), "");
}

TEST_F(LinkTest, ALostConnectionIsToldUntilThereIsAnAnswer) {
  link_.Ended(absl::UnavailableError("nobody answers"));
  EXPECT_EQ(link_.Trouble(now_), "connection lost, asking again: nobody answers");
  EXPECT_THAT(link_.LastWords(), HasSubstr("job run7: connection lost: nobody answers"));
  link_.Asked(now_ + seconds(1));
  EXPECT_NE(link_.Trouble(now_ + seconds(1)), "");
  link_.Answered(status_, now_ + seconds(2));
  EXPECT_EQ(link_.Trouble(now_ + seconds(2)), "");
  EXPECT_FALSE(link_.is_over());
  EXPECT_EQ(link_.LastWords(), "job run7 goes on: generation 2, running: all workers run");
}

TEST_F(LinkTest, TheEndOfTheJobIsNoLoss) {
  status_.set_phase("finished");
  status_.set_exit_code(3);
  link_.Answered(status_, now_);
  EXPECT_TRUE(link_.is_over());
  link_.Ended(absl::OkStatus());
  EXPECT_EQ(link_.Trouble(now_ + minutes(1)), "");
  EXPECT_FALSE(link_.IsStuck(now_ + minutes(1)));
  EXPECT_EQ(link_.LastWords(), "job run7 ended with exit code 3");
}

TEST_F(LinkTest, WhoKnewTheExitCodeKnowsTheEnd) {
  status_.set_phase("releasing");
  status_.set_exit_code(0);
  link_.Answered(status_, now_);
  EXPECT_FALSE(link_.is_over());
  link_.Ended(absl::UnavailableError("gone"));
  EXPECT_TRUE(link_.is_over());
  EXPECT_EQ(link_.LastWords(), "job run7 ended with exit code 0");
}

}  // namespace
}  // namespace fsdprun::top
