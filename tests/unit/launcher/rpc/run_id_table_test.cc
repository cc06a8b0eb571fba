#include "launcher/rpc/run_id_table.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace fsdprun {
namespace {

using Kind = RunIdTable::Kind;
using Endpoints = std::vector<std::string>;

const Endpoints kEndpoints{"10.0.0.1:1", "[fd00::1]:1"};
const Endpoints kOthers{"10.0.0.2:1"};
constexpr Duration kGrace = std::chrono::seconds(40);

class RunIdTableTest : public ::testing::Test {
 protected:
  RunIdTable::Answer Ask(const std::string& run_id, const Endpoints& endpoints, uint64_t caller) {
    return table_.Ask({.run_id = run_id,
                       .endpoints = endpoints,
                       .refused = {},
                       .hosts = false,
                       .claim_lease = claim_lease_},
                      caller, now_);
  }
  RunIdTable::Answer AskRefused(const Endpoints& refused, uint64_t caller) {
    return table_.Ask({.run_id = "two",
                       .endpoints = kOthers,
                       .refused = refused,
                       .hosts = false,
                       .claim_lease = {}},
                      caller, now_);
  }
  RunIdTable::Answer TellHosted(const std::string& run_id, const Endpoints& endpoints,
                                uint64_t caller) {
    return table_.Ask(
        {.run_id = run_id, .endpoints = endpoints, .refused = {}, .hosts = true, .claim_lease = {}},
        caller, now_);
  }

