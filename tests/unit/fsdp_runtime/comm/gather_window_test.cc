#include <ATen/ATen.h>
#include <fsdp/collectives.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <thread>

#include "fsdp_runtime/src/comm/local_world.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_backend;

constexpr auto kLong = std::chrono::minutes(10);  // longer than a test may take

std::shared_ptr<GatherWindow> make_window(Collectives& group, const std::string& purpose,
                                          at::ScalarType dtype = at::kFloat) {
  const int64_t numel =
      2 * group.window_alignment() / static_cast<int64_t>(c10::elementSize(dtype));
  return group.make_gather_window(numel, dtype, purpose);
}

class GatherWindowTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GatherWindowTest, EveryUseShowsWhatAllRanksHadWrittenBefore) {
  for (const std::string& error : run_backend(GetParam(), 3, [](Collectives& group) {
         for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
           const auto window = make_window(group, "unit a", dtype);
           ASSERT_NE(window, nullptr);
           const int64_t numel = window->own().numel();
           ASSERT_EQ(window->whole().numel(), 3 * numel);
           ASSERT_EQ(window->whole().scalar_type(), dtype);
           for (int64_t step = 0; step < 20; ++step) {
             window->wait_for_readers();
             window->own().fill_(step + 100 * group.rank());
             const WorkPtr gather = window->issue({Lane::kGather, "unit a"});
             gather->wait();
             EXPECT_TRUE(gather->is_done());
             const at::Tensor expected = at::arange(3, dtype).mul(100).add(step);
             ASSERT_TRUE(at::equal(window->whole().view({3, numel}),
                                   expected.view({3, 1}).expand({3, numel})));
             window->whole().fill_(-1);
             window->release();
             ASSERT_EQ(window->own()[0].item<double>(),
                       static_cast<double>(step + 100 * group.rank()));
           }
         }
       })) {
    EXPECT_EQ(error, "");
  }
}

INSTANTIATE_TEST_SUITE_P(ThreadsAndInit, GatherWindowTest, ::testing::Values("local", "shm"));

TEST(GatherWindowErrorTest, WhereNothingCanBeMappedThereAreNoWindows) {
  for (const std::string& error : run_backend("gloo", 2, [](Collectives& group) {
         EXPECT_EQ(group.window_alignment(), 0);
         EXPECT_EQ(group.make_gather_window(4096, at::kFloat, "unit a"), nullptr);
       })) {
    EXPECT_EQ(error, "");
  }
  EXPECT_EQ(make_local_world(1)[0]->window_alignment(), 0);
  EXPECT_EQ(make_local_world(1)[0]->make_gather_window(4096, at::kFloat, "unit a"), nullptr);
}

TEST(GatherWindowErrorTest, MistakesAreToldAtTheCall) {
  for (const std::string& error : run_backend("local", 2, [](Collectives& group) {
         EXPECT_THROW(group.make_gather_window(0, at::kFloat, "unit a"), c10::Error);
         EXPECT_THROW(group.make_gather_window(7, at::kFloat, "unit a"), c10::Error);
         const auto window = make_window(group, "unit a");
         window->release();
         const WorkPtr gather = window->issue(Lane::kGather);
         EXPECT_THROW(window->issue(Lane::kGather), c10::Error);
         EXPECT_THROW(window->wait_for_readers(), c10::Error);
         gather->wait();
         gather->wait();
         window->release();
         window->wait_for_readers();
       })) {
    EXPECT_EQ(error, "");
  }
}

TEST(GatherWindowErrorTest, RanksThatGatherDifferentUnitsHearWhoDidWhat) {
  for (const std::string& error : run_backend(
           "local", 3,
           [](Collectives& group) {
             const auto a = make_window(group, "unit a");
             const auto b = make_window(group, "unit b");
             const bool is_odd = group.rank() == 1;
             (is_odd ? b : a)->issue({Lane::kGather, is_odd ? "unit b" : "unit a"})->wait();
           },
           kLong)) {
    EXPECT_THAT(error, AllOf(HasSubstr("ranks 0 and 2 issued all_gather #1 for unit a"),
                             HasSubstr("but rank 1 issued all_gather #1 for unit b")));
  }
}

// Each rank waits for the other: one for parameters, the other at the end of its backward.
TEST(GatherWindowErrorTest, RankThatHasGoneOnIsToldToWhoGathers) {
  for (const std::string& error : run_backend(
           "local", 2,
           [](Collectives& group) {
             const auto window = make_window(group, "unit a");
             if (group.rank() == 0) {
               window->issue({Lane::kGather, "unit a"})->wait();
             } else {
               group.agree(0, "the end")->wait();
             }
           },
           kLong)) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 issued all_gather"), HasSubstr("for unit a"),
                             HasSubstr("rank 1 issued barrier"), HasSubstr("for the end")));
  }
}

