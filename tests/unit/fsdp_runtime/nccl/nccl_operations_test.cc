// What libfsdp_nccl and LibTorch ask of CUDA and NCCL for each operation, and in which order.

#include <algorithm>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/nccl/nccl_ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::vector<std::string> kNoErrors = {"", ""};

/// Those of `calls` that begin with one of the operations of NCCL.
std::vector<std::string> operations_in(const std::vector<std::string>& calls) {
  std::vector<std::string> found;
  for (const std::string& call : calls) {
    for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce", "broadcast"}) {
      if (call.starts_with(kind)) {
        found.push_back(call);
      }
    }
  }
  return found;
}

std::vector<std::string> beginning_with(const std::string& kind,
                                        const std::vector<std::string>& calls) {
  std::vector<std::string> found;
  std::copy_if(calls.begin(), calls.end(), std::back_inserter(found),
               [&](const std::string& call) { return call.starts_with(kind); });
  return found;
}

/// "stream 3" of "all_gather 4 of float32 on communicator 1, stream 3".
std::string stream_in(const std::string& operation) {
  return operation.substr(operation.rfind("stream "));
}

/// "event 7" of the first call behind `begin` that is "record event 7 on <stream>".
std::string recorded_on(const std::string& stream, const std::vector<std::string>& calls,
                        size_t begin) {
  const std::regex record("record (event \\d+) on " + stream);
  for (size_t i = begin; i < calls.size(); ++i) {
    std::smatch match;
    if (std::regex_match(calls[i], match, record)) {
      return match[1];
    }
  }
  return "no event on " + stream;
}

class NcclOperationsTest : public NcclTest {};

TEST_F(NcclOperationsTest, EachRankFormsACommunicatorForEachLane) {
  EXPECT_EQ(run_nccl([](Collectives& group) {
              EXPECT_EQ(group.name(), "nccl");
              const std::string place = ": rank " + std::to_string(group.rank()) + " of 2";
              EXPECT_THAT(
                  beginning_with("init", calls_of(group)),
                  ElementsAre("init communicator 1" + place, "init communicator 2" + place));
            }),
            kNoErrors);
}

TEST_F(NcclOperationsTest, CountsDtypesReductionsAndRootsAreThoseOfTheCall) {
  EXPECT_EQ(run_nccl([](Collectives& group) {
              const size_t begin = calls_of(group).size();
              group.all_gather_into(on_device(group, 8, at::kBFloat16),
                                    on_device(group, 4, at::kBFloat16), {Lane::kGather, "unit a"});
              group.reduce_scatter_into(on_device(group, 3), on_device(group, 6), ReduceOp::kAvg);
              group.all_reduce(on_device(group, 5, at::kHalf), ReduceOp::kMax);
              group.all_reduce(on_device(group, 1, at::kDouble), ReduceOp::kSum);
              group.broadcast(on_device(group, 7, at::kLong), 1)->wait_on_host();
              EXPECT_THAT(
                  operations_in(calls_of(group, begin)),
                  ElementsAre(StartsWith("all_gather 4 of bfloat16 on communicator 1, "),
                              StartsWith("reduce_scatter 3 of float32, average on communicator 2"),
                              StartsWith("all_reduce 5 of float16, maximum on communicator 2, "),
                              StartsWith("all_reduce 1 of float64, sum on communicator 2, "),
                              StartsWith("broadcast 7 of int64 from rank 1 on communicator 2")));
            }),
            kNoErrors);
}

TEST_F(NcclOperationsTest, LanesAreStreamsOfTheirOwn) {
  EXPECT_EQ(run_nccl([](Collectives& group) {
              const size_t begin = calls_of(group).size();
              for (const Lane lane : {Lane::kGather, Lane::kReduce, Lane::kGather, Lane::kReduce}) {
                group.all_reduce(on_device(group, 4), ReduceOp::kSum, lane)->wait_on_host();
              }
              const std::vector<std::string> operations = operations_in(calls_of(group, begin));
              ASSERT_EQ(operations.size(), 4u);
              EXPECT_NE(stream_in(operations[0]), "stream 0");
              EXPECT_NE(stream_in(operations[1]), "stream 0");
              EXPECT_NE(stream_in(operations[0]), stream_in(operations[1]));
              EXPECT_EQ(operations[2], operations[0]);
              EXPECT_EQ(operations[3], operations[1]);
            }),
            kNoErrors);
}

// Behind the caller's stream, ahead of who waits for the work, and nothing else of a stream
// between.
TEST_F(NcclOperationsTest, AnOperationIsBehindTheCallersStreamAndAheadOfWhoWaits) {
  EXPECT_EQ(
      run_nccl([](Collectives& group) {
        const at::Tensor tensor = on_device(group, 4);
        const size_t begin = calls_of(group).size();
        const WorkPtr work = group.all_reduce(tensor, ReduceOp::kSum);
        const std::vector<std::string> launched = calls_of(group, begin);
        work->wait();
        const std::vector<std::string> calls = calls_of(group, begin);
        const std::string operation = operations_in(calls).at(0);
        const std::string lane = stream_in(operation);
        const auto at = [&](const std::string& call) {
          return std::find(calls.begin(), calls.end(), call) - calls.begin();
        };
        const std::string ready = recorded_on("stream 0", calls, 0);
        const std::string done = recorded_on(lane, calls, static_cast<size_t>(at(operation)) + 1);
        EXPECT_LT(at("record " + ready + " on stream 0"), at(lane + " waits for " + ready));
        EXPECT_LT(at(lane + " waits for " + ready), at(operation));
        EXPECT_THAT(beginning_with("stream 0 waits", launched), ElementsAre());
        // The last one on the lane: LibTorch records some of its own.
        EXPECT_THAT(beginning_with("stream 0 waits", calls), ElementsAre(HasSubstr("event ")));
        EXPECT_THAT(calls, Contains("record " + done + " on " + lane));
      }),
      kNoErrors);
}

