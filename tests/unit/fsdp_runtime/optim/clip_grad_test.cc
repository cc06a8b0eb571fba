// Norms of any order, and what is clipped by them and by value.

#include <ATen/ATen.h>
#include <fsdp/clip_grad.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/optim/spoiled.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

/// Of all gradients as one vector, in double.
double norm_of(const Gradients& gradients, double norm_type) {
  std::vector<at::Tensor> all;
  for (const auto& [fqn, gradient] : gradients) {
    all.push_back(gradient.to(at::kDouble).flatten());
  }
  return at::linalg_vector_norm(at::cat(all), norm_type).item<double>();
}

Gradients scaled(Gradients gradients, double factor) {
  for (auto& [fqn, gradient] : gradients) {
    gradient = gradient * factor;
  }
  return gradients;
}

/// Names of the operations of `comm` since it was cleared.
std::vector<std::string> operations_of(const RecordingCollectives& comm) {
  std::vector<std::string> names;
  for (const auto& call : comm.records()) {
    names.push_back(call.operation);
  }
  return names;
}

const std::vector<double>& orders() {
  static const std::vector<double> all = {0.5, 1, 2, 3, kInf};
  return all;
}

class ClipGradNormTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ClipGradNormTest, IsThatOfAllGradientsAsOneVectorByOneAllReduce) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, rank.size, {});
    const Gradients whole = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    for (const double order : orders()) {
      rank.comm->clear();
      const at::Tensor norm = get_total_norm(setup.root, order);
      EXPECT_EQ(operations_of(*rank.comm), std::vector<std::string>{"all_reduce"});
      EXPECT_EQ(norm.dim(), 0);
      EXPECT_EQ(norm.scalar_type(), at::kFloat);
      const double expected = norm_of(whole, order);
      EXPECT_NEAR(norm.item<double>(), expected, 1e-5 * expected) << "order " << order;
    }
    expect_gradients(rank, setup.root, whole);  // nothing is written
  });
}

TEST_P(ClipGradNormTest, ScalesToTheNormThatIsAllowed) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    PlainTraining plain({}, rank.size, {});
    const Gradients whole = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    for (const double order : orders()) {
      loss(setup.model, 0, rank.rank).backward();
      const double norm = norm_of(whole, order);
      EXPECT_NEAR(clip_grad_norm_(setup.root, 2 * norm, order).item<double>(), norm, 1e-5 * norm);
      expect_gradients(rank, setup.root, whole);
      EXPECT_NEAR(clip_grad_norm_(setup.root, norm / 4, order).item<double>(), norm, 1e-5 * norm);
      expect_gradients(rank, setup.root, scaled(whole, norm / 4 / (norm + 1e-6)), 1e-6);
      optimizer.zero_grad();
    }
  });
}

TEST_P(ClipGradNormTest, TakesTheNormOfSomebodyElse) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, rank.size, {});
    const Gradients whole = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    rank.comm->clear();
    clip_grads_with_norm_(setup.root, 1, tensor_of(8));
    EXPECT_TRUE(operations_of(*rank.comm).empty());
    expect_gradients(rank, setup.root, scaled(whole, 1 / (8 + 1e-6)), 1e-7);
  });
}

TEST_P(ClipGradNormTest, LimitsEachElement) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, rank.size, {});
    Gradients whole = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    double largest = norm_of(whole, kInf);
    for (auto& [fqn, gradient] : whole) {
      gradient = gradient.clamp(-largest / 4, largest / 4);
    }
    loss(setup.model, 0, rank.rank).backward();
    clip_grad_value_(setup.root, largest / 4);
    expect_gradients(rank, setup.root, whole);
    EXPECT_FLOAT_EQ(get_total_norm(setup.root, kInf).item<float>(),
                    static_cast<float>(largest / 4));
  });
}

