// A peer that never arrives: this rank says so within the group's timeout, and goes on without it
// in the same process. NCCL takes one rank for each device, so that the peer is a process that
// stops where it would join NCCL, or an operation that does not end.

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/gpu/nccl_calls.h"
#include "tests/gpu/one_gpu.h"

namespace fsdp::gpu {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

class LostPeerTest : public GpuTest {};

/// Rank 1 of two, which meets rank 0 and then hangs where it would join NCCL.
class HangingPeer {
 public:
  explicit HangingPeer(const ProcessGroupOptions& options) : pid_(::fork()) {
    TORCH_CHECK(pid_ >= 0, "fork failed");
    if (pid_ == 0) {
      ::alarm(180);  // the test may die first
      hang_in_communicator_init();
      try {
        (void)init_process_group(options);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "the peer did not hang: %s\n", error.what());
      }
      ::_exit(1);
    }
  }
  ~HangingPeer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  HangingPeer(const HangingPeer&) = delete;
  HangingPeer& operator=(const HangingPeer&) = delete;

 private:
  const pid_t pid_;
};

/// What `run` throws, and that it does not take longer than `limit`.
std::string error_within(seconds limit, const std::function<void()>& run) {
  const Clock::time_point begin = Clock::now();
  std::string text;
  try {
    run();
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  EXPECT_LT(Clock::now() - begin, limit) << text;
  return text;
}

/// A thread is left in an operation that does not end, and would meet the destructors of what it
/// uses: what main() returns becomes the exit code without them. Last, so that it comes first.
void exit_without_destructors() {
  ::on_exit(
      [](int code, void*) {
        std::fflush(nullptr);
        ::_exit(code);
      },
      nullptr);
}

/// That this process trains on its GPU, with a new group over which its units are gathered.
void expect_training_goes_on() {
  Training training(make_nccl_alone(), in_bfloat16());
  const at::Tensor before = training.step(training.tokens(0)).cpu();
  for (int i = 0; i < 5; ++i) {
    training.step(training.tokens(0));
  }
  EXPECT_LT(training.step(training.tokens(0)).cpu().item<float>(), before.item<float>());
}

// Does not ask for a GPU before the peer has been forked: CUDA does not survive that.
TEST(LostPeerForkTest, APeerThatNeverJoinsNcclIsGivenUpAndTrainingGoesOn) {
  if (::access("/dev/nvidiactl", F_OK) != 0) {
    GTEST_SKIP() << "needs a GPU";
  }
  const auto store = c10::make_intrusive<c10d::TCPStore>(
      "127.0.0.1", c10d::TCPStoreOptions{.port = 0, .isServer = true, .waitWorkers = false});
  ProcessGroupOptions options = nccl_alone(seconds(15));
  options.world_size = 2;
  options.master_port = store->getPort();
  ProcessGroupOptions of_peer = options;
  of_peer.rank = 1;
  of_peer.timeout = std::chrono::minutes(5);  // it does not give up before this rank does
  const HangingPeer peer(of_peer);
  const std::string error = error_within(seconds(60), [&] { (void)init_process_group(options); });
  EXPECT_NE(error.find("has waited for its peers for 15000 ms"), std::string::npos) << error;
  expect_training_goes_on();
  exit_without_destructors();
}

TEST_F(LostPeerTest, AnOperationThatNeverEndsFailsItsGroupAndTrainingGoesOn) {
  auto group = make_nccl_alone(seconds(10));
  const at::Tensor input = at::ones({1024}, at::TensorOptions().device(kGpu));
  const at::Tensor output = at::zeros_like(input);
  group->all_gather_into(output, input)->wait();
  synchronize();
  {
    const EndlessAllGathers endless;
    group->all_gather_into(output, input, {Lane::kGather, "unit block0"});
    const std::string error = error_within(seconds(60), [&] { group->barrier(); });
    EXPECT_NE(error.find("all_gather for unit block0 on lane 0"), std::string::npos) << error;
    const std::string later = error_within(seconds(5), [&] { group->check_results("a step"); });
    EXPECT_FALSE(later.empty());
  }
  group.reset();
  synchronize();
  expect_training_goes_on();
  exit_without_destructors();
}

TEST_F(LostPeerTest, AnAbortedGroupFailsAtOnceAndIsFollowedByAnother) {
  auto group = make_nccl_alone();
  group->abort("the operator asked for it");
  const at::Tensor tensor = at::ones({4}, at::TensorOptions().device(kGpu));
  const std::string error =
      error_within(seconds(5), [&] { group->all_reduce(tensor, ReduceOp::kSum)->wait(); });
  EXPECT_NE(error.find("the operator asked for it"), std::string::npos) << error;
  group.reset();
  expect_training_goes_on();
}

TEST_F(LostPeerTest, AFailedGroupIsShrunkToThisRankInTheSameProcess) {
  const auto group = make_nccl_alone();
  group->abort("a peer is gone");
  const auto next = group->shrink({}, seconds(20));
  EXPECT_EQ(next->size(), 1);
  const at::Tensor tensor = at::ones({4}, at::TensorOptions().device(kGpu));
  next->all_reduce(tensor, ReduceOp::kSum)->wait();
  EXPECT_EQ(tensor.sum().item<float>(), 4);
}

}  // namespace
}  // namespace fsdp::gpu
