// Muon on a fake device: what it exchanges is ordered behind what writes it.

#include <fsdp/muon.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/streams/on_a_fake_device.h"
#include "tests/unit/fsdp_runtime/streams/training_case.h"

namespace fsdp::testing {
namespace {

using MuonOrderTest = OnAFakeDevice;

// Matrices by Muon, the rest by AdamW. Of offloaded shards the copies to the host block it, which
// this device, whose memory is the host's, cannot show.
TEST_F(MuonOrderTest, HasNoRaces) {
  CaseList cases;
  const Case& test_case = cases.add("muon");
  Sharded setup = sharded_for(test_case);
  MuonParamGroup matrices;
  AdamWParamGroup others;
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    const bool is_hidden = shard.fqn.ends_with("up") || shard.fqn.ends_with("down");
    (is_hidden ? matrices.params : others.params).push_back(shard.fqn);
  }
  Muon muon(setup.root, {matrices});
  AdamW rest(setup.root, {others}, {});
  for (int64_t step = 0; step < 3; ++step) {
    forward_and_backward(test_case, setup, step);
    device_.set_phase("the optimizer");
    muon.step();
    rest.step();
    muon.zero_grad();
    rest.zero_grad();
  }
  device_.set_phase("the end");
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    EXPECT_TRUE(shard.local.isfinite().all().item<bool>()) << shard.fqn;
  }
  EXPECT_EQ(device_.text_of_races(), "");
}

}  // namespace
}  // namespace fsdp::testing
