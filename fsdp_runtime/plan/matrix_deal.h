#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::plan {

/// Multiplications of one iteration of Newton-Schulz on a matrix, s on its shorter side and l on
/// its longer one: s * s * (2 * l + s). 0 for a matrix without elements.
int64_t orthogonalization_cost(int64_t rows, int64_t columns);

/// Deals work of these costs, which cannot be divided, to ranks from 0 to ranks - 1, so that the
/// rank with most has little more than the others: the costliest first, each to the rank that has
/// least so far, the lowest of equal ones. Returns the rank of each. The largest sum is at most
/// 4/3 - 1/(3 * ranks) times the smallest possible one (Graham 1969). Pure: equal on all ranks.
/// Errors: std::invalid_argument on ranks < 1 and on a negative cost.
std::vector<int64_t> deal_by_cost(const std::vector<int64_t>& costs, int64_t ranks);

}  // namespace fsdp::plan
