#include <ATen/ATen.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <thread>

#include "fsdp_runtime/src/comm/meeting.h"
#include "fsdp_runtime/src/comm/peer_links.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/comm/reserved_port.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ReservedPort;
using testing::run_backend;
using testing::serve_store;

std::string error_of(const ProcessGroupOptions& options) {
  try {
    (void)init_process_group(options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ProcessGroupTest, WorldOfOneNeedsNoStore) {
  const auto group = init_process_group({});
  EXPECT_EQ(group->name(), "single");
  EXPECT_EQ(group->size(), 1);
  group->barrier();
}

ProcessGroupOptions alone_on(const std::string& backend) {
  ProcessGroupOptions options;
  options.backend = backend;
  options.communicates_alone = true;
  options.store_prefix = testing::prefix_of_new_store();
  options.timeout = seconds(60);
  return options;
}

/// That of an operation which `group` is not able to do any more.
std::string error_after_abort(Collectives& group) {
  group.abort("nothing is to work any more");
  try {
    group.all_reduce(at::ones({4}), ReduceOp::kSum)->wait();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void expect_all_operations_of_one_rank(Collectives& group) {
  const at::Tensor input = at::arange(4, at::kFloat);
  at::Tensor gathered = at::zeros({4});
  at::Tensor reduced = at::zeros({4});
  at::Tensor summed = input.clone();
  at::Tensor sent = input.clone();
  group.all_gather_into(gathered, input, {Lane::kGather, "a shard"})->wait();
  group.reduce_scatter_into(reduced, input.clone(), ReduceOp::kAvg)->wait();
  group.all_reduce(summed, ReduceOp::kSum)->wait();
  group.broadcast(sent, 0)->wait();
  group.barrier();
  for (const at::Tensor& result : {gathered, reduced, summed, sent}) {
    EXPECT_TRUE(result.equal(input));
  }
  EXPECT_TRUE(group.agree(7, "the end")->wait());
}

TEST(ProcessGroupTest, OneRankCommunicatesThroughTheBackendIfItIsAskedTo) {
  for (const char* backend : {"shm", "gloo"}) {
    SCOPED_TRACE(backend);
    const auto group = init_process_group(alone_on(backend));
    EXPECT_EQ(group->name(), backend);
    expect_all_operations_of_one_rank(*group);
    const auto part = group->split(3);
    EXPECT_EQ(part->name(), backend);
    expect_all_operations_of_one_rank(*part);
    // The copies of a group that is alone go on; a backend's operations do not.
    EXPECT_THAT(error_after_abort(*part), HasSubstr("nothing is to work any more"));
    EXPECT_THAT(error_after_abort(*init_process_group({})), "");
  }
}

TEST(ProcessGroupTest, RanksThatAreAloneInTheirPartCommunicateThereIfAskedTo) {
  const auto store = serve_store();
  const std::string prefix = testing::prefix_of_new_store();
  for (const bool communicates_alone : {true, false}) {
    const auto errors = testing::run_threads(
        2,
        [&](int64_t rank) {
          ProcessGroupOptions options = alone_on("shm");
          options.communicates_alone = communicates_alone;
          options.rank = rank;
          options.world_size = 2;
          options.master_port = store->getPort();
          options.store_prefix = prefix;
          return init_process_group(options);
        },
        [&](Collectives& group) {
          const auto part = group.split(group.rank());
          EXPECT_EQ(part->name(), communicates_alone ? "shm" : "single");
          EXPECT_EQ(part->world_ranks(), std::vector<int64_t>{group.rank()});
          expect_all_operations_of_one_rank(*part);
        });
    EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  }
}

TEST(ProcessGroupTest, AutoIsSharedMemoryOnOneHost) {
  for (const std::string& error :
       run_backend("auto", 3, [](Collectives& group) { EXPECT_EQ(group.name(), "shm"); })) {
    EXPECT_EQ(error, "");
  }
}

TEST(ProcessGroupTest, RankZeroServesTheStore) {
  const ReservedPort port;
  const auto errors = testing::run_threads(
      2,
      [&](int64_t rank) {
        ProcessGroupOptions options;
        options.rank = rank;
        options.world_size = 2;
        options.master_port = port.number();
        options.host_store = rank == 0;
        options.timeout = seconds(30);
        return init_process_group(options);
      },
      [](Collectives& group) {
        at::Tensor x = at::ones({4});
        group.all_reduce(x, ReduceOp::kSum)->wait();
        EXPECT_EQ(x[0].item<float>(), 2);
        group.barrier();
      });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TEST(ProcessGroupTest, DifferentOptionsAreNamedOnAllRanksAlsoWhereRankZeroServesTheStore) {
  for (const bool is_backend : {true, false}) {
    const ReservedPort port;
    const auto errors = testing::run_threads(
        3,
        [&](int64_t rank) {
          ProcessGroupOptions options;
          options.rank = rank;
          options.world_size = 3;
          options.master_port = port.number();
          options.host_store = rank == 0;
          options.timeout = seconds(30);
          options.backend = rank == 2 && is_backend ? "shm" : "gloo";
          options.device_type =
              rank == 2 && !is_backend ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
          return init_process_group(options);
        },
        [](Collectives&) { ADD_FAILURE() << "a group was formed"; });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr(is_backend ? "backend is shm on rank 2 and gloo on rank 0"
                                              : "device_type is cuda on rank 2 and cpu on rank 0"));
    }
  }
}

TEST(ProcessGroupTest, MissingRanksAreNamed) {
  const auto store = serve_store();
  ProcessGroupOptions options;
  options.world_size = 4;
  options.rank = 1;
  options.master_port = store->getPort();
  options.store_prefix = testing::prefix_of_new_store();
  // As if rank 2 had come, to each of the groups that are tried below.
  for (int group = 0; group < 10; ++group) {
    const std::string host =
        options.store_prefix + "/size4/group" + std::to_string(group) + "/host/2";
    store->set(host, std::vector<uint8_t>{'h'});
  }
  // On a busy machine even the connection to the store may take longer than a short timeout.
  std::string error;
  for (options.timeout = milliseconds(100);
       options.timeout < seconds(50) && error.find("not arrived") == std::string::npos;
       options.timeout *= 2) {
    error = error_of(options);
  }
  EXPECT_THAT(error, ::testing::EndsWith("have not arrived: 0, 3"));
}

/// Ranks 0 and 1 of a Gloo group of three form it; this thread is rank 2, as far as `be_third`
/// goes.
std::vector<std::string> errors_of_two(const std::function<void(StoreExchange&)>& be_third) {
  const auto store = serve_store();
  ProcessGroupOptions options;
  options.backend = "gloo";
  options.world_size = 3;
  options.master_port = store->getPort();
  options.timeout = std::chrono::minutes(10);  // longer than a test may take
  options.store_prefix = testing::prefix_of_new_store();
  StoreExchange exchange(
      std::make_shared<StoreClient>("127.0.0.1", options.master_port, options.timeout),
      options.store_prefix + "/size3/group0", [] {});
  std::thread third([&] {
    exchange.put("host/2", exchange.get("host/0", steady_clock::now() + options.timeout));
    be_third(exchange);
  });
  std::vector<std::string> errors = testing::run_threads(
      2,
      [options](int64_t rank) {
        ProcessGroupOptions own = options;  // The threads share what is captured.
        own.rank = rank;
        return init_process_group(own);
      },
      [](Collectives&) { ADD_FAILURE() << "a group was formed"; });
  third.join();
  return errors;
}

TEST(ProcessGroupTest, RankThatGivesUpEndsTheWaitsOfTheOthers) {
  const auto errors =
      errors_of_two([](StoreExchange& exchange) { exchange.give_up(2, "no memory for that"); });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("rank 2 gave up: no memory for that")));
}

TEST(ProcessGroupTest, RankThatDiesBehindItsLinksEndsTheWaitsOfTheOthers) {
  const auto errors = errors_of_two([](StoreExchange& exchange) {
    PeerLinks links(exchange, 2, 3, "127.0.0.1", steady_clock::now() + std::chrono::minutes(10));
  });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("rank 2 died")));
}

