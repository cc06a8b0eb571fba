// Parameters of every shape that are divided along a dimension: three dimensions along the middle
// one, none of them, chunks of an odd size, several dtypes, gradients that are sparse.

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/placed_model.h"

namespace fsdp::testing {
namespace {

/// What a convolution, an empty table, a sparse one and a scale in another dtype have.
struct Shapes : torch::nn::Module {
  explicit Shapes(bool is_sparse) : is_sparse(is_sparse) {
    for (auto& item : named_parameters()) {
      at::NoGradGuard no_grad;
      const at::Tensor index = at::arange(item.value().numel(), at::kDouble);
      item.value().copy_((index * 12.9898).sin().view(item.value().sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor rows = at::embedding(table, index, -1, false, is_sparse);
    const at::Tensor y = at::linear(x.to(kernel.scalar_type()), kernel.flatten(1)) + bias;
    const at::Tensor z = at::linear(y.sin(), inner.flatten(1).t());
    return z.sin().sum() * scale.sum() + rows.sin().sum() + none.sum();
  }

  const bool is_sparse;
  const at::Tensor index = at::arange(5, at::kLong) * 2;
  at::Tensor kernel = register_parameter("kernel", at::empty({6, 12, 3}));  // along 1
  at::Tensor bias = register_parameter("bias", at::empty({6}));
  at::Tensor none = register_parameter("none", at::empty({0, 5}));
  at::Tensor inner = register_parameter("inner", at::empty({6, 5, 12}));  // along 2
  at::Tensor scale = register_parameter("scale", at::empty({7}, at::kDouble));
  at::Tensor table = register_parameter("table", at::empty({11, 4}));
};

int64_t dim_of(const std::string& fqn) { return fqn == "kernel" ? 1 : fqn == "inner" ? 2 : 0; }

ShardPlacementFn by_shapes() {
  return [](const std::string& fqn, const at::Tensor&) { return ShardPlacement{dim_of(fqn)}; };
}

/// The parameters after steps along `.grad`.
Trained train_shapes(const Rank& rank, FullyShardOptions options, bool is_sparse = false) {
  options.mesh = rank.mesh;
  const Unit<Shapes> model(std::make_shared<Shapes>(is_sparse));
  const FSDPModule root = fully_shard(model.ptr(), options);
  for (int64_t step = 0; step < 2; ++step) {
    model((at::arange(2 * 36) * 0.1 + static_cast<double>(step + rank.rank)).view({2, 36}))
        .backward();
    for (const at::Tensor& leaf : root.parameters()) {
      const at::NoGradGuard no_grad;
      EXPECT_EQ(leaf.grad().sizes(), leaf.sizes());
      leaf.sub_(leaf.grad(), 0.1);
      leaf.mutable_grad().reset();
    }
  }
  Trained trained;
  add_parameters(root, trained);
  return trained;
}

class PlacedShapesTest : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PlacedShapesTest, ::testing::Values(1, 2, 3, 4));

TEST_P(PlacedShapesTest, LeavesAreTheChunksOfTorch) {
  run_ranks(GetParam(), [](Rank& rank) {
    const auto model = std::make_shared<Shapes>(false);
    std::map<std::string, at::Tensor> wholes;
    for (const auto& item : model->named_parameters()) {
      wholes[item.key()] = item.value().detach().clone();
    }
    const FSDPModule root =
        fully_shard(model, {.mesh = rank.mesh, .shard_placement_fn = by_shapes()});
    for (const auto& [fqn, leaf] : root.named_parameters()) {
      const at::Tensor expected = chunk_of(wholes.at(fqn), dim_of(fqn), rank.size, rank.rank);
      EXPECT_EQ(leaf.sizes(), expected.sizes()) << fqn;
      EXPECT_TRUE(at::equal(leaf.detach(), expected)) << fqn;
      EXPECT_TRUE(at::equal(root.full_parameter(fqn), wholes.at(fqn))) << fqn;
    }
    root.unshard();
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(at::equal(item.value().detach(), wholes.at(item.key()))) << item.key();
    }
  });
}

TEST_P(PlacedShapesTest, TrainWithTheBitsOfTheFlatLayout) {
  const FullyShardOptions bfloat16{
      .mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
  for (const bool as_on_a_device : {false, true}) {
    run_ranks(
        GetParam(),
        [&](Rank& rank) {
          for (const FullyShardOptions& options : {FullyShardOptions{}, bfloat16}) {
            const Trained expected = train_shapes(rank, options);
            expect_same_bits(train_shapes(rank, placed(options, by_shapes())), expected);
            if (rank.size > 1) {
              expect_same_bits(train_shapes(rank, placed(options, by_shapes()), /*is_sparse=*/true),
                               expected);
            }
          }
        },
        as_on_a_device);
  }
}

/// One matrix, in the dtype, which is its chunks one behind the other: 2 rows of 3 on 4 ranks.
struct OddMatrix : torch::nn::Module {
  explicit OddMatrix(at::ScalarType dtype)
      : weight(register_parameter("weight", (at::arange(15) * 0.1).view({5, 3}).to(dtype))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(x.to(weight.scalar_type()), weight).sin().sum();
  }
  at::Tensor weight;
};

TEST(PlacedShapesOfOneTest, ChunksOfAnOddSizeAreReducedWhereTheyAre) {
  const MixedPrecisionPolicy bfloat16{.param_dtype = at::kBFloat16, .reduce_dtype = at::kBFloat16};
  const std::vector<std::pair<at::ScalarType, MixedPrecisionPolicy>> cases = {
      {at::kFloat, {}}, {at::kBFloat16, {}}, {at::kFloat, bfloat16}};
  run_ranks(4, [&](Rank& rank) {
    for (const auto& one : cases) {
      const auto train_matrix = [&](ShardPlacementFn placement) {
        const Unit<OddMatrix> model(std::make_shared<OddMatrix>(one.first));
        const FSDPModule root =
            fully_shard(model.ptr(), {.mesh = rank.mesh,
                                      .shard_placement_fn = std::move(placement),
                                      .mp_policy = one.second});
        AdamW optimizer(root, {.lr = 0.05});
        for (int64_t step = 0; step < 3; ++step) {
          model(at::full({2, 3}, static_cast<double>(1 + step + rank.rank))).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        EXPECT_FALSE(layout_of(*model).copies_out());
        return root.full_parameter("weight");
      };
      EXPECT_TRUE(at::equal(train_matrix(shard_on_dim(0)), train_matrix(nullptr))) << one.first;
    }
  });
}

TEST(PlacedShapesOfOneTest, WindowsAreOfWholePagesInTheDtypeThatPeersRead) {
  run_ranks(2, [](Rank& rank) {
    const auto module = std::make_shared<torch::nn::Module>("Narrow");
    module->register_parameter("weight", at::ones({2000, 64}, at::kBFloat16));
    module->register_parameter("bias", at::ones({2}, at::kBFloat16));
    const FSDPModule root = fully_shard(module, {.mesh = rank.mesh,
                                                 .shard_placement_fn = shard_on_dim(0),
                                                 .mp_policy = {.param_dtype = at::kFloat}});
    const ShardStore& store = root.state()->groups().front()->store();
    ASSERT_TRUE(store.window()) << "which peers read in bfloat16, although they compute in float32";
    root.unshard();
    EXPECT_TRUE(module->parameters().front().eq(1).all().item<bool>());
  });
}

/// New memory of it has what nobody may take for a gradient.
struct SpoiledMemory : AsOnADevice {
  using AsOnADevice::AsOnADevice;
  at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override {
    at::Tensor memory = AsOnADevice::empty_for_comm(numel, dtype);
    std::memset(memory.data_ptr(), 0xff, memory.nbytes());
    return memory;
  }
};

/// Calls of aten::zero_ on this thread.
thread_local int64_t zero_calls = 0;
std::unique_ptr<at::ObserverContext> count_zero_calls(const at::RecordFunction& function) {
  zero_calls += std::strcmp(function.name(), "aten::zero_") == 0 ? 1 : 0;
  return nullptr;
}

TEST(PlacedShapesOfOneTest, PaddingIsZeroedInABatch) {
  run_ranks(4, [](Rank& rank) {
    rank.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"},
                                 std::make_shared<SpoiledMemory>(rank.comm));
    // The last rank has no row of the large one: more padding than is listed by element.
    const auto module = std::make_shared<OddMatrix>(at::kFloat);
    const at::Tensor large =
        module->register_parameter("large", at::ones({3, 20000}), /*requires_grad=*/true);
    const Unit<OddMatrix> model(module);
    const FSDPModule root =
        fully_shard(model.ptr(), {.mesh = rank.mesh, .shard_placement_fn = shard_on_dim(0)});
    const at::Tensor result = model(at::ones({2, 3}));
    const at::CallbackHandle counting = at::addThreadLocalCallback(
        at::RecordFunctionCallback(count_zero_calls).scopes({at::RecordScope::FUNCTION}));
    zero_calls = 0;
    result.backward();  // nobody has used the large one
    at::removeCallback(counting);
    EXPECT_EQ(zero_calls, 2) << "of a gradient that is missing, and of what is behind it";
    root.sharded_gradients();
    const ParamGroup& group = *root.state()->groups().front();
    const std::vector<plan::Range> gaps = plan::padding_of_rank(group.store().layout(), rank.rank);
    EXPECT_FALSE(gaps.empty());
    for (const plan::Range& gap : gaps) {
      EXPECT_TRUE(
          group.gradient().narrow(0, gap.begin, gap.end - gap.begin).eq(0).all().item<bool>())
          << gap.begin << " to " << gap.end;
    }
  });
}

TEST(PlacedShapesOfOneTest, GathersRunAheadUntilTheyAreCopiedOut) {
  run_ranks(2, [](Rank& rank) {
    ToyConfig config = wide_placed_toy();
    config.blocks = 10;
    Sharded setup = make(rank, config, {.shard_placement_fn = inner_of_down()});
    const ShardStore& block = fsdp_module(*setup.model->blocks[0]).state()->groups()[0]->store();
    ASSERT_TRUE(block.window() && block.layout().copies_out());
    loss(setup.model, 0, rank.rank).backward();
    rank.comm->clear();
    setup.model->blocks[0]->fail = true;
    EXPECT_THROW(loss(setup.model, 0, rank.rank), c10::Error);
    EXPECT_EQ(count(rank, "all_gather"), 1 + 8 + 1) << "root, ahead of it, of block 0";
    setup.model->blocks[0]->fail = false;
    loss(setup.model, 1, rank.rank).backward();
  });
}

TEST(PlacedShapesOfOneTest, WhatIsGatheredInFullPrecisionIsReadInTheSameWindow) {
  run_ranks(2, [](Rank& rank) {
    Sharded full = make(rank, wide_placed_toy());
    Sharded setup = make(rank, wide_placed_toy(),
                         {.shard_placement_fn = inner_of_down(),
                          .mp_policy = {.param_dtype = at::kBFloat16,
                                        .reduce_dtype = at::kFloat,
                                        .full_precision_in_eval = true}});
    const MixedPrecisionPolicy bfloat16{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    Sharded flat = make(rank, wide_placed_toy(), {.mp_policy = bfloat16});
    ASSERT_TRUE(setup.root.state()->groups().front()->store().window());
    for (int64_t step = 0; step < 2; ++step) {
      EXPECT_TRUE(at::equal(loss(setup.model, step, rank.rank).detach(),
                            loss(flat.model, step, rank.rank).detach()));
      setup.model->eval();
      {
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(
            at::equal(loss(setup.model, step, rank.rank), loss(full.model, step, rank.rank)));
      }
      setup.model->train();
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
