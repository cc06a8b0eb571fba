#pragma once

#include <string>
#include <vector>

#include "fsdpctl/doctor/checks/finding.h"
#include "fsdpctl/doctor/checks/pair_facts.h"

namespace fsdprun::doctor {

/// What was found on one node.
struct NodeReport {
  std::string node;
  std::string release;
  std::vector<Finding> findings;

  bool operator==(const NodeReport&) const = default;
};

/// The test with another node, and what that has told of itself.
struct PairReport {
  PairFacts facts;
  std::vector<Finding> findings;
  /// Empty node: it has told nothing, because this node went there and not the reverse.
  NodeReport other;
};

struct DoctorReport {
  NodeReport own;
  std::vector<PairReport> pairs;
  /// About the meeting of the nodes; empty if there was none.
  std::vector<Finding> meeting;
};

/// Of all nodes, pairs and the meeting.
Severity WorstOf(const DoctorReport& report);

}  // namespace fsdprun::doctor
