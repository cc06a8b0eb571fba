#include "launcher/coordinator/node_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

job::Node Make(uint64_t incarnation) {
  job::Node node;
  node.info.incarnation = Incarnation(incarnation);
  return node;
}

std::vector<uint64_t> Order(const NodeTable& table) {
  std::vector<uint64_t> order;
  for (const job::Node& node : table) {
    order.push_back(node.info.incarnation.value());
  }
  return order;
}

TEST(NodeTable, IteratesInOrderOfIncarnation) {
  NodeTable table;
  for (const uint64_t i : {30, 10, 20}) {
    table.Insert(Make(i));
  }
  EXPECT_THAT(Order(table), ElementsAre(10, 20, 30));
  EXPECT_EQ(table.CheckInvariants(), "");
}

TEST(NodeTable, AddressesAreStableAcrossInsertionAndErasure) {
  NodeTable table;
  job::Node* node = &table.Insert(Make(500));
  for (uint64_t i = 1; i < 400; ++i) {
    table.Insert(Make(i * 3));
  }
  for (uint64_t i = 1; i < 400; i += 2) {
    table.Erase(Incarnation(i * 3));
  }
  EXPECT_EQ(table.Find(Incarnation(500)), node);
  EXPECT_EQ(&table.At(Incarnation(500)), node);
  EXPECT_EQ(table.size(), 200u);
  EXPECT_EQ(table.CheckInvariants(), "");
}

TEST(NodeTable, UnknownIncarnationIsNeitherFoundNorErased) {
  NodeTable table;
  table.Insert(Make(1));
  table.Erase(Incarnation(2));
  EXPECT_EQ(table.Find(Incarnation(2)), nullptr);
  EXPECT_EQ(table.size(), 1u);
  table.Erase(Incarnation(1));
  EXPECT_EQ(table.Find(Incarnation(1)), nullptr);
  EXPECT_TRUE(table.empty());
}

TEST(NodeTable, ClearRemovesEveryNode) {
  NodeTable table;
  table.Insert(Make(1));
  table.Insert(Make(2));
  table.Clear();
  EXPECT_THAT(Order(table), IsEmpty());
  EXPECT_EQ(table.Find(Incarnation(1)), nullptr);
  table.Insert(Make(1));
  EXPECT_EQ(table.CheckInvariants(), "");
}

TEST(NodeTableDeathTest, AnIncarnationIsAdmittedOnce) {
  NodeTable table;
  table.Insert(Make(1));
  EXPECT_DEATH(table.Insert(Make(1)), "admitted once");
}

}  // namespace
}  // namespace fsdprun
