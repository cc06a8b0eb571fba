// Ranks whose shard_placement_fn do not agree: their shards may have one size all the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/unit/fsdp_runtime/engine/placed_model.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSide = 8;

/// Of two square matrices.
std::shared_ptr<torch::nn::Module> make_square(const std::string& second) {
  auto module = std::make_shared<torch::nn::Module>("Square");
  module->register_parameter("first", at::ones({kSide, kSide}));
  module->register_parameter(second, at::ones({kSide, kSide}));
  return module;
}

ShardPlacementFn second_along(int64_t dim) {
  return [dim](const std::string& fqn, const at::Tensor&) {
    return ShardPlacement{fqn == "second" ? dim : 0};
  };
}

TEST(PlacementAgreementTest, AParameterThatRanksDivideAlongDifferentDimensionsIsNamedOnAllOfThem) {
  run_ranks(2, [](Rank& rank) {
    const auto module = make_square("second");
    EXPECT_THAT(refusal([&] {
                  fully_shard(module,
                              {.mesh = rank.mesh, .shard_placement_fn = second_along(rank.rank)});
                }),
                HasSubstr("gives dimension " + std::to_string(rank.rank) +
                          " for parameter second of shape [8, 8] in Square on this rank, and from "
                          "0 to 1 on all of them"));
    EXPECT_FALSE(fsdp_module(*module));
    EXPECT_TRUE(module->parameters().front().eq(1).all().item<bool>()) << "nothing has changed";
    fully_shard(module, {.mesh = rank.mesh, .shard_placement_fn = second_along(1)});
  });
}

TEST(PlacementAgreementTest, ThoseThatHoldCopiesDivideAlike) {
  run_ranks(4, [](Rank& rank) {
    const auto module = make_square("second");
    const auto mesh = mesh_of(rank.comm, 2);
    EXPECT_THAT(refusal([&] {
                  fully_shard(module, {.mesh = mesh,
                                       .shard_placement_fn = second_along(mesh->local_rank(0))});
                }),
                HasSubstr("for parameter second of shape [8, 8] in Square"));
    const int64_t only_one = rank.rank == 3 ? 1 : 0;  // its row tells the other one
    EXPECT_THAT(refusal([&] {
                  fully_shard(module, {.mesh = mesh, .shard_placement_fn = second_along(only_one)});
                }),
                HasSubstr("for parameter second of shape [8, 8] in Square"));
  });
}

TEST(PlacementAgreementTest, AnotherParameterAtItsPlaceIsNamed) {
  run_ranks(2, [](Rank& rank) {
    const auto module = make_square(rank.rank == 0 ? "second" : "third");
    EXPECT_THAT(refusal([&] {
                  fully_shard(module, {.mesh = rank.mesh, .shard_placement_fn = shard_on_dim(0)});
                }),
                AllOf(HasSubstr(rank.rank == 0 ? "parameter second" : "parameter third"),
                      HasSubstr("another rank has one of another name or shape")));
  });
}

TEST(PlacementAgreementTest, AnotherNumberOfParametersIsTold) {
  run_ranks(4, [](Rank& rank) {
    const auto module = make_square("second");
    if (rank.rank == 1) {
      module->register_parameter("third", at::ones({4}));
    }
    const auto mesh = mesh_of(rank.comm, 2);
    EXPECT_THAT(refusal([&] {
                  fully_shard(module, {.mesh = mesh, .shard_placement_fn = shard_on_dim(0)});
                }),
                HasSubstr("on this rank, and on others another number"));
  });
}

/// Whose backend cannot tell whether all ranks have passed the same.
struct GroupThatCannotTell : RecordingCollectives {
  using RecordingCollectives::RecordingCollectives;
  AgreementPtr agree(uint64_t value, std::string purpose) override {
    return Collectives::agree(value, std::move(purpose));
  }
};

TEST(PlacementAgreementTest, IsFoundWithoutTheHelpOfTheBackend) {
  run_ranks(2, [](Rank& rank) {
    rank.mesh = init_device_mesh(c10::kCPU, {2}, {"dp_shard"},
                                 std::make_shared<GroupThatCannotTell>(rank.comm));
    const auto module = make_square("second");
    EXPECT_THAT(refusal([&] {
                  fully_shard(module,
                              {.mesh = rank.mesh, .shard_placement_fn = second_along(rank.rank)});
                }),
                HasSubstr("for parameter second of shape [8, 8] in Square"));
    fully_shard(module, {.mesh = rank.mesh, .shard_placement_fn = second_along(1)});
  });
}

}  // namespace
}  // namespace fsdp::testing