  RunIdTable table_{"own", MonoTime{}};
  /// Of those who Ask().
  Duration claim_lease_{};
  MonoTime now_ = MonoTime{} + RunIdTable::kSettle;
};

TEST_F(RunIdTableTest, TheFirstHostsAndTheOthersFindIt) {
  EXPECT_EQ(Ask("own", kEndpoints, 1).kind, Kind::kHere);
  EXPECT_EQ(Ask("two", {}, 2).kind, Kind::kUnknown);
  EXPECT_EQ(Ask("two", kEndpoints, 3).kind, Kind::kYours);
  const RunIdTable::Answer found = Ask("two", {}, 4);
  EXPECT_EQ(found.kind, Kind::kThere);
  EXPECT_EQ(found.endpoints, kEndpoints);
}

TEST_F(RunIdTableTest, AHostThatLeavesIsForgottenAndAClosedRunIdIsNot) {
  Ask("two", kEndpoints, 1);
  table_.Leave(2, true);  // Of somebody who hosts nothing.
  EXPECT_EQ(Ask("two", kEndpoints, 3).kind, Kind::kThere);
  table_.Leave(1, false);
  table_.Break(1, now_);
  EXPECT_EQ(Ask("two", kEndpoints, 4).kind, Kind::kYours);
  table_.Leave(4, true);
  EXPECT_EQ(Ask("two", kEndpoints, 5).kind, Kind::kClosed);
  EXPECT_EQ(TellHosted("two", kEndpoints, 5).kind, Kind::kClosed);
}

TEST_F(RunIdTableTest, AHostThatIsNotHeardOfKeepsItsPlaceForTheGrace) {
  Ask("two", kEndpoints, 1);
  table_.Break(1, now_);
  now_ += kGrace - std::chrono::nanoseconds(1);
  EXPECT_EQ(Ask("two", kOthers, 2).endpoints, kEndpoints);
  now_ += std::chrono::nanoseconds(1);
  EXPECT_EQ(Ask("two", kOthers, 3).kind, Kind::kYours);
}

TEST_F(RunIdTableTest, TheGraceIsTheClaimLeaseOfTheHostsOwnJobWithinBounds) {
  const Duration longest = ClocksFor(kLongestNodeLease).claim_lease;
  struct Row {
    Duration told;
    Duration kept;
  };
  const std::vector<Row> rows = {{std::chrono::seconds(1), kGrace},
                                 {kGrace, kGrace},
                                 {std::chrono::seconds(80), std::chrono::seconds(80)},
                                 {std::chrono::hours(100'000), longest}};
  uint64_t caller = 1;
  for (const Row& row : rows) {
    claim_lease_ = row.told;
    ASSERT_EQ(Ask("two", kEndpoints, caller).kind, Kind::kYours);
    table_.Break(caller, now_);
    claim_lease_ = {};
    now_ += row.kept - std::chrono::nanoseconds(1);
    EXPECT_EQ(Ask("two", kOthers, ++caller).kind, Kind::kThere) << ToSeconds(row.told);
    now_ += std::chrono::nanoseconds(1);
    EXPECT_EQ(Ask("two", kOthers, ++caller).kind, Kind::kYours) << ToSeconds(row.told);
    table_.Leave(caller++, false);
  }
}

TEST_F(RunIdTableTest, AHostThatIsFoundGoneLosesItsPlaceOnlyIfNothingIsHeardOfIt) {
  Ask("two", kEndpoints, 1);
  EXPECT_EQ(AskRefused(kEndpoints, 2).endpoints, kEndpoints);
  table_.Break(1, now_);
  EXPECT_EQ(AskRefused({"10.0.0.3:1"}, 3).endpoints, kEndpoints) << "it looked elsewhere";
  EXPECT_EQ(AskRefused(kEndpoints, 4).kind, Kind::kYours);
}

TEST_F(RunIdTableTest, AHostComesBackAndTheEndOfItsOlderCallMeansNothing) {
  Ask("two", kEndpoints, 1);
  EXPECT_EQ(TellHosted("two", kEndpoints, 2).kind, Kind::kYours);
  table_.Break(1, now_);
  now_ += kGrace;
  EXPECT_EQ(Ask("two", kOthers, 3).endpoints, kEndpoints);
  EXPECT_EQ(TellHosted("two", kOthers, 4).endpoints, kEndpoints) << "a second host";
  EXPECT_EQ(TellHosted("own", kOthers, 5).kind, Kind::kHere);
}

TEST_F(RunIdTableTest, AHostThatBeatsIsBrokenByItsSilence) {
  Ask("two", kEndpoints, 1);
  now_ += std::chrono::hours(1);
  table_.NoteSilence(now_);
  EXPECT_EQ(AskRefused(kEndpoints, 2).kind, Kind::kThere) << "it has never beaten";
  EXPECT_TRUE(table_.Hear(1, now_));
  now_ += RunIdTable::kSilence - std::chrono::nanoseconds(1);
  table_.NoteSilence(now_);
  EXPECT_EQ(AskRefused(kEndpoints, 3).kind, Kind::kThere);
  now_ += std::chrono::nanoseconds(1);
  table_.NoteSilence(now_);
  now_ += kGrace - std::chrono::nanoseconds(1);
  table_.NoteSilence(now_);
  table_.Break(1, now_);  // Nothing new.
  EXPECT_EQ(Ask("two", kOthers, 4).kind, Kind::kThere);
  now_ += std::chrono::nanoseconds(1);
  EXPECT_EQ(Ask("two", kOthers, 5).kind, Kind::kYours);
  EXPECT_FALSE(table_.Hear(1, now_)) << "another has its place";
}

TEST_F(RunIdTableTest, AHostThatIsHeardAgainKeepsItsPlace) {
  Ask("two", kEndpoints, 1);
  table_.Hear(1, now_);
  now_ += std::chrono::hours(1);  // The reader did not run.
  table_.NoteSilence(now_);
  EXPECT_EQ(Ask("two", kOthers, 2).kind, Kind::kThere);
  EXPECT_TRUE(table_.Hear(1, now_));
  now_ += kGrace;
  EXPECT_EQ(Ask("two", kOthers, 3).kind, Kind::kThere);
}

TEST_F(RunIdTableTest, WhoComesToTheEndpointWaitsForThoseWhoHostBeforeItSendsNewcomersAway) {
  table_.Settle(now_);
  EXPECT_EQ(Ask("two", kOthers, 1).kind, Kind::kWait);
  EXPECT_EQ(Ask("own", kOthers, 2).kind, Kind::kHere);
  EXPECT_EQ(TellHosted("two", kEndpoints, 3).kind, Kind::kYours);
  EXPECT_EQ(Ask("two", kOthers, 4).endpoints, kEndpoints);
  now_ += RunIdTable::kSettle;
  EXPECT_EQ(Ask("three", kOthers, 5).kind, Kind::kYours);
}

TEST_F(RunIdTableTest, IsBounded) {
  for (size_t i = 0; i < RunIdTable::kMaxHosts; ++i) {
    EXPECT_EQ(Ask(std::to_string(i), kEndpoints, i).kind, Kind::kYours);
  }
  EXPECT_EQ(Ask("one more", kEndpoints, 9999).kind, Kind::kUnknown);
  table_.Leave(0, false);
  table_.Break(1, now_);
  EXPECT_EQ(Ask("one more", kEndpoints, 9999).kind, Kind::kYours);
  EXPECT_EQ(Ask("yet one more", kEndpoints, 9998).kind, Kind::kUnknown);
  now_ += kGrace;
  EXPECT_EQ(Ask("yet one more", kEndpoints, 9998).kind, Kind::kYours) << "the lost one has gone";
  for (uint64_t i = 0; i <= RunIdTable::kMaxClosed; ++i) {
    table_.Leave(9999, true);
    Ask("x" + std::to_string(i), kEndpoints, 9999);
  }
  EXPECT_EQ(Ask("one more", {}, 1).kind, Kind::kUnknown) << "the oldest goes first";
}

}  // namespace
}  // namespace fsdprun
