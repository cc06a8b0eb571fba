#include "agent/store/key_value_table.h"

#include <gtest/gtest.h>

#include <limits>

namespace fsdprun {
namespace {

using Ids = std::vector<KeyValueTable::ClientId>;
constexpr auto kAll = std::numeric_limits<size_t>::max();

TEST(KeyValueTableTest, CountsEveryByte) {
  KeyValueTable table;
  table.Set("key", "value");
  table.Set("key", "v");
  table.Append("key", "22");
  table.Append("new", "x");
  table.Push("queue", "abc");
  EXPECT_EQ(table.SizeBytes(), 3u + 3 + 3 + 1 + 5 + 3);
  EXPECT_EQ(table.KeyCount(), 2u);
  EXPECT_TRUE(table.Delete("key"));
  EXPECT_FALSE(table.Delete("key"));
  EXPECT_EQ(table.Pop("queue"), "abc");
  EXPECT_EQ(table.Pop("queue"), std::nullopt);
  table.Delete("new");
  EXPECT_EQ(table.SizeBytes(), 0u);
}

TEST(KeyValueTableTest, AddRefusesWhatIsNoNumberAndOverflow) {
  KeyValueTable table;
  EXPECT_EQ(table.Add("n", 4), 4);
  EXPECT_EQ(table.Add("n", -5), -1);
  EXPECT_EQ(*table.Find("n"), "-1");
  for (const char* text : {"", "x", "1x", " 1", "99999999999999999999"}) {
    table.Set("n", text);
    EXPECT_EQ(table.Add("n", 1), std::nullopt) << text;
  }
  table.Set("n", std::to_string(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(table.Add("n", 1), std::nullopt);
}

TEST(KeyValueTableTest, CompareSetFollowsTcpStore) {
  KeyValueTable table;
  EXPECT_EQ(table.CompareSet("k", "expected", "x"), "expected");
  EXPECT_FALSE(table.Exists("k"));
  EXPECT_EQ(table.CompareSet("k", "", "x"), "x");
  EXPECT_EQ(table.CompareSet("k", "", "y"), "x");
  EXPECT_EQ(table.CompareSet("k", "x", "y"), "y");
}

TEST(KeyValueTableTest, WaitersAreSatisfiedByTheirLastKey) {
  KeyValueTable table;
  table.Set("have", "1");
  table.AddWaiter(1, {"have", "a", "b"});
  table.AddWaiter(2, {"a"});
  table.Set("a", "1");
  EXPECT_EQ(table.TakeSatisfied("a", kAll), Ids{2});
  EXPECT_TRUE(table.IsWaiting(1));
  table.Set("b", "1");
  EXPECT_EQ(table.TakeSatisfied("b", kAll), Ids{1});
  EXPECT_FALSE(table.IsWaiting(1));
  EXPECT_EQ(table.TakeSatisfied("b", kAll), Ids{});
}

TEST(KeyValueTableTest, OneQueueItemServesOneWaiter) {
  KeyValueTable table;
  table.AddWaiter(1, {"q"});
  table.AddWaiter(2, {"q"});
  table.Push("q", "x");
  EXPECT_EQ(table.TakeSatisfied("q", 1), Ids{1});
  EXPECT_TRUE(table.IsWaiting(2));
  table.RemoveWaiter(2);
  EXPECT_EQ(table.TakeSatisfied("q", 1), Ids{});
}

TEST(KeyValueTableTest, ClearForgetsValuesQueuesAndWaiters) {
  KeyValueTable table;
  table.Set("a", "1");
  table.Push("q", "1");
  table.AddWaiter(1, {"b"});
  table.Clear();
  EXPECT_FALSE(table.Exists("a"));
  EXPECT_FALSE(table.Exists("q"));
  EXPECT_FALSE(table.IsWaiting(1));
  EXPECT_EQ(table.SizeBytes(), 0u);
}

}  // namespace
}  // namespace fsdprun
