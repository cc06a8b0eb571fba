// The recorder of operations beside the threads that issue, end and wait for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "fsdp_runtime/src/comm/sequence_recorder.h"
#include "tests/unit/fsdp_runtime/comm/memory_store.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using ::testing::HasSubstr;

constexpr SequenceRecorder::Patience kAlways{milliseconds(1), minutes(10)};

class Operation : public Work {
 public:
  void wait() override {}
  bool is_done() override { return has_ended; }
  std::atomic<bool> has_ended{false};
};

shm::Descriptor gather_of(const std::string& unit) {
  return {.kind = shm::Kind::kAllGather, .numel = 8, .purpose = shm::purpose_of("unit " + unit)};
}

/// One rank of two.
struct Recorded {
  Recorded(const testing::MemoryStore& store, int64_t rank)
      : recorder(std::make_shared<StoreClient>("127.0.0.1", store.port(), minutes(10)), "a",
                 {rank, 2}, kAlways,
                 [this](const std::string& difference) { told.set_value(difference); }) {}
  std::promise<std::string> told;
  SequenceRecorder recorder;
};

TEST(RecorderThreadsTest, BothRanksHearWhatDiffersWhileTheyWait) {
  const testing::MemoryStore store;
  Recorded ranks[] = {{store, 0}, {store, 1}};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Recorded& own = ranks[rank];
      own.recorder.add(Lane::kGather, gather_of(rank == 0 ? "a" : "b"));
      own.recorder.keep(std::make_shared<Operation>());
      const SequenceRecorder::Waiting waiting(own.recorder, nullptr);
      EXPECT_THAT(own.told.get_future().get(),
                  HasSubstr("but rank 1 issued all_gather #1 for unit b"));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Operations are issued, end on a device and are agreed on while the recorder looks every
// millisecond, publishes and withdraws.
TEST(RecorderThreadsTest, WhatGoesOnIsNoDifference) {
  const testing::MemoryStore store;
  Recorded ranks[] = {{store, 0}, {store, 1}};
  std::vector<std::thread> threads;
  for (Recorded& own : ranks) {
    threads.emplace_back([&own] {
      for (int round = 0; round < 20; ++round) {
        std::vector<std::shared_ptr<Operation>> launched;
        for (int i = 0; i < 20; ++i) {
          own.recorder.add(Lane::kGather, gather_of(std::to_string(i)));
          launched.push_back(std::make_shared<Operation>());
          own.recorder.keep(launched.back());
        }
        std::thread device([&launched] {
          for (const auto& operation : launched) {
            operation->has_ended = true;
          }
        });
        const SequenceRecorder::Waiting waiting(own.recorder, own.recorder.next_round());
        device.join();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (Recorded& own : ranks) {
    EXPECT_EQ(own.told.get_future().wait_for(milliseconds(0)), std::future_status::timeout);
  }
}

}  // namespace
}  // namespace fsdp
