#include "launcher/coordinator/rank_assignment.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>

namespace fsdprun {

namespace {

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// End of the run of digits or of non-digits that starts at `begin`.
size_t RunEnd(std::string_view s, size_t begin) {
  size_t end = begin + 1;
  while (end < s.size() && IsDigit(s[end]) == IsDigit(s[begin])) {
    ++end;
  }
  return end;
}

/// The run without leading zeros, so that longer means larger.
std::string_view Significant(std::string_view digits) {
  const size_t first = digits.find_first_not_of('0');
  return first == std::string_view::npos ? std::string_view() : digits.substr(first);
}

/// -1, 0 or 1.
int CompareRuns(std::string_view a, std::string_view b) {
  if (IsDigit(a[0]) && IsDigit(b[0])) {
    const std::string_view x = Significant(a);
    const std::string_view y = Significant(b);
    if (x.size() != y.size()) {
      return x.size() < y.size() ? -1 : 1;
    }
    return x < y ? -1 : (y < x ? 1 : 0);
  }
  return a < b ? -1 : (b < a ? 1 : 0);
}

bool NewcomerLess(const NodeInfo& a, const NodeInfo& b) {
  if (a.name != b.name) {
    return NaturalLess(a.name, b.name);
  }
  return a.incarnation < b.incarnation;
}

/// Indices of `candidates` in the order of their future group ranks.
std::vector<size_t> Order(const std::vector<Candidate>& candidates) {
  std::vector<size_t> requested;
  std::vector<size_t> others;
  for (size_t i = 0; i < candidates.size(); ++i) {
    (candidates[i].node.requested_node_rank ? requested : others).push_back(i);
  }
  std::sort(requested.begin(), requested.end(), [&](size_t a, size_t b) {
    const NodeInfo& x = candidates[a].node;
    const NodeInfo& y = candidates[b].node;
    return std::tuple(*x.requested_node_rank, x.incarnation) <
           std::tuple(*y.requested_node_rank, y.incarnation);
  });
  std::sort(others.begin(), others.end(), [&](size_t a, size_t b) {
    const int x = candidates[a].previous_group_rank;
    const int y = candidates[b].previous_group_rank;
    if ((x >= 0) != (y >= 0)) {
      return x >= 0;
    }
    return x != y ? x < y : NewcomerLess(candidates[a].node, candidates[b].node);
  });
  std::vector<size_t> order;
  size_t next_requested = 0;
  size_t next_other = 0;
  while (order.size() < candidates.size()) {
    const bool due = next_requested < requested.size() &&
                     *candidates[requested[next_requested]].node.requested_node_rank <=
                         static_cast<int>(order.size());
    if (due || next_other == others.size()) {
      order.push_back(requested[next_requested++]);
    } else {
      order.push_back(others[next_other++]);
    }
  }
  return order;
}

}  // namespace

bool NaturalLess(std::string_view a, std::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const size_t i_end = RunEnd(a, i);
    const size_t j_end = RunEnd(b, j);
    const int order = CompareRuns(a.substr(i, i_end - i), b.substr(j, j_end - j));
    if (order != 0) {
      return order < 0;
    }
    i = i_end;
    j = j_end;
  }
  if ((i < a.size()) != (j < b.size())) {
    return j < b.size();
  }
  return a < b;
}

std::vector<RankAssignment> AssignRanks(const std::vector<Candidate>& candidates,
                                        const WorldNumbers& numbers) {
  std::vector<RankAssignment> result(candidates.size());
  std::map<std::string, int> role_sizes;
  int rank_offset = 0;
  int group_rank = 0;
  for (const size_t i : Order(candidates)) {
    const NodeInfo& node = candidates[i].node;
    RankAssignment& a = result[i];
    a.generation = numbers.generation;
    a.restart_count = numbers.restart_count;
    a.max_restarts = numbers.max_restarts;
    a.launch_id = numbers.launch_id;
    a.world_of_attempt = numbers.world_of_attempt;
    a.earlier_restarts = numbers.earlier_restarts;
    a.group_rank = group_rank++;
    a.group_world_size = static_cast<int>(candidates.size());
    a.rank_offset = rank_offset;
    a.local_world_size = node.local_world_size;
    a.role = node.role;
    a.role_rank_offset = role_sizes[node.role];
    rank_offset += node.local_world_size;
    role_sizes[node.role] += node.local_world_size;
  }
  for (RankAssignment& a : result) {
    a.world_size = rank_offset;
    a.role_world_size = role_sizes[a.role];
  }
  return result;
}

}  // namespace fsdprun
