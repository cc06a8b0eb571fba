#include <ATen/ATen.h>
#include <fsdp/collectives.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "fsdp_runtime/src/comm/local_world.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using testing::run_backend;

// Elements [begin, end) of rank r's contribution; the same on every rank that asks, so that
// references are local.
at::Tensor contribution(int64_t rank, int64_t begin, int64_t end, at::ScalarType dtype) {
  const at::Tensor index = at::arange(begin, end, at::kDouble);
  return ((index * (0.37 + 0.11 * static_cast<double>(rank))).sin() * 3.0).to(dtype);
}

// Rank order, accumulated in float32 for the 16-bit types, rounded once.
at::Tensor reference_sum(int64_t size, int64_t begin, int64_t end, at::ScalarType dtype,
                         bool average) {
  const bool is_short = dtype == at::kBFloat16 || dtype == at::kHalf;
  const at::ScalarType wide = is_short ? at::kFloat : dtype;
  at::Tensor sum = contribution(0, begin, end, dtype).to(wide);
  for (int64_t rank = 1; rank < size; ++rank) {
    sum = sum + contribution(rank, begin, end, dtype).to(wide);
  }
  return (average ? sum / static_cast<double>(size) : sum).to(dtype);
}

// backend, ranks, elements per rank, memory from empty_for_comm
class CollectivesTest
    : public ::testing::TestWithParam<std::tuple<std::string, int64_t, int64_t, bool>> {
 protected:
  int64_t size() const { return std::get<1>(GetParam()); }
  int64_t numel() const { return std::get<2>(GetParam()); }
  at::Tensor place(Collectives& group, const at::Tensor& values) const {
    if (!std::get<3>(GetParam())) {
      return values.clone();
    }
    at::Tensor placed = group.empty_for_comm(values.numel(), values.scalar_type());
    return placed.copy_(values);
  }
  void run(const testing::Body& body) const {
    for (const std::string& error : run_backend(std::get<0>(GetParam()), size(), body)) {
      EXPECT_EQ(error, "");
    }
  }
};

constexpr at::ScalarType kFloats[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

TEST_P(CollectivesTest, ReduceScatterEqualsTheReferenceBitForBit) {
  run([&](Collectives& group) {
    for (const at::ScalarType dtype : kFloats) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        at::Tensor input = place(group, contribution(group.rank(), 0, size() * numel(), dtype));
        at::Tensor output = at::empty({numel()}, dtype);
        group.reduce_scatter_into(output, input, op)->wait();
        const at::Tensor expected =
            reference_sum(size(), group.rank() * numel(), (group.rank() + 1) * numel(), dtype,
                          op == ReduceOp::kAvg);
        ASSERT_TRUE(at::equal(output, expected)) << dtype;
      }
    }
  });
}

TEST_P(CollectivesTest, ReduceScatterAddsToItsOutputWithTheBitsOfAnAddition) {
  run([&](Collectives& group) {
    for (const at::ScalarType dtype : kFloats) {
      at::Tensor input = place(group, contribution(group.rank(), 0, size() * numel(), dtype));
      at::Tensor output = contribution(group.rank(), 0, numel(), dtype) * 3;
      if (!group.has_reduce_scatter_onto(dtype)) {
        EXPECT_THROW(group.reduce_scatter_onto(output, input, ReduceOp::kAvg), c10::Error);
        continue;
      }
      const at::Tensor expected =
          output + reference_sum(size(), group.rank() * numel(), (group.rank() + 1) * numel(),
                                 dtype, /*is_average=*/true);
      group.reduce_scatter_onto(output, input, ReduceOp::kAvg)->wait();
      ASSERT_TRUE(at::equal(output, expected)) << dtype;
    }
    EXPECT_EQ(group.has_reduce_scatter_onto(at::kFloat), size() > 1);
    EXPECT_FALSE(group.has_reduce_scatter_onto(at::kBFloat16));
  });
}

