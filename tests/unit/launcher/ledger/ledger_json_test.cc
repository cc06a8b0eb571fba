#include "launcher/ledger/ledger_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace fsdprun {
namespace {

TEST(LedgerJsonTest, EveryBucketIsThereAndTheirSumIsTheTime) {
  const MonoTime begin{};
  TimeLedger ledger(begin);
  ledger.On(job::WorldFormed{}, begin + std::chrono::milliseconds(250));
  const auto json =
      nlohmann::json::parse(LedgerJson(ledger, "run\xff", begin + std::chrono::milliseconds(1500)));
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["job"], "run\xef\xbf\xbd");
  EXPECT_EQ(json["wall_s"], 1.5);
  EXPECT_EQ(json["buckets_s"].size(), kTimeBuckets);
  EXPECT_EQ(json["buckets_s"]["rendezvous"], 0.25);
  EXPECT_EQ(json["buckets_s"]["prepare"], 1.25);
  EXPECT_TRUE(json["goodput_ratio"].is_null());
}

}  // namespace
}  // namespace fsdprun
