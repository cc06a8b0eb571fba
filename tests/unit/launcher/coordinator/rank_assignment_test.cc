#include "launcher/coordinator/rank_assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::ElementsAre;

Candidate Make(uint64_t incarnation, const std::string& name, int workers,
               const std::string& role = "default") {
  Candidate candidate;
  candidate.node.incarnation = Incarnation(incarnation);
  candidate.node.name = name;
  candidate.node.local_world_size = workers;
  candidate.node.role = role;
  return candidate;
}

std::vector<int> GroupRanks(const std::vector<Candidate>& candidates) {
  std::vector<int> ranks;
  for (const RankAssignment& a : AssignRanks(candidates, {Generation(1), 0, 0})) {
    ranks.push_back(a.group_rank);
  }
  return ranks;
}

TEST(AssignRanksTest, RolesAreRankedTogetherAsTorchrunDoes) {
  std::vector<Candidate> nodes = {Make(1, "n0", 4, "ps"), Make(2, "n1", 1, "trainer"),
                                  Make(3, "n2", 2, "trainer"), Make(4, "n3", 3, "trainer"),
                                  Make(5, "n4", 5, "ps")};
  const std::vector<RankAssignment> a = AssignRanks(nodes, {Generation(7), 2, 3, "launch", 5, 4});

  std::vector<std::vector<int>> table;
  for (const RankAssignment& x : a) {
    EXPECT_EQ(x.world_size, 15);
    EXPECT_EQ(x.group_world_size, 5);
    EXPECT_EQ(x.generation, Generation(7));
    EXPECT_EQ(x.restart_count, 2);
    EXPECT_EQ(x.max_restarts, 3);
    EXPECT_EQ(x.launch_id, "launch");
    EXPECT_EQ(x.world_of_attempt, 5);
    EXPECT_EQ(x.earlier_restarts, 4);
    table.push_back({x.rank_offset, x.rank_offset + x.local_world_size - 1, x.role_rank_offset,
                     x.role_rank_offset + x.local_world_size - 1, x.role_world_size});
  }
  EXPECT_THAT(table, ElementsAre(ElementsAre(0, 3, 0, 3, 9), ElementsAre(4, 4, 0, 0, 6),
                                 ElementsAre(5, 6, 1, 2, 6), ElementsAre(7, 9, 3, 5, 6),
                                 ElementsAre(10, 14, 4, 8, 9)));
}

TEST(AssignRanksTest, NewcomersComeInNaturalOrderThenByIncarnation) {
  EXPECT_THAT(GroupRanks({Make(1, "node-10", 1), Make(9, "node-2", 1), Make(3, "node-2", 1)}),
              ElementsAre(2, 1, 0));
}

TEST(AssignRanksTest, RequestedRanksAreHonoured) {
  std::vector<Candidate> nodes = {Make(1, "a", 1), Make(2, "b", 1), Make(3, "c", 1)};
  nodes[0].node.requested_node_rank = 2;
  nodes[2].node.requested_node_rank = 0;
  EXPECT_THAT(GroupRanks(nodes), ElementsAre(2, 1, 0));
}

TEST(AssignRanksTest, RequestedRanksCloseUpOverALostNode) {
  std::vector<Candidate> nodes = {Make(1, "a", 1), Make(2, "b", 1), Make(3, "c", 1)};
  nodes[0].node.requested_node_rank = 3;
  nodes[1].node.requested_node_rank = 0;
  nodes[2].node.requested_node_rank = 2;
  EXPECT_THAT(GroupRanks(nodes), ElementsAre(2, 0, 1));
}

TEST(AssignRanksTest, SurvivorsKeepTheirOrderBeforeNewcomers) {
  std::vector<Candidate> nodes = {Make(1, "a-newcomer", 1), Make(2, "y", 1), Make(3, "z", 1)};
  nodes[1].previous_group_rank = 3;
  nodes[2].previous_group_rank = 1;
  EXPECT_THAT(GroupRanks(nodes), ElementsAre(2, 1, 0));
}

TEST(AttemptNameTest, IsTorchrunsForTheFirstWorldOfARestartCountAndUniqueForTheOthers) {
  RankAssignment assignment;
  EXPECT_EQ(AttemptName(assignment), "attempt_0");
  assignment.restart_count = 3;
  EXPECT_EQ(AttemptName(assignment), "attempt_3");
  assignment.world_of_attempt = 12;
  EXPECT_EQ(AttemptName(assignment), "attempt_3.12");
}

TEST(NaturalLessTest, ComparesRunsOfDigitsAsNumbers) {
  EXPECT_TRUE(NaturalLess("node2", "node10"));
  EXPECT_FALSE(NaturalLess("node10", "node2"));
  EXPECT_TRUE(NaturalLess("rack1-node9", "rack2-node1"));
  EXPECT_TRUE(NaturalLess("node", "node1"));
  EXPECT_TRUE(NaturalLess("a", "b"));
  EXPECT_FALSE(NaturalLess("a", "a"));
  EXPECT_TRUE(NaturalLess("n99999999999999999999998", "n99999999999999999999999"));
  // Different spellings of one number are not equal, or the order would depend on the argument's.
  EXPECT_NE(NaturalLess("n01", "n1"), NaturalLess("n1", "n01"));
}

}  // namespace
}  // namespace fsdprun