// Under the same prefix, though their ranks are others.
TEST(ProcessGroupTest, RanksThatAreLeftFormASmallerGroup) {
  const auto store = serve_store();
  const std::string prefix = testing::prefix_of_new_store();
  const auto errors = testing::run_threads(
      4,
      [&](int64_t rank) {
        ProcessGroupOptions options;
        options.backend = "gloo";
        options.rank = rank;
        options.world_size = 4;
        options.master_port = store->getPort();
        options.timeout = seconds(60);
        options.store_prefix = prefix;
        (void)init_process_group(options);
        if (rank == 1) {
          return init_process_group({});
        }
        options.rank -= rank > 1 ? 1 : 0;
        options.world_size = 3;
        return init_process_group(options);
      },
      [](Collectives& group) { group.barrier(); });
  EXPECT_THAT(errors, ::testing::Each(""));
}

TEST(ProcessGroupTest, NobodyServesTheStore) {
  const ReservedPort port;
  ProcessGroupOptions options;
  options.world_size = 2;
  options.rank = 1;
  options.master_port = port.number();
  options.timeout = milliseconds(200);
  EXPECT_THAT(error_of(options), AllOf(HasSubstr("cannot connect"), HasSubstr("127.0.0.1")));
}

TEST(ProcessGroupTest, WrongOptionsAreNamed) {
  ProcessGroupOptions options;
  options.backend = "mpi";
  EXPECT_THAT(error_of(options), HasSubstr("'mpi'"));
  options.backend = "auto";
  options.world_size = 2;
  EXPECT_THAT(error_of(options), HasSubstr("master_port"));
  options.master_port = 29500;
  options.rank = 2;
  EXPECT_THAT(error_of(options), HasSubstr("rank 2"));
  options.rank = 1;
  options.timeout = milliseconds(-1);
  EXPECT_THAT(error_of(options), HasSubstr("timeout is -1 ms"));
}

