// A job with a bad node, with and without quarantine.

#include <gtest/gtest.h>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {
namespace {

/// Every fault kills a worker or the agent of the last of eight nodes, of which five are enough.
SimOptions BadNode(uint64_t seed, int quarantine_after, double window_s) {
  SimOptions options;
  options.seed = seed;
  options.nodes = 8;
  options.mix.name = "bad node";
  options.mix.weights = {{FaultKind::kKillWorker, 3}, {FaultKind::kKillAgent, 1}};
  options.mix.mean_gap_s = 4;
  options.mix.faults_for_s = 120;
  options.mix.min_fraction = 0.7;
  options.mix.lemon = 1;
  options.mix.quarantine_after = quarantine_after;
  options.mix.quarantine_window_s = window_s;
  return options;
}

struct Totals {
  int worlds = 0;
  int restarts = 0;
};

Totals RunAll(int quarantine_after, double window_s = 600) {
  constexpr uint64_t kSeeds = 20;
  Totals totals;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimResult result = World(BadNode(seed, quarantine_after, window_s)).Run(0);
    EXPECT_EQ(result.violation, "") << "seed " << seed;
    EXPECT_EQ(result.outcome->kind, OutcomeKind::kSucceeded) << "seed " << seed;
    totals.worlds += result.formations;
    totals.restarts += result.restarts;
  }
  return totals;
}

TEST(SimQuarantineTest, JobLosesFewerWorldsToABadNodeThatItLeavesOut) {
  const Totals with = RunAll(3);
  const Totals without = RunAll(0);
  EXPECT_LE(2 * with.worlds, without.worlds) << with.worlds << " and " << without.worlds;
  EXPECT_LE(2 * with.restarts, without.restarts) << with.restarts << " and " << without.restarts;
}

// Whose quarantines last a minute, of the two for which it is bad.
TEST(SimQuarantineTest, JobGoesOnWithABadNodeThatComesBack) { RunAll(3, /*window_s=*/10); }

}  // namespace
}  // namespace fsdprun::sim
