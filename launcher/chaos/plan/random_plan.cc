#include "launcher/chaos/plan/random_plan.h"

#include <algorithm>
#include <iterator>

#include "base/split_mix64.h"

namespace fsdprun::chaos {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : numbers_(seed) {}

  uint64_t Roll() { return numbers_.Next(); }
  /// Both ends can come. In whole milliseconds.
  Duration Between(Duration min, Duration max) {
    const auto from = std::chrono::duration_cast<std::chrono::milliseconds>(min).count();
    const auto to = std::chrono::duration_cast<std::chrono::milliseconds>(max).count();
    const auto more = static_cast<int64_t>(Roll() % static_cast<uint64_t>(to - from + 1));
    return std::chrono::milliseconds(from + more);
  }
  template <class T>
  T OneOf(const std::vector<T>& choices) {
    return choices[Roll() % choices.size()];
  }

 private:
  SplitMix64 numbers_;
};

std::vector<FaultTarget> TargetsFor(FaultKind kind, const RandomPlanOptions& options) {
  std::vector<FaultTarget> targets = options.targets;
  targets.push_back(FaultTarget::kNone);
  std::vector<FaultTarget> suitable;
  std::copy_if(targets.begin(), targets.end(), std::back_inserter(suitable),
               [kind, &options](FaultTarget target) {
                 return Suits(kind, target) && WhyNot(kind, target, options.powers).empty();
               });
  return suitable;
}

}  // namespace

FaultPlan MakeRandomPlan(const RandomPlanOptions& options) {
  std::vector<FaultKind> kinds;
  std::copy_if(options.kinds.begin(), options.kinds.end(), std::back_inserter(kinds),
               [&](FaultKind kind) { return !TargetsFor(kind, options).empty(); });
  FaultPlan plan;
  if (kinds.empty()) {
    return plan;
  }
  Dice dice(options.seed);
  for (int i = 0; i < options.faults; ++i) {
    PlannedFault fault{.at = dice.Between(options.every / 2, options.every * 3 / 2),
                       .kind = dice.OneOf(kinds)};
    fault.target = dice.OneOf(TargetsFor(fault.kind, options));
    fault.pick = dice.Roll();
    if (Lasts(fault.kind)) {
      fault.length = dice.Between(options.length.min, options.length.max);
    }
    if (fault.kind == FaultKind::kDelay) {
      fault.latency = dice.Between(options.latency.min, options.latency.max);
    }
    plan.faults.push_back(fault);
  }
  return plan;
}

}  // namespace fsdprun::chaos