TEST_P(CollectivesTest, AllGatherInAndOutOfPlace) {
  run([&](Collectives& group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kByte, at::kLong, at::kBFloat16}) {
      std::vector<at::Tensor> parts;
      for (int64_t rank = 0; rank < size(); ++rank) {
        parts.push_back((contribution(rank, 0, numel(), at::kFloat) * 40 + 128).to(dtype));
      }
      const at::Tensor expected = at::cat(parts);
      const at::Tensor own = parts[static_cast<size_t>(group.rank())];
      at::Tensor output = place(group, at::zeros_like(expected));
      group.all_gather_into(output, place(group, own))->wait();
      ASSERT_TRUE(at::equal(output, expected)) << dtype;
      at::Tensor again = place(group, at::zeros_like(expected));
      at::Tensor slice = again.narrow(0, group.rank() * numel(), numel());
      slice.copy_(own);
      group.all_gather_into(again, slice)->wait();
      ASSERT_TRUE(at::equal(again, expected)) << dtype;
    }
  });
}

TEST_P(CollectivesTest, AllReduceAndBroadcast) {
  run([&](Collectives& group) {
    for (const at::ScalarType dtype : kFloats) {
      at::Tensor tensor = place(group, contribution(group.rank(), 0, numel(), dtype));
      group.all_reduce(tensor, ReduceOp::kAvg)->wait();
      ASSERT_TRUE(at::equal(tensor, reference_sum(size(), 0, numel(), dtype, true))) << dtype;
      const int64_t root = size() - 1;
      at::Tensor sent = place(group, contribution(group.rank(), 0, numel(), dtype));
      group.broadcast(sent, root)->wait();
      ASSERT_TRUE(at::equal(sent, contribution(root, 0, numel(), dtype))) << dtype;
    }
    at::Tensor highest = at::full({numel()}, group.rank(), at::kLong);
    group.all_reduce(highest, ReduceOp::kMax)->wait();
    ASSERT_TRUE(at::equal(highest, at::full({numel()}, size() - 1, at::kLong)));
  });
}

// Along two trees at once.
TEST(GlooTest, LanesBroadcastAtOnce) {
  for (int round = 0; round < 2; ++round) {
    const auto errors = run_backend("gloo", 6, [](Collectives& group) {
      at::Tensor tensor = at::full({1}, group.rank());
      const WorkPtr other = group.broadcast(at::full({1}, group.rank()), 0, Lane::kGather);
      group.broadcast(tensor, 1)->wait();
      other->wait();
      ASSERT_EQ(tensor.item<int64_t>(), 1);
    });
    EXPECT_THAT(errors, ::testing::Each(""));
  }
}

TEST_P(CollectivesTest, LanesOverlapWhateverTheOrderOfIssue) {
  run([&](Collectives& group) {
    at::Tensor gathered = at::empty({size() * numel()});
    at::Tensor reduced = at::empty({numel()});
    for (int round = 0; round < 5; ++round) {
      at::Tensor own = place(group, contribution(group.rank(), 0, numel(), at::kFloat));
      at::Tensor grads = place(group, contribution(group.rank(), 0, size() * numel(), at::kFloat));
      WorkPtr gather, reduce;
      if (group.rank() % 2 == 0) {
        gather = group.all_gather_into(gathered, own);
        reduce = group.reduce_scatter_into(reduced, grads, ReduceOp::kSum);
        reduce->wait();
        gather->wait();
      } else {
        reduce = group.reduce_scatter_into(reduced, grads, ReduceOp::kSum);
        gather = group.all_gather_into(gathered, own);
        gather->wait();
        reduce->wait();
      }
      gather->wait();
      group.barrier();
    }
    ASSERT_TRUE(at::equal(reduced, reference_sum(size(), group.rank() * numel(),
                                                 (group.rank() + 1) * numel(), at::kFloat, false)));
  });
}

TEST_P(CollectivesTest, LocalStagesRunInTheOrderOfTheirLane) {
  run([&](Collectives& group) {
    at::Tensor tensor = place(group, at::ones({numel()}));
    WorkPtr last;
    for (int round = 0; round < 3; ++round) {
      group.all_reduce(tensor, ReduceOp::kSum);
      last = group.run_on_lane(Lane::kReduce, [tensor] { tensor.div_(2); });
    }
    last->wait();
    const double expected = std::pow(static_cast<double>(size()) / 2, 3);
    ASSERT_TRUE(at::equal(tensor, at::full({numel()}, expected, at::kFloat)));
  });
}

