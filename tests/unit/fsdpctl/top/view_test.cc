#include "fsdpctl/top/view.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdprun::top {
namespace {

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

TEST(ViewTest, ScrollingKeepsWhereTheTableBegins) {
  const View view{.header_lines = 7, .found = 3};
  EXPECT_EQ(After(view, Key::kDown, 10).header_lines, 7);
  EXPECT_EQ(After(view, Key::kPageUp, 10).found, 3);
  for (const int letter : {'s', 'r', 'p', 'e', 'x'}) {
    EXPECT_EQ(After(view, KeyOf(letter), 10).header_lines, 0);
    EXPECT_EQ(After(view, KeyOf(letter), 10).found, -1);
  }
}

TEST(ViewTest, TheEndStaysInSightUntilSomebodyGoesUp) {
  View view = After(View{}, Key::kEnd, 10);
  EXPECT_TRUE(view.is_at_end);
  EXPECT_TRUE(After(view, Key::kDown, 10).is_at_end);
  EXPECT_TRUE(After(view, KeyOf('e'), 10).is_at_end);
  for (const Key key : {Key::kUp, Key::kPageUp, Key::kHome, Key::kSort, Key::kProblems}) {
    EXPECT_FALSE(After(view, key, 10).is_at_end);
  }
}

View Typed(View view, const std::string& text) {
  for (const char letter : text) {
    view = After(view, Press{KeyOf(letter), letter}, 10);
  }
  return view;
}

TEST(ViewTest, AGoalIsTyped) {
  View view = Typed(View{}, "/node q");
  EXPECT_TRUE(view.is_typing);
  EXPECT_EQ(view.typed, "node q");
  EXPECT_FALSE(IsQuit(view, {Key::kQuit, 'q'}));
  view = After(view, Press{Key::kOther, kBackspace}, 10);
  view = After(view, Press{Key::kDown, 0}, 10);  // It means nothing there.
  EXPECT_EQ(view.typed, "node ");
  EXPECT_EQ(view.first_row, 0);
  EXPECT_EQ(After(view, Press{Key::kOther, kEscape}, 10), View{});
  view = After(view, Press{Key::kOther, kEnter}, 10);
  EXPECT_EQ(view, (View{.goal = "node "}));
  EXPECT_TRUE(IsQuit(view, {Key::kQuit, 'q'}));
  EXPECT_EQ(Typed(View{}, "/" + std::string(500, 'x')).typed.size(), 64U);
  EXPECT_FALSE(IsQuit({.shows_help = true}, {Key::kQuit, 'q'}));
}

TEST(ViewTest, ADigitBeginsAGoal) {
  View view = Typed(View{}, "2000");
  EXPECT_TRUE(view.is_typing);
  EXPECT_EQ(After(view, Press{Key::kOther, kEnter}, 10).goal, "2000");
  EXPECT_FALSE(Typed({.shows_help = true}, "2").is_typing);
}

TEST(ViewTest, TheRanksOfTheNodeThatWasFoundAreShown) {
  const View view = After(View{.shows_nodes = true, .found = 512}, KeyOf('n'), 10);
  EXPECT_EQ(view.goal, "512");
  EXPECT_EQ(After(View{.shows_nodes = true}, KeyOf('n'), 10).goal, "");
}

TEST(ViewTest, HelpScrolls) {
  View view = After(View{}, KeyOf('?'), 10);
  view = After(view, Key::kDown, 10);
  EXPECT_TRUE(view.shows_help);
  EXPECT_EQ(view.help_row, 1);
  EXPECT_EQ(view.first_row, 0);
}

TEST(ViewTest, CtrlLDrawsAllAnew) {
  EXPECT_EQ(KeyOf(12), Key::kRedraw);
  EXPECT_EQ(After(View{.first_row = 4}, Key::kRedraw, 10), View{.first_row = 4});
}

}  // namespace
}  // namespace fsdprun::top
