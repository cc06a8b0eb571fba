#pragma once

// The sentences for whoever is on call.

#include <string>
#include <vector>

#include "launcher/watch/findings.h"
#include "launcher/watch/sample.h"
#include "launcher/watch/suspicion.h"

namespace fsdprun::watch {

/// Where the ranks of a world run.
class Places {
 public:
  Places() = default;
  explicit Places(std::vector<NodeRanks> nodes);

  int world_size() const { return static_cast<int>(node_of_rank_.size()); }
  const std::vector<NodeRanks>& nodes() const { return nodes_; }
  size_t NodeIndexOf(int rank) const { return node_of_rank_[static_cast<size_t>(rank)]; }
  const std::string& NodeOf(int rank) const { return nodes_[NodeIndexOf(rank)].name; }

 private:
  std::vector<NodeRanks> nodes_;
  std::vector<size_t> node_of_rank_;
};

/// What is said of the suspicion. Pure.
std::string DescribeHang(const Scene& scene, const Suspicion& suspicion, const Places& places);

/// "rank 3 on node b", "ranks 3, 4 and 7 on node b", "ranks 1, 2 and 98 more on 13 nodes".
std::string DescribeRanks(const std::vector<int>& ranks, const Places& places);

/// "8.2 s", "3 min 20 s", "2 h 5 min".
std::string TextOf(Duration duration);
/// "312 ms", "2.31 s": of a step.
std::string TextOfStep(Duration duration);

}  // namespace fsdprun::watch
