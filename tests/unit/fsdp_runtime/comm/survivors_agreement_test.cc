#include "fsdp_runtime/src/comm/survivors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Ranks = std::vector<int64_t>;

/// What each rank that comes is told, by what it leaves out.
std::vector<Ranks> agreed(const Ranks& members, const std::map<int64_t, std::set<int64_t>>& coming,
                          std::chrono::milliseconds patience = std::chrono::minutes(10)) {
  const auto store = testing::serve_store();
  std::vector<Ranks> told(coming.size());
  std::vector<std::thread> threads;
  for (const auto& [rank, excluded] : coming) {
    threads.emplace_back([&, rank = rank, excluded = excluded, index = threads.size()] {
      StoreClient client("127.0.0.1", store->getPort(), std::chrono::seconds(60));
      told[index] = agree_on_survivors(client, "world", rank, members, excluded,
                                       std::chrono::steady_clock::now() + patience);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return told;
}

TEST(SurvivorsAgreementTest, AllThatComeGoOnWithoutTheLost) {
  EXPECT_THAT(agreed({0, 1, 2, 3}, {{0, {2}}, {1, {2}}, {3, {2}}}), Each(ElementsAre(0, 1, 3)));
}

// Else ranks would wait for one that others know to be gone.
TEST(SurvivorsAgreementTest, WhomOneExcludesNobodyWaitsFor) {
  EXPECT_THAT(agreed({0, 1, 2, 3}, {{0, {}}, {3, {1, 2}}}), Each(ElementsAre(0, 3)));
}

TEST(SurvivorsAgreementTest, WhoDoesNotComeIsLeftBehind) {
  EXPECT_THAT(agreed({4, 6, 8}, {{4, {}}, {8, {}}}, std::chrono::seconds(2)),
              Each(ElementsAre(4, 8)));
}

TEST(SurvivorsAgreementTest, WhoIsLeftOutHearsOfItToo) {
  EXPECT_THAT(agreed({0, 1, 2}, {{0, {1}}, {1, {}}, {2, {1}}}), Each(ElementsAre(0, 2)));
}

}  // namespace
}  // namespace fsdp