TEST_P(CollectivesTest, AStageCanWaitForTheOtherLane) {
  run([&](Collectives& group) {
    at::Tensor gathered = at::zeros({size() * numel()});
    const WorkPtr gather =
        group.all_gather_into(gathered, place(group, at::ones({numel()})), Lane::kGather);
    at::Tensor sum;
    group.run_on_lane({Lane::kReduce, "", gather}, [&] { sum = gathered.sum(); })->wait();
    ASSERT_EQ(sum.item<double>(), static_cast<double>(size() * numel()));
  });
}

// One element, less and much more than the transport moves at once, in either kind of memory, and
// every number of ranks.
INSTANTIATE_TEST_SUITE_P(
    Local, CollectivesTest,
    ::testing::Values(std::tuple("local", 1, 1021, true), std::tuple("local", 2, 1, false),
                      std::tuple("local", 3, 1, true), std::tuple("local", 2, 1021, true),
                      std::tuple("local", 4, 1021, false), std::tuple("local", 2, 300007, false),
                      std::tuple("local", 3, 300007, true), std::tuple("local", 4, 300007, true)));
INSTANTIATE_TEST_SUITE_P(Gloo, CollectivesTest,
                         ::testing::Combine(::testing::Values("gloo"),
                                            ::testing::Values<int64_t>(2, 3),
                                            ::testing::Values<int64_t>(1, 70001),
                                            ::testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(Shm, CollectivesTest,
                         ::testing::Combine(::testing::Values("auto"),
                                            ::testing::Values<int64_t>(2),
                                            ::testing::Values<int64_t>(70001), ::testing::Bool()));

TEST(AgreementTest, IsUnanimousIfAllValuesAreEqual) {
  for (const std::string backend : {"local", "gloo"}) {
    for (const std::string& error : run_backend(backend, 3, [](Collectives& group) {
           EXPECT_TRUE(group.agree(~uint64_t{0})->wait());
           EXPECT_FALSE(group.agree(group.rank() == 2 ? 1 : 0)->wait());
           group.mark(Lane::kReduce)->wait();
         })) {
      EXPECT_EQ(error, "");
    }
  }
  EXPECT_TRUE(make_local_world(1)[0]->agree(7)->wait());
}

TEST(CommMemoryTest, OutlivesTheGroup) {
  auto world = make_local_world(2);
  at::Tensor kept = world[0]->empty_for_comm(100000, at::kFloat);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.data_ptr()) % 64, 0u);
  world.clear();
  kept.fill_(3);
  EXPECT_EQ(kept.sum().item<double>(), 300000);
}

TEST(RecordingCollectivesTest, RecordsAndPassesOn) {
  auto world = make_local_world(1);
  RecordingCollectives recording(world[0]);
  EXPECT_EQ(recording.name(), "recording(single)");
  at::Tensor input = at::arange(6, at::kFloat);
  at::Tensor output = at::empty({6});
  recording.all_gather_into(output, input, Lane::kGather)->wait();
  recording.reduce_scatter_into(output, input, ReduceOp::kAvg, Lane::kReduce)->wait();
  recording.all_reduce(output, ReduceOp::kSum, Lane::kReduce)->wait();
  recording.broadcast(output, 0, Lane::kGather)->wait();
  recording.barrier();
  EXPECT_TRUE(at::equal(output, input));
  const std::vector<CollectiveRecord> expected = {{"all_gather", Lane::kGather, 6, "Float"},
                                                  {"reduce_scatter", Lane::kReduce, 6, "Float"},
                                                  {"all_reduce", Lane::kReduce, 6, "Float"},
                                                  {"broadcast", Lane::kGather, 6, "Float"},
                                                  {"barrier", Lane::kReduce, 0, ""}};
  EXPECT_EQ(recording.records(), expected);
  recording.clear();
  EXPECT_TRUE(recording.records().empty());
}

}  // namespace
}  // namespace fsdp