TEST_P(ClipGradNormTest, SeesOverflowOnAllRanksInEveryOrder) {
  for (const float value : {kInf, std::nanf("")}) {
    run_ranks(GetParam(), [value](Rank& rank) {
      Sharded setup = make(rank);
      loss(setup.model, 0, rank.rank).backward();
      if (rank.rank == rank.size - 1) {
        spoil(setup.root, value);
      }
      for (const double order : orders()) {
        const auto norm = get_total_norm(setup.root, order).item<double>();
        EXPECT_EQ(std::isnan(norm), std::isnan(value)) << "order " << order;
        EXPECT_FALSE(std::isfinite(norm));
        EXPECT_THAT(refusal([&] { clip_grad_norm_(setup.root, 1, order, true); }),
                    HasSubstr("so they cannot be clipped"));
      }
      int64_t finite = 0;  // the refusals have scaled nothing
      for (const LocalShard& gradient : setup.root.sharded_gradients()) {
        finite += gradient.local.defined() ? at::count_nonzero(gradient.local).item<int64_t>() : 0;
      }
      EXPECT_GT(finite, 0);
    });
  }
}

TEST_P(ClipGradNormTest, IsNoneWithoutGradients) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    for (const double order : orders()) {
      EXPECT_EQ(clip_grad_norm_(setup.root, 1, order, true).item<float>(), 0);
    }
    clip_grad_value_(setup.root, 1);
    clip_grads_with_norm_(setup.root, 1, tensor_of(2));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClipGradNormTest, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return std::to_string(info.param) + "ranks"; });

struct OfOneDtype : torch::nn::Module {
  explicit OfOneDtype(at::ScalarType dtype)
      : weight(register_parameter("weight", at::zeros({9, 7}, dtype))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};

// Their squares would not fit float16.
TEST(ClipLowPrecisionTest, AddsUpInFloat32) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    run_ranks(2, [dtype](Rank& rank) {
      Unit<OfOneDtype> model(std::make_shared<OfOneDtype>(dtype));
      const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
      model(at::full({1, 7}, 512, dtype)).sum().backward();
      const double expected = 512 * std::sqrt(63.0);
      EXPECT_NEAR(clip_grad_norm_(root, 63).item<double>(), expected, 1e-4 * expected);
      for (const LocalShard& gradient : root.sharded_gradients()) {
        EXPECT_EQ(gradient.local.scalar_type(), dtype);
        EXPECT_TRUE(at::allclose(gradient.local.to(at::kFloat), tensor_of(63 / std::sqrt(63.0)),
                                 /*rtol=*/1e-2));
      }
      EXPECT_NEAR(get_total_norm(root, 1).item<double>(), 63 * std::sqrt(63.0), 5);
    });
  }
}

TEST(ClipOverRowsTest, CountsCopiesOnceInEveryOrder) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    PlainTraining plain({}, rank.size, {});
    const Gradients whole = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    for (const double order : orders()) {
      const double expected = norm_of(whole, order);
      EXPECT_NEAR(get_total_norm(setup.root, order).item<double>(), expected, 1e-5 * expected);
    }
  });
}

// The block's gradients are on the ranks of a row with copies in the other, the rest on all ranks.
TEST(ClipOverRowsTest, JoinsCommunicatorsOfDifferentSizes) {
  run_ranks(4, [](Rank& rank) {
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    fully_shard(model->blocks[0].ptr(), {.mesh = mesh_of(rank.comm, 2)});
    FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    root.init_parameters(initialise);
    PlainTraining plain({}, rank.size, {});
    const Gradients whole = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(model, 0, rank.rank).backward();
    for (const double order : orders()) {
      const double expected = norm_of(whole, order);
      EXPECT_NEAR(get_total_norm(root, order).item<double>(), expected, 1e-5 * expected) << order;
    }
  });
}

TEST(ClipMistakesTest, AreNamed) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    EXPECT_THAT(refusal([] { clip_grad_norm_(FSDPModule(), 1); }), HasSubstr("empty FSDPModule"));
    EXPECT_THAT(refusal([] { clip_grad_value_(FSDPModule(), 1); }), HasSubstr("empty FSDPModule"));
    for (const double order : {0.0, -1.0, std::nan("")}) {
      EXPECT_THAT(refusal([&] { get_total_norm(setup.root, order); }), HasSubstr("above 0"));
    }
    EXPECT_THAT(refusal([&] { clip_grad_value_(setup.root, -1); }), HasSubstr("not negative"));
    EXPECT_THAT(refusal([&] { clip_grads_with_norm_(setup.root, 1, at::ones({2})); }),
                HasSubstr("not a 0-dim tensor"));
    EXPECT_THAT(refusal([&] { clip_grads_with_norm_(setup.root, 1, {}); }),
                HasSubstr("not a 0-dim tensor"));
  });
}

}  // namespace
}  // namespace fsdp::testing
