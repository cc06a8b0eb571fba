// What the backends write into the page that FSDPRUN_VITALS_FILE names: ranks are threads of this
// process, so their collectives add up.
#include <ATen/ATen.h>
#include <fsdp/counters.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <string>
#include <thread>

#include "proto/worker_contract.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/vitals/page_file.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using testing::PageFile;
using testing::run_backend;

/// Before any collective.
const PageFile& page_file() {
  static const PageFile& file = *[] {
    const auto* const made = new PageFile();
    ::setenv(fsdprun::contract::kEnvVitalsFile, made->path(), 1);
    return made;
  }();
  return file;
}

class CollectiveVitalsTest : public ::testing::TestWithParam<std::string> {
 protected:
  CollectiveVitalsTest() : page_(page_file().page()) {}

  /// False: not within a minute.
  template <class Condition>
  static bool comes_true(const Condition& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return condition();
  }

  PageFile::Page& page_;
};

/// Of ranks that wait for each other.
class WaitingVitalsTest : public CollectiveVitalsTest {};

TEST_P(CollectiveVitalsTest, EveryCollectiveBeginsAndEnds) {
  const int64_t size = GetParam() == "single" ? 1 : 2;
  const std::string backend = GetParam() == "single" ? "shm" : GetParam();
  const auto errors = run_backend(backend, size, [&](Collectives& group) {
    const auto count = [&](const auto& call) {
      group.barrier();
      const uint64_t before = page_.collectives_begun;
      group.barrier();
      call();
      group.barrier();
      return page_.collectives_begun - before;
    };
    at::Tensor whole = at::zeros({size * 4});
    at::Tensor part = at::ones({4});
    const Issue issue(Lane::kGather, "unit layers.0");
    EXPECT_GE(count([&] { group.all_gather_into(whole, part, issue)->wait(); }), 1u);
    EXPECT_GE(count([&] { group.reduce_scatter_into(part, whole, ReduceOp::kSum)->wait(); }), 1u);
    EXPECT_GE(count([&] { group.all_reduce(part, ReduceOp::kSum)->wait(); }), 1u);
    EXPECT_GE(count([&] { group.broadcast(part, 0)->wait(); }), 1u);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
  EXPECT_GT(page_.collectives_begun, 0u);
  EXPECT_EQ(page_.collectives_begun, page_.collectives_ended);
  EXPECT_EQ(page_.collective_began_ns, 0u);
}

TEST_P(WaitingVitalsTest, OneThatHangsIsToldWithItsUnit) {
  const auto errors = run_backend(GetParam(), 2, [&](Collectives& group) {
    at::Tensor whole = at::zeros({1024});
    at::Tensor part = at::ones({512});
    group.barrier();
    const auto waited_before = collective_wait_time();
    const auto begin = std::chrono::steady_clock::now();
    if (group.rank() == 0) {
      group.all_gather_into(whole, part, {Lane::kGather, "unit layers.7"})->wait();
      const auto passed = std::chrono::steady_clock::now() - begin;
      EXPECT_GE(collective_wait_time() - waited_before, milliseconds(50));
      EXPECT_LE(collective_wait_time() - waited_before, 2 * passed + milliseconds(50));
      return;
    }
    EXPECT_TRUE(comes_true([&] {
      return page_.collective_began_ns != 0 && PageFile::text(page_.unit) == "layers.7";
    }));
    EXPECT_EQ(PageFile::text(page_.collective), "all_gather");
    EXPECT_EQ(page_.collective_bytes, 4096u);
    EXPECT_EQ(page_.collectives_begun, page_.collectives_ended + 1);
    const uint64_t since = page_.collective_began_ns;
    std::this_thread::sleep_for(milliseconds(60));
    EXPECT_EQ(page_.collective_began_ns, since);
    group.all_gather_into(whole, part, {Lane::kGather, "unit layers.7"})->wait();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
  EXPECT_EQ(page_.collectives_begun, page_.collectives_ended);
}

TEST_P(WaitingVitalsTest, OneOfAPartNamesItsRanks) {
  const auto errors = run_backend(GetParam(), 3, [&](Collectives& group) {
    const auto part = group.split(group.rank() == 1 ? 1 : 0);
    group.barrier();
    at::Tensor value = at::ones({2});
    if (group.rank() == 0) {
      part->all_reduce(value, ReduceOp::kSum, {Lane::kReduce, "the loss"})->wait();
    } else if (group.rank() == 2) {
      EXPECT_TRUE(comes_true([&] {
        return page_.collective_began_ns != 0 && PageFile::text(page_.unit) == "the loss";
      }));
      EXPECT_EQ(PageFile::text(page_.collective), "all_reduce of ranks 0, 2");
      part->all_reduce(value, ReduceOp::kSum, {Lane::kReduce, "the loss"})->wait();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
}

TEST_P(WaitingVitalsTest, OneThatFailsHasEnded) {
  const auto errors = run_backend(GetParam(), 2, [&](Collectives& group) {
    group.barrier();
    if (group.rank() == 0) {
      at::Tensor value = at::ones({2});
      group.all_reduce(value, ReduceOp::kSum)->wait();
    } else {
      EXPECT_TRUE(comes_true([&] { return page_.collective_began_ns != 0; }));
      group.abort("the test");
    }
  });
  EXPECT_NE(errors[0], "");
  EXPECT_EQ(page_.collectives_begun, page_.collectives_ended);
  EXPECT_EQ(page_.collective_began_ns, 0u);
}

/// Gathers through windows have no thread that would see their end.
TEST_F(CollectiveVitalsTest, AGatherThroughAWindowEndsWithItsWait) {
  const auto errors = run_backend("shm", 2, [&](Collectives& group) {
    const int64_t numel = group.window_alignment() / static_cast<int64_t>(sizeof(float));
    const auto window = group.make_gather_window(numel, at::kFloat, "unit layers.3");
    if (window == nullptr) {
      return;  // on both
    }
    window->wait_for_readers();
    window->own().fill_(1.0);
    group.barrier();
    const WorkPtr work = window->issue({Lane::kGather, "unit layers.3"});
    EXPECT_GT(page_.collectives_begun, page_.collectives_ended);
    work->wait();
    work->wait();
    window->release();
    group.barrier();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
  EXPECT_EQ(page_.collectives_begun, page_.collectives_ended);
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectiveVitalsTest,
                         ::testing::Values("single", "shm", "gloo", "local"));
INSTANTIATE_TEST_SUITE_P(Backends, WaitingVitalsTest, ::testing::Values("shm", "gloo", "local"));

}  // namespace
}  // namespace fsdp
