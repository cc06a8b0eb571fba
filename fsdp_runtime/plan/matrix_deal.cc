#include "fsdp_runtime/plan/matrix_deal.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace fsdp::plan {

int64_t orthogonalization_cost(int64_t rows, int64_t columns) {
  const int64_t shorter = std::min(rows, columns);
  const int64_t longer = std::max(rows, columns);
  return shorter * shorter * (2 * longer + shorter);
}

std::vector<int64_t> deal_by_cost(const std::vector<int64_t>& costs, int64_t ranks) {
  if (ranks < 1) {
    throw std::invalid_argument("deal_by_cost: " + std::to_string(ranks) + " ranks");
  }
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&costs](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<int64_t> sums(static_cast<size_t>(ranks), 0);
  std::vector<int64_t> owners(costs.size(), 0);
  for (const size_t item : order) {
    if (costs[item] < 0) {
      throw std::invalid_argument("deal_by_cost: a cost of " + std::to_string(costs[item]));
    }
    const auto least = std::min_element(sums.begin(), sums.end());
    *least += costs[item];
    owners[item] = least - sums.begin();
  }
  return owners;
}

}  // namespace fsdp::plan
