// Ranks that do not run the same units: an error on all of them that says who did what, long before
// the timeout of the group.

#include <fcntl.h>
#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ostream>
#include <string>

#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRanks = 2;

/// Blocks of one size in a row.
struct Chain : torch::nn::Module {
  explicit Chain(int64_t length) {
    weight = register_parameter("weight", at::full({15, 15}, 0.1));
    for (int64_t i = 0; i < length; ++i) {
      blocks.emplace_back(std::make_shared<ToyBlock>(ToyConfig{}));
      register_module("block" + std::to_string(i), blocks.back().ptr());
    }
  }
  at::Tensor forward(at::Tensor x) {
    x = at::linear(x, weight);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      x = index == cut ? x.detach() : x;
      x = index == skipped ? x : blocks[i](x);
    }
    return at::linear(x, weight);
  }

  std::vector<Unit<ToyBlock>> blocks;
  at::Tensor weight;
  int64_t skipped = -1;  // block that is not called
  int64_t cut = -1;      // block before which the graph ends
};

struct Case {
  // What gtest shows of a case, and ctest in its name.
  friend void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.name; }

  std::string name;
  int64_t length = 3;
  int64_t skipped = -1;
  int64_t cut = -1;
  int64_t step = 0;  // in which the last rank does so
  std::optional<bool> reshard_after_forward;
  bool is_evaluation = false;
  std::string unit;  // that only one of the ranks is at
};

std::vector<Case> cases() {
  return {
      {.name = "skips_a_block", .skipped = 1, .unit = "unit block1"},
      {.name = "skips_a_block_that_was_prefetched", .skipped = 1, .step = 1, .unit = "unit block1"},
      {.name = "skips_the_last_block", .skipped = 2, .unit = "unit block2"},
      {.name = "skips_the_only_block", .length = 1, .skipped = 0, .unit = "unit block0"},
      // Backward gathers nothing: the one rank waits for a gather, the other for a reduction.
      {.name = "skips_a_block_of_many_that_stay_gathered",
       .length = 6,
       .skipped = 5,
       .reshard_after_forward = false,
       .unit = "unit block5"},
      // Either of two blocks: of one the gather, of the other the reduction meets something else.
      {.name = "runs_no_backward_of_the_first_blocks", .cut = 2, .unit = "unit block"},
      {.name = "runs_no_backward_of_blocks_that_stay_gathered",
       .cut = 2,
       .step = 1,
       .reshard_after_forward = false,
       .unit = "unit block1"},
      {.name = "skips_the_last_block_in_evaluation",
       .skipped = 2,
       .is_evaluation = true,
       .unit = "unit block2"},
  };
}

void train(const Case& test_case, const std::shared_ptr<Collectives>& group) {
  const auto mesh = init_device_mesh(c10::kCPU, {kRanks}, {"dp_shard"}, group);
  const FullyShardOptions options{
      .mesh = mesh, .reshard_after_forward = test_case.reshard_after_forward, .mp_policy = {}};
  Unit<Chain> model(std::make_shared<Chain>(test_case.length));
  for (const Unit<ToyBlock>& block : model->blocks) {
    fully_shard(block.ptr(), options);
  }
  fully_shard(model.ptr(), options).init_parameters(initialise);
  for (int64_t step = 0; step < 3; ++step) {
    const bool is_apart = step == test_case.step && group->rank() == kRanks - 1;
    model->skipped = is_apart ? test_case.skipped : -1;
    model->cut = is_apart ? test_case.cut : -1;
    at::AutoGradMode grad_mode(!test_case.is_evaluation);
    const at::Tensor result = model(at::ones({4, 15})).sum();
    if (!test_case.is_evaluation) {
      result.backward();
    }
  }
  // What a rank that is done may wait for: it is not the peer's gather.
  group->all_reduce(at::ones({1}), ReduceOp::kSum, Lane::kReduce)->wait();
}

std::string error_of(const std::string& backend, int64_t rank, int port, const Case& test_case) {
  ProcessGroupOptions options;
  options.backend = backend;
  options.rank = rank;
  options.world_size = kRanks;
  options.master_port = port;
  options.timeout = std::chrono::minutes(10);  // longer than a test may take
  try {
    train(test_case, init_process_group(options));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

struct Pipe {
  Pipe() { TORCH_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2: ", errno); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  std::array<int, 2> ends{};
};

/// Each case is a process of its own: it forks before any thread has been started.
class OutOfStepTest : public ::testing::TestWithParam<std::tuple<std::string, Case>> {};

TEST_P(OutOfStepTest, IsAnErrorOnAllRanksThatNamesTheUnit) {
  const auto& [backend, test_case] = GetParam();
  Pipe port_pipe, text_pipe;
  const pid_t other = ::fork();
  if (other == 0) {
    int port = 0;
    const bool has_port = ::read(port_pipe.ends[0], &port, sizeof(port)) == sizeof(port);
    const std::string text = has_port ? error_of(backend, 1, port, test_case) : "no port";
    const bool is_told = ::write(text_pipe.ends[1], text.data(), text.size()) > 0;
    ::_exit(is_told ? 0 : 1);
  }
  const auto store = serve_store();
  const int port = store->getPort();
  ASSERT_EQ(::write(port_pipe.ends[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  const std::string first = error_of(backend, 0, port, test_case);
  int status = 0;
  ::waitpid(other, &status, 0);
  std::array<char, 4096> text{};
  const ssize_t length = ::read(text_pipe.ends[0], text.data(), text.size());
  ASSERT_GT(length, 0);
  const std::string second(text.data(), static_cast<size_t>(length));
  for (const std::string& error : {first, second}) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 issued"), HasSubstr("but rank 1 issued"),
                             HasSubstr(test_case.unit)));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, OutOfStepTest,
                         ::testing::Combine(::testing::Values("shm", "gloo"),
                                            ::testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace fsdp::testing
