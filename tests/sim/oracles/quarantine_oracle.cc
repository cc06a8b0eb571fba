#include "tests/sim/oracles/quarantine_oracle.h"

#include <algorithm>
#include <utility>

namespace fsdprun::sim {
namespace {

/// Of the window: six, and up to eight times that for who fails again and again.
constexpr Nanos kLongestWindows = 48;

}  // namespace

void QuarantineOracle::Admitted(int node) {
  if (auto left_out = left_out_.extract(node)) {
    were_left_out_.insert(std::move(left_out));
  }
}

void QuarantineOracle::LeftOut(Nanos at, int node, bool is_left_out) {
  if (auto before = were_left_out_.extract(node); before && is_left_out) {
    left_out_.insert(std::move(before));  // It is only told again.
    return;
  }
  if (!is_left_out) {
    left_out_.erase(node);
    return;
  }
  CountQuestion();
  std::string name;
  int faults = 0;
  for (const InjectedFault& fault : ledger_.faults()) {
    const bool may_count = std::max(fault.at, fault.until) + window_ + ledger_.aftermath() >= at;
    if (fault.node == node && may_count && fault.at <= at && IsChargeable(fault.kind)) {
      name = fault.node_name;
      ++faults;
    }
  }
  if (after_ == 0 || faults < std::max(1, after_ - 1)) {
    Complain("node " + std::to_string(node) + " is left out after " + std::to_string(faults) +
             " faults, and " + std::to_string(after_) + " are asked for");
  }
  left_out_[node] = {name, at};
}

void QuarantineOracle::WorldOrdered(Nanos at, Generation g) {
  if (g <= ordered_ || left_out_.empty()) {
    return;
  }
  ordered_ = g;
  CountQuestion();
  for (const auto& [node, told] : left_out_) {
    if (at - told.at > kLongestWindows * window_) {
      Complain("generation " + std::to_string(g.value()) + " is formed without " + told.name +
               ", whose quarantine is over");
    }
  }
}

void QuarantineOracle::StopOrdered(Generation g, const std::string& why) {
  if (g <= stopped_ || left_out_.empty()) {
    return;
  }
  stopped_ = g;
  CountQuestion();
  for (const auto& [node, told] : left_out_) {
    if (why.rfind("node " + told.name + " joins", 0) == 0) {
      Complain("generation " + std::to_string(g.value()) + " is stopped for " + told.name +
               ", which is left out");
    }
  }
}

}  // namespace fsdprun::sim
