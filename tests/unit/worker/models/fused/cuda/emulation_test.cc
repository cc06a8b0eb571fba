// The emulation in which kernels are tested finds what it is for.

#include "tests/unit/worker/models/fused/cuda/emulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

// In a namespace, for its names are short.
namespace emulated_rows {
#include "worker/models/fused/cuda/rows.cuh"
}  // namespace emulated_rows

namespace fsdprun::worker {
namespace {

using emulation::Schedule;

constexpr unsigned kThreads = 128;
constexpr Schedule kFirst = {Schedule::Kind::kTurns, 0}, kLast = {Schedule::Kind::kTurns, 1};

std::vector<Schedule> EachSchedule() {
  std::vector<Schedule> schedules;
  for (const unsigned order : {0U, 1U, 2U, 3U}) {
    schedules.push_back({Schedule::Kind::kTurns, order});
    schedules.push_back({Schedule::Kind::kAhead, order});
  }
  return schedules;
}

/// What the first thread reads of the last one's number, with a barrier between the two or without.
float ReadOfTheLast(bool has_barrier, const Schedule& schedule) {
  std::vector<float> numbers(kThreads, 0.0F);
  float read = -1.0F;
  emulation::Run({1, kThreads, schedule}, [&] {
    numbers[threadIdx.x] = 1.0F;
    if (has_barrier) __syncthreads();
    if (threadIdx.x == 0) read = numbers[kThreads - 1];
  });
  return read;
}

TEST(EmulationTest, ABarrierMakesResultsIndependentOfTheSchedule) {
  for (const Schedule& schedule : EachSchedule()) {
    EXPECT_EQ(ReadOfTheLast(/*has_barrier=*/true, schedule), 1.0F);
  }
}

TEST(EmulationTest, AMissingBarrierMakesResultsDependOnTheSchedule) {
  EXPECT_EQ(ReadOfTheLast(/*has_barrier=*/false, kFirst), 0.0F);
  EXPECT_EQ(ReadOfTheLast(/*has_barrier=*/false, kLast), 1.0F);
  EXPECT_EQ(ReadOfTheLast(/*has_barrier=*/false, {Schedule::Kind::kAhead, 0}), 0.0F);
  EXPECT_EQ(ReadOfTheLast(/*has_barrier=*/false, {Schedule::Kind::kAhead, 1}), 1.0F);
}

/// How many threads have the sum of all numbers after a second sum, of ones: a warp that is ahead
/// may write for the second what others have yet to read of the first.
int ThreadsWithBothSums(unsigned slots, const Schedule& schedule) {
  static float scratch[2][32];
  int right = 0;
  emulation::Run({1, kThreads, schedule}, [&] {
    using emulated_rows::Reduce;
    const float first =
        Reduce<emulated_rows::Sum>(static_cast<float>(threadIdx.x), 0.0F, scratch[0]);
    const float second = Reduce<emulated_rows::Sum>(1.0F, 0.0F, scratch[slots - 1]);
    right += first == 0.5F * kThreads * (kThreads - 1) && second == kThreads ? 1 : 0;
  });
  return right;
}

TEST(EmulationTest, SumsInSlotsOfTheirOwnAreRightInEachSchedule) {
  for (const Schedule& schedule : EachSchedule()) {
    EXPECT_EQ(ThreadsWithBothSums(/*slots=*/2, schedule), int{kThreads});
  }
}

TEST(EmulationTest, ASlotThatIsWrittenAgainWithoutABarrierIsFound) {
  for (const unsigned order : {0U, 1U, 2U, 3U}) {
    EXPECT_LT(ThreadsWithBothSums(/*slots=*/1, {Schedule::Kind::kAhead, order}), int{kThreads})
        << order;
  }
}

/// Of each warp, how many barriers others had reached behind each that it left.
std::vector<unsigned> LeadsOfWarps(const Schedule& schedule) {
  std::vector<unsigned> reached(kThreads / 32), leads(kThreads / 32);
  emulation::Run({1, kThreads, schedule}, [&] {
    const unsigned warp = threadIdx.x / 32;
    for (int i = 0; i < 3; ++i) {
      if (threadIdx.x % 32 == 0) {
        ++reached[warp];
        leads[warp] += reached[warp] - *std::min_element(reached.begin(), reached.end());
      }
      __syncthreads();
    }
  });
  return leads;
}

TEST(EmulationTest, TheFirstWarpIsAheadAndTheLastOneBehind) {
  EXPECT_EQ(LeadsOfWarps({Schedule::Kind::kAhead, 0}), (std::vector<unsigned>{3, 3, 3, 0}));
  EXPECT_EQ(LeadsOfWarps({Schedule::Kind::kAhead, 1}), (std::vector<unsigned>{0, 3, 3, 3}));
}

TEST(EmulationTest, ABarrierThatSomeDoNotReachIsFound) {
  for (const Schedule& schedule : EachSchedule()) {
    EXPECT_THROW(emulation::Run({1, kThreads, schedule},
                                [] {
                                  if (threadIdx.x % 2 == 0) __syncthreads();
                                }),
                 std::logic_error);
  }
}

TEST(EmulationTest, LanesOfAWarpExchangeNumbers) {
  for (const Schedule& schedule : EachSchedule()) {
    std::vector<float> got(2 * kThreads);
    emulation::Run({2, kThreads, schedule}, [&] {
      const auto number = static_cast<float>(threadIdx.x);
      got[blockIdx.x * blockDim.x + threadIdx.x] = __shfl_xor_sync(0xffffffffU, number, 16);
    });
    for (unsigned i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i], static_cast<float>((i % kThreads) ^ 16U)) << i;
    }
  }
}

TEST(EmulationTest, BlocksThatNoDeviceHasAreRefused) {
  EXPECT_THROW(emulation::Run({1, 33, {}}, [] {}), std::logic_error);
  EXPECT_THROW(emulation::Run({1, 2048, {}}, [] {}), std::logic_error);
}

}  // namespace
}  // namespace fsdprun::worker
