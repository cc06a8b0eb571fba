#include "fsdp_runtime/plan/matrix_deal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace fsdp::plan {
namespace {

std::vector<int64_t> sums_of(const std::vector<int64_t>& costs, int64_t ranks) {
  std::vector<int64_t> sums(static_cast<size_t>(ranks), 0);
  const std::vector<int64_t> owners = deal_by_cost(costs, ranks);
  EXPECT_EQ(owners.size(), costs.size());
  for (size_t i = 0; i < costs.size(); ++i) {
    sums.at(static_cast<size_t>(owners[i])) += costs[i];
  }
  return sums;
}

TEST(MatrixDealTest, RefusesWhatCannotBeDealt) {
  EXPECT_THROW(deal_by_cost({1}, 0), std::invalid_argument);
  EXPECT_THROW(deal_by_cost({1, -1}, 2), std::invalid_argument);
}

TEST(MatrixDealTest, CostliestGoFirstAndEqualOnesInOrder) {
  EXPECT_EQ(deal_by_cost({}, 3), std::vector<int64_t>{});
  EXPECT_EQ(deal_by_cost({5, 5, 5, 5}, 2), (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(deal_by_cost({1, 2, 9, 6}, 2), (std::vector<int64_t>{1, 1, 0, 1}));
  EXPECT_EQ(deal_by_cost({4, 4}, 3), (std::vector<int64_t>{0, 1}));  // the last one has nothing
}

// The blocks of a model, 7 matrices each, on more ranks than a block has matrices.
TEST(MatrixDealTest, RanksHaveAlmostEquallyMuchOfAModel) {
  std::vector<int64_t> costs;
  for (int64_t block = 0; block < 12; ++block) {
    for (int64_t i = 0; i < 4; ++i) {
      costs.push_back(orthogonalization_cost(64, 64));
    }
    for (int64_t i = 0; i < 3; ++i) {
      costs.push_back(orthogonalization_cost(172, 64));
    }
  }
  const int64_t total = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  for (const int64_t ranks : {1, 2, 3, 8, 16}) {
    const std::vector<int64_t> sums = sums_of(costs, ranks);
    EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), total);
    const int64_t largest = *std::max_element(sums.begin(), sums.end());
    EXPECT_LE(static_cast<double>(largest),
              1.15 * static_cast<double>(total) / static_cast<double>(ranks))
        << ranks;
  }
}

TEST(MatrixDealTest, CostIsThatOfTheShorterSidesProducts) {
  EXPECT_EQ(orthogonalization_cost(3, 5), 9 * 13);
  EXPECT_EQ(orthogonalization_cost(5, 3), 9 * 13);
  EXPECT_EQ(orthogonalization_cost(0, 5), 0);
}

}  // namespace
}  // namespace fsdp::plan
