// However late reductions are, as many are on their way as there is memory for.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// Counts the reductions that have been issued and have not ended. None begins before two have been
/// issued, and each is late.
class LateReductions : public RecordingCollectives {
 public:
  using RecordingCollectives::RecordingCollectives;

  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    delay();
    return noted(RecordingCollectives::reduce_scatter_into(output, input, op, std::move(issue)));
  }
  WorkPtr reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    delay();
    return noted(RecordingCollectives::reduce_scatter_onto(output, input, op, std::move(issue)));
  }
  int64_t most_at_once() const { return most_; }
  size_t issued() const { return works_.size(); }

 private:
  void delay() {
    run_on_lane(Lane::kReduce, [this] {
      {
        std::unique_lock lock(mu_);
        changed_.wait_for(lock, std::chrono::seconds(10), [this] { return has_two_; });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the fault
    });
  }
  WorkPtr noted(WorkPtr work) {
    works_.push_back(work);
    const auto in_flight = std::count_if(works_.begin(), works_.end(),
                                         [](const WorkPtr& each) { return !each->is_done(); });
    most_ = std::max<int64_t>(most_, in_flight);
    if (works_.size() == 2) {
      const std::lock_guard lock(mu_);
      has_two_ = true;
      changed_.notify_all();
    }
    return work;
  }

  std::vector<WorkPtr> works_;
  int64_t most_ = 0;
  std::mutex mu_;
  std::condition_variable changed_;
  bool has_two_ = false;
};

TEST(ReductionsInFlightTest, AreAsManyAsThereIsMemoryFor) {
  run_ranks(2, [](Rank& rank) {
    const auto late = std::make_shared<LateReductions>(rank.comm);
    rank.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, late);
    const Sharded setup = make(rank, {.blocks = 7});
    for (int64_t step = 0; step < 2; ++step) {
      loss(setup.model, step, rank.rank).backward();
    }
    // Blocks share two slots, the root has its own.
    EXPECT_GE(late->most_at_once(), 2);
    EXPECT_LE(late->most_at_once(), 3);
    EXPECT_EQ(late->issued(), 2U * 8U);
  });
}

}  // namespace
}  // namespace fsdp::testing