// Also on a machine with GPUs: CUDA reads the variable when it is first used, which is here.
class WithoutVisibleGpuTest : public ::testing::Test {
 protected:
  WithoutVisibleGpuTest() { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); }
};

TEST_F(WithoutVisibleGpuTest, NcclSaysSo) {
  ProcessGroupOptions options;
  options.backend = "nccl";
  EXPECT_THAT(error_of(options), HasSubstr("nccl"));
  EXPECT_THAT(error_of(options), HasSubstr("gloo or shm"));
}

// A case of the tests under launchers, too, which set the first variable to 1.
TEST_F(WithoutVisibleGpuTest, NcclTakesTheEndOfTheProcessFromLibTorchWhateverIsSet) {
  ProcessGroupOptions options;
  options.backend = "nccl";
  EXPECT_NE(error_of(options), "");
  EXPECT_STREQ(::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "0");
  EXPECT_STREQ(::getenv("NCCL_GRAPH_REGISTER"), "0");
  EXPECT_STREQ(::getenv("TORCH_NCCL_ENABLE_MONITORING"), "0");
}

TEST_F(WithoutVisibleGpuTest, NcclsEndDoesNotWaitForLibTorchsDumpsUnlessTheUserSaysSo) {
  ProcessGroupOptions options;
  options.backend = "nccl";
  for (const char* given : {"", "1500"}) {
    ::unsetenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC");
    if (*given != '\0') {
      ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", given, 1);
    }
    EXPECT_NE(error_of(options), "");
    EXPECT_STREQ(::getenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"), *given == '\0' ? "0" : given);
  }
}

TEST(ProcessGroupTest, GroupsFormedOneAfterAnotherDoNotMeet) {
  const auto store = serve_store();
  const std::string prefix = testing::prefix_of_new_store();
  const auto errors = testing::run_threads(
      2,
      [&](int64_t rank) {
        ProcessGroupOptions options;
        options.rank = rank;
        options.world_size = 2;
        options.master_port = store->getPort();
        options.store_prefix = prefix;
        options.timeout = seconds(60);
        init_process_group(options)->barrier();
        return init_process_group(options);
      },
      [](Collectives& group) {
        at::Tensor x = at::ones({4});
        group.all_reduce(x, ReduceOp::kSum)->wait();
        EXPECT_EQ(x[0].item<float>(), 2);
      });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

// One that was in a group and one that was not: of another prefix, because they have not formed
// equally many groups.
TEST(ProcessGroupTest, RanksCanFormAGroupWithOtherMembers) {
  const auto store = serve_store();
  const std::string prefix = testing::prefix_of_new_store();
  const auto options = [&](int64_t rank, const std::string& name) {
    ProcessGroupOptions options;
    options.rank = rank;
    options.world_size = 2;
    options.master_port = store->getPort();
    options.store_prefix = prefix + name;
    options.timeout = seconds(60);
    return options;
  };
  const auto errors = testing::run_threads(
      3,
      [&](int64_t who) {
        const auto first = who < 2 ? init_process_group(options(who, "first")) : nullptr;
        return who > 0 ? init_process_group(options(who - 1, "second")) : first;
      },
      [](Collectives& group) {
        if (group.rank() == 1) {
          EXPECT_EQ(group.size(), 2);
        }
      });
  EXPECT_EQ(errors, (std::vector<std::string>{"", "", ""}));
}

TEST(ProcessGroupTest, RanksThatAreLeftFormANewGroup) {
  for (const std::string backend : {"shm", "gloo"}) {
    const auto errors = run_backend(
        backend, 3,
        [](Collectives& group) {
          const std::shared_ptr<Collectives> part = group.split(group.rank() == 1 ? 1 : 0);
          if (group.rank() == 0) {
            return;  // leaves
          }
          try {
            group.barrier();
            ADD_FAILURE() << "rank 0 has left";
          } catch (const PeerError& error) {
            ASSERT_EQ(error.rank, 0);
            const auto left = group.shrink({*error.rank});
            EXPECT_EQ(left->size(), 2);
            EXPECT_EQ(left->rank(), group.rank() - 1);
            at::Tensor sum = at::ones({1});
            left->all_reduce(sum, ReduceOp::kSum)->wait();
            EXPECT_EQ(sum.item<double>(), 2);
            EXPECT_EQ(left->split(left->rank())->size(), 1);
          }
        },
        std::chrono::minutes(10));  // longer than a test may take
    EXPECT_EQ(errors, (std::vector<std::string>{"", "", ""})) << backend;
  }
}

TEST_F(WithoutVisibleGpuTest, ThereAreNoCudaDevices) { EXPECT_EQ(cuda_device_count(), 0); }

}  // namespace
}  // namespace fsdp
