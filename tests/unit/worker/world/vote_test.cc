#include "worker/world/vote.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/worker/checkpoint/thread_ranks.h"

namespace fsdprun::worker {
namespace {

TEST(NumberOfRank0Test, AllRanksHaveTheSame) {
  std::vector<int64_t> numbers(3);
  checkpoint::ThreadRanks(3).Run([&](const std::shared_ptr<fsdp::Collectives>& ranks) {
    World world;
    world.group = ranks;
    numbers[static_cast<size_t>(ranks->rank())] = NumberOfRank0(world, 50256 + ranks->rank());
  });
  EXPECT_EQ(numbers, std::vector<int64_t>(3, 50256));
}

}  // namespace
}  // namespace fsdprun::worker