TEST_F(NcclOperationsTest, AnOperationIsBehindTheWorkThatItDependsOn) {
  EXPECT_EQ(run_nccl([](Collectives& group) {
              const at::Tensor tensor = on_device(group, 4);
              const WorkPtr first = group.all_reduce(tensor, ReduceOp::kSum, Lane::kReduce);
              const size_t begin = calls_of(group).size();
              group.all_reduce(tensor, ReduceOp::kSum, {Lane::kGather, "the second", first});
              const std::vector<std::string> calls = calls_of(group, begin);
              const std::string lane = stream_in(operations_in(calls).at(0));
              // For the caller's stream, and for `first`.
              EXPECT_EQ(beginning_with(lane + " waits", calls).size(), 2u);
            }),
            kNoErrors);
}

TEST_F(NcclOperationsTest, AStageRunsOnTheLaneAndAsksNothingOfNccl) {
  EXPECT_EQ(run_nccl([](Collectives& group) {
              const c10::impl::VirtualGuardImpl streams(c10::kCUDA);
              const c10::Stream own = streams.getStream(group.device());
              const size_t begin = calls_of(group).size();
              group
                  .run_on_lane(Lane::kReduce,
                               [&] { EXPECT_NE(streams.getStream(group.device()), own); })
                  ->wait_on_host();
              EXPECT_EQ(streams.getStream(group.device()), own);
              EXPECT_THAT(operations_in(calls_of(group, begin)), ElementsAre());
            }),
            kNoErrors);
}

TEST_F(NcclOperationsTest, APartHasCommunicatorsThatAreSplitFromThoseOfTheWhole) {
  nccl_.set_gathered_integers({0, 0});  // the colors
  EXPECT_EQ(
      run_nccl([](Collectives& group) {
        const auto part = group.split(0);
        const std::string key = std::to_string(group.rank());
        EXPECT_EQ(part->size(), 2);
        EXPECT_THAT(
            beginning_with("split", calls_of(group)),
            ElementsAre("split communicator 1: color 0, key " + key + ", communicator 3 of 2",
                        "split communicator 2: color 0, key " + key + ", communicator 4 of 2"));
        const size_t begin = calls_of(group).size();
        part->all_reduce(on_device(group, 4), ReduceOp::kSum)->wait_on_host();
        EXPECT_THAT(operations_in(calls_of(group, begin)),
                    ElementsAre(HasSubstr("on communicator 4, ")));
      }),
      kNoErrors);
}

TEST_F(NcclOperationsTest, WhoIsAloneInItsPartTakesPartInTheSplitOfTheOthersAndCopies) {
  nccl_.set_gathered_integers({0, 1});
  EXPECT_EQ(run_nccl([](Collectives& group) {
              const auto part = group.split(group.rank());
              EXPECT_EQ(part->size(), 1);
              EXPECT_THAT(
                  beginning_with("split", calls_of(group)),
                  ElementsAre("split communicator 1: no part", "split communicator 2: no part"));
              const size_t begin = calls_of(group).size();
              part->all_reduce(on_device(group, 4), ReduceOp::kSum)->wait_on_host();
              EXPECT_THAT(operations_in(calls_of(group, begin)), ElementsAre());
            }),
            kNoErrors);
}

TEST_F(NcclOperationsTest, WhoIsAloneInItsPartCommunicatesIfAskedTo) {
  nccl_.set_gathered_integers({0, 1});
  EXPECT_EQ(run_nccl(
                [](Collectives& group) {
                  const auto part = group.split(group.rank());
                  const std::string color = "color " + std::to_string(group.rank());
                  EXPECT_THAT(beginning_with("split", calls_of(group)),
                              ElementsAre(AllOf(HasSubstr(color), EndsWith(" 3 of 1")),
                                          AllOf(HasSubstr(color), EndsWith(" 4 of 1"))));
                  const size_t begin = calls_of(group).size();
                  part->all_reduce(on_device(group, 4), ReduceOp::kSum)->wait_on_host();
                  EXPECT_THAT(operations_in(calls_of(group, begin)),
                              ElementsAre(HasSubstr("on communicator 4, ")));
                },
                std::chrono::seconds(60), /*communicates_alone=*/true),
            kNoErrors);
}

TEST_F(NcclOperationsTest, OneRankCopiesUnlessItIsToCommunicate) {
  const auto copying = init_process_group(nccl_options(0, 1));
  EXPECT_EQ(copying->name(), "nccl");
  copying->all_reduce(on_device(*copying, 4), ReduceOp::kSum)->wait_on_host();
  EXPECT_THAT(cuda_.calls(0), Not(Contains(StartsWith("init"))));
  ProcessGroupOptions options = nccl_options(0, 1);
  options.communicates_alone = true;
  const auto communicating = init_process_group(options);
  EXPECT_EQ(communicating->name(), "nccl");
  communicating->all_gather_into(on_device(*communicating, 4), on_device(*communicating, 4))
      ->wait_on_host();
  EXPECT_THAT(cuda_.calls(0), Contains("init communicator 1: rank 0 of 1"));
  EXPECT_THAT(cuda_.calls(0), Contains(StartsWith("all_gather 4 of float32 on communicator 1, ")));
}

}  // namespace
}  // namespace fsdp::testing
