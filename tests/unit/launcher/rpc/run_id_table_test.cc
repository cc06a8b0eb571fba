#include "launcher/rpc/run_id_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun {
namespace {

using Kind = RunIdTable::Kind;

const std::vector<std::string> kEndpoints{"10.0.0.1:1", "[fd00::1]:1"};

TEST(RunIdTableTest, TheFirstHostsAndTheOthersFindIt) {
  RunIdTable table("own");
  EXPECT_EQ(table.Ask("own", kEndpoints, 1).kind, Kind::kHere);
  EXPECT_EQ(table.Ask("two", {}, 2).kind, Kind::kUnknown);
  EXPECT_EQ(table.Ask("two", kEndpoints, 3).kind, Kind::kYours);
  const RunIdTable::Answer found = table.Ask("two", {}, 4);
  EXPECT_EQ(found.kind, Kind::kThere);
  EXPECT_EQ(found.endpoints, kEndpoints);
}

TEST(RunIdTableTest, AHostIsForgottenWithItsCallAndAClosedRunIdIsNot) {
  RunIdTable table("own");
  table.Ask("two", kEndpoints, 1);
  table.Leave(2, true);  // Of somebody who hosts nothing.
  EXPECT_EQ(table.Ask("two", kEndpoints, 3).kind, Kind::kThere);
  table.Leave(1, false);
  EXPECT_EQ(table.Ask("two", kEndpoints, 4).kind, Kind::kYours);
  table.Leave(4, true);
  EXPECT_EQ(table.Ask("two", kEndpoints, 5).kind, Kind::kClosed);
}

TEST(RunIdTableTest, IsBounded) {
  RunIdTable table("own");
  for (size_t i = 0; i < RunIdTable::kMaxHosts; ++i) {
    EXPECT_EQ(table.Ask(std::to_string(i), kEndpoints, i).kind, Kind::kYours);
  }
  EXPECT_EQ(table.Ask("one more", kEndpoints, 9999).kind, Kind::kUnknown);
  table.Leave(0, false);
  EXPECT_EQ(table.Ask("one more", kEndpoints, 9999).kind, Kind::kYours);
  for (uint64_t i = 0; i <= RunIdTable::kMaxClosed; ++i) {
    table.Leave(9999, true);
    table.Ask("x" + std::to_string(i), kEndpoints, 9999);
  }
  EXPECT_EQ(table.Ask("one more", {}, 1).kind, Kind::kUnknown) << "the oldest goes first";
}

}  // namespace
}  // namespace fsdprun