TEST(GatherWindowErrorTest, AgreementsFindRanksInStepWithWindowsToo) {
  for (const std::string& error : run_backend("local", 3, [](Collectives& group) {
         const auto window = make_window(group, "unit a");
         for (int step = 0; step < 20; ++step) {
           window->issue(Lane::kGather)->wait();
           EXPECT_TRUE(group.agree(7, "the end")->wait());
           window->release();
         }
       })) {
    EXPECT_EQ(error, "");
  }
}

// Nobody leaves before all have heard.
TEST(GatherWindowErrorTest, AGatherBehindAFailureFailsOnAllRanks) {
  std::barrier are_made(2);  // or rank 0 could hear of the failure before it has its window
  std::barrier have_heard(2);
  for (const std::string& error : run_backend(
           "local", 2,
           [&](Collectives& group) {
             const auto window = make_window(group, "unit a");
             are_made.arrive_and_wait();
             WorkPtr after;
             if (group.rank() == 1) {
               after =
                   group.run_on_lane(Lane::kReduce, [] { TORCH_CHECK(false, "no such tensor"); });
             }
             const WorkPtr gather = window->issue({Lane::kGather, "unit a", after});
             EXPECT_THROW(gather->wait(), c10::Error);
             have_heard.arrive_and_wait();
             window->release();
             gather->wait();
           },
           kLong)) {
    EXPECT_THAT(error, HasSubstr("no such tensor"));
  }
}

TEST(GatherWindowErrorTest, AbortReachesGatherersAndWriters) {
  for (const bool is_writer : {false, true}) {
    const auto errors = run_backend(
        "local", 2,
        [&](Collectives& group) {
          const auto window = make_window(group, "unit a");
          if (group.rank() == 0) {
            group.abort("the operator said so");
            return;
          }
          const WorkPtr gather = window->issue({Lane::kGather, "unit a"});
          window->release();
          is_writer ? window->wait_for_readers() : gather->wait();
        },
        kLong);
    EXPECT_THAT(errors[1], AllOf(HasSubstr("the operator said so"), HasSubstr("unit a")));
  }
}

// The kernel keeps what is written over locked memory. (Sanitizers make nothing of mlock().)
TEST(GatherWindowErrorTest, AUseThatCannotBeEndedIsAFailureOfAllRanks) {
  const auto errors = run_backend(
      "local", 2,
      [](Collectives& group) {
        const auto window = make_window(group, "unit a");
        window->issue({Lane::kGather, "unit a"})->wait();
        if (group.rank() == 0) {
          const at::Tensor whole = window->whole();
          ASSERT_EQ(::syscall(SYS_mlock, whole.data_ptr(), whole.nbytes()), 0);
        }
        window->release();
        window->wait_for_readers();
      },
      kLong);
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("rank 0 cannot end the use of the window of unit "
                                                "a: dropping what this rank has written")));
}

TEST(GatherWindowErrorTest, TensorsAndWindowsOutliveTheGroup) {
  auto world = make_local_world(2, kLong);
  std::array<std::shared_ptr<GatherWindow>, 2> windows;
  std::thread other([&] { windows[1] = make_window(*world[1], "unit a"); });
  windows[0] = make_window(*world[0], "unit a");
  other.join();
  windows[0]->issue(Lane::kGather);
  const at::Tensor own = windows[0]->own();
  const at::Tensor whole = windows[0]->whole();
  world.clear();
  windows[1]->issue(Lane::kGather)->wait();
  windows[1]->release();
  try {
    windows[1]->wait_for_readers();
    ADD_FAILURE() << "the peer has left with a use that it has not ended";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 0 left the group"));
  }
  windows = {};
  own.fill_(3);
  EXPECT_EQ(whole[0].item<double>(), 3);
}

TEST(GatherWindowErrorTest, GathersAreRecorded) {
  for (const std::string& error : run_backend("local", 2, [](Collectives& inner) {
         RecordingCollectives group(std::shared_ptr<Collectives>(&inner, [](Collectives*) {}));
         EXPECT_EQ(group.window_alignment(), inner.window_alignment());
         const auto window = make_window(group, "unit a");
         window->own().fill_(2);
         window->issue(Lane::kGather)->wait();
         EXPECT_EQ(window->whole().sum().item<double>(), 2.0 * window->whole().numel());
         window->release();
         window->wait_for_readers();
         const std::vector<CollectiveRecord> expected = {
             {"all_gather", Lane::kGather, window->whole().numel(), "Float"}};
         EXPECT_EQ(group.records(), expected);
       })) {
    EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace fsdp
