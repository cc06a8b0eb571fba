// What a unit's forward may take, and what it may do with it.

#include <fsdp/sharded.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

TEST(UnitCallTest, ArgumentsNest) {
  struct Odd : torch::nn::Module {
    at::Tensor forward(std::optional<std::vector<at::Tensor>> parts,
                       std::tuple<at::Tensor, int> pair) {
      return parts->at(0) * weight + std::get<0>(pair) * std::get<1>(pair);
    }
    at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
  };
  run_ranks(1, [](Rank& rank) {
    Unit<Odd> odd(std::make_shared<Odd>());
    fully_shard(odd.ptr(),
                {.mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}});
    const at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor y = at::ones({2}).requires_grad_();
    const auto run = [&odd](const at::Tensor& a, std::tuple<at::Tensor, int> pair, int times) {
      return odd(std::optional(std::vector<at::Tensor>{a}), pair) * times;
    };
    activation_checkpoint(run, x, std::make_tuple(y, 5), 2).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 6.0)));
    EXPECT_TRUE(at::equal(y.grad(), at::full({2}, 10.0)));
  });
}

// Types that derive from known ones, and a type with an overload of its own, are not unknown.
struct NamedTensors : std::vector<at::Tensor> {
  std::string name;
};
struct Inner {
  at::Tensor tensor;
};
struct Outer : Inner {};
void visit_tensors(Inner& inner, std::vector<at::Tensor*>& out) { out.push_back(&inner.tensor); }

TEST(UnitCallTest, ForwardMayTakeStringsAndEnumsAndTypesOfItsOwn) {
  enum class Way { kDouble, kKeep };
  struct Odd : torch::nn::Module {
    at::Tensor forward(const std::string& name, Way way, const std::array<at::Tensor, 1>& x,
                       const std::pair<at::Tensor, float>& scaled, const NamedTensors& named,
                       const Outer& outer, std::optional<at::Tensor> none,
                       const std::vector<bool>& flags) {
      called = name;
      EXPECT_TRUE(flags.at(0));
      EXPECT_FALSE(none);
      return x[0] * weight * (way == Way::kDouble ? 2 : 1) + scaled.first * scaled.second +
             named[0] + outer.tensor;
    }
    std::string called;
    at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
  };
  run_ranks(1, [](Rank& rank) {
    Unit<Odd> odd(std::make_shared<Odd>());
    fully_shard(odd.ptr(), {rank.mesh, {}, {}});
    const at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor y = at::ones({2}).requires_grad_();
    NamedTensors named;
    named.push_back(x);
    odd("odd", Way::kDouble, std::array{x}, std::make_pair(y, 5.0F), named, Outer{{y}},
        std::nullopt, std::vector<bool>{true})
        .sum()
        .backward();
    EXPECT_EQ(odd->called, "odd");
    EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 7.0)));
    EXPECT_TRUE(at::equal(y.grad(), at::full({2}, 6.0)));
  });
}

TEST(UnitCallTest, ForwardMayTakeMapsVariantsAndValuesOfATen) {
  using Batch = std::map<std::string, at::Tensor>;
  struct Odd : torch::nn::Module {
    std::unordered_map<std::string, at::Tensor> forward(
        const Batch& batch, const std::variant<std::monostate, at::Tensor>& either,
        at::IntArrayRef sizes, const at::Scalar& factor, c10::Device device,
        const std::optional<at::Generator>& generator, std::nullptr_t) {
      EXPECT_FALSE(generator);
      EXPECT_TRUE(device.is_cpu());
      return {{"out", (batch.at("x") * weight + std::get<at::Tensor>(either)).view(sizes) *
                          factor.toDouble()}};
    }
    at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
  };
  run_ranks(1, [](Rank& rank) {
    Unit<Odd> odd(std::make_shared<Odd>());
    fully_shard(odd.ptr(), {rank.mesh, {}, {}});
    const at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor y = at::ones({2}).requires_grad_();
    const std::array<int64_t, 2> sizes{2, 1};
    odd(Batch{{"x", x}}, std::variant<std::monostate, at::Tensor>(y), at::IntArrayRef(sizes),
        at::Scalar(2.0), c10::Device(c10::kCPU), std::optional<at::Generator>(), nullptr)
        .at("out")
        .sum()
        .backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 6.0)));
    EXPECT_TRUE(at::equal(y.grad(), at::full({2}, 2.0)));
  });
}

// LibTorch's own containers know nothing of units, and call forward().
TEST(UnitCallTest, ShardedModuleIsCalledBySequential) {
  torch::manual_seed(1);
  torch::nn::Sequential plain(torch::nn::Linear(4, 3), torch::nn::ReLU(), torch::nn::Linear(3, 2));
  run_ranks(2, [&plain](Rank& rank) {
    const auto first = std::make_shared<fsdp::Sharded<torch::nn::LinearImpl>>(4, 3);
    const auto last = std::make_shared<fsdp::Sharded<torch::nn::LinearImpl>>(3, 2);
    torch::nn::Sequential model;
    model->push_back("0", first);
    model->push_back("1", torch::nn::ReLU());
    model->push_back("2", last);
    const at::Tensor x = at::arange(8.0).view({2, 4}).to(at::kFloat);
    EXPECT_EQ(model->forward(x).sizes(), at::IntArrayRef({2, 2}));  // not sharded yet
    fully_shard(first, {rank.mesh, {}, {}});
    fully_shard(last, {rank.mesh, {}, {}});
    const FSDPModule root = fully_shard(model.ptr(), {rank.mesh, {}, {}});
    const auto parameters = plain->named_parameters();
    FSDPModule(root).init_parameters([&](const std::string& fqn, const at::Tensor& full) {
      full.copy_(parameters[fqn].detach());
    });
    const at::Tensor expected = plain->forward(x);
    const at::Tensor found = call(
        *model, [&](const at::Tensor& in) { return model->forward(in); }, x);
    EXPECT_TRUE(at::equal(found, expected));
    found.sum().backward();
    EXPECT_EQ(root.sharded_gradients().size(), 4U);
    for (const LocalShard& gradient : root.sharded_gradients()) {
      EXPECT_TRUE(gradient.local.defined()) << gradient.fqn;
    }
  });
}

// Whoever has the tensor too would not get the history of what was done to it.
TEST(UnitCallTest, ForwardThatModifiesItsCallersTensorIsRefused) {
  struct Odd : torch::nn::Module {
    at::Tensor forward(at::Tensor x) { return x.mul_(2) * weight; }
    at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
  };
  run_ranks(1, [](Rank& rank) {
    Unit<Odd> odd(std::make_shared<Odd>());
    const FSDPModule root = fully_shard(odd.ptr(), {rank.mesh, {}, {}});
    const at::Tensor leaf = at::ones({2}).requires_grad_();
    const at::Tensor x = leaf * 1;
    try {
      odd(x);
      ADD_FAILURE() << "accepted";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("Odd"), std::string::npos);
      EXPECT_NE(std::string(error.what_without_backtrace()).find("x.clone()"), std::string::npos);
    }
    EXPECT_ANY_THROW(odd((leaf * 1).view({2})));
    odd(leaf * 1).sum().backward();  // nobody else has it
    EXPECT_TRUE(at::equal(leaf.grad(), at::full({2}, 6.0)));
  });
}

TEST(UnitCallTest, ForwardThatCallsItselfIsRefusedAndTheUnitCanBeUsedFurther) {
  struct Odd : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x, int64_t depth) {
      const at::Tensor rest = depth > 0 ? (*self)(x, depth - 1) : x;
      return rest * weight;
    }
    Unit<Odd>* self = nullptr;
    at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
  };
  run_ranks(2, [](Rank& rank) {
    Unit<Odd> odd(std::make_shared<Odd>());
    odd->self = &odd;
    fully_shard(odd.ptr(), {rank.mesh, {}, {}});
    const at::Tensor x = at::ones({2}).requires_grad_();
    try {
      odd(x, 1);
      ADD_FAILURE() << "accepted";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("calls itself"),
                std::string::npos);
    }
    odd(x, 0).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 3.0)));
  });
}

TEST(UnitCallTest, ForwardMayTakeAnInferenceTensor) {
  struct Odd : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x + weight; }
    at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
  };
  run_ranks(1, [](Rank& rank) {
    Unit<Odd> odd(std::make_shared<Odd>());
    const FSDPModule root = fully_shard(odd.ptr(), {rank.mesh, {}, {}});
    at::Tensor x;
    {
      const c10::InferenceMode inference;
      x = at::ones({2}).requires_grad_();
    }
    odd(x).sum().backward();
    EXPECT_TRUE(at::equal(root.sharded_gradients()[0].local.view({2}), at::ones({2})));
  });
}

// A unit of one weight, 3 each, whose shape everything here has.
struct Weighted : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
};

template <class M>
Unit<M> sharded_unit(Rank& rank) {
  Unit<M> unit(std::make_shared<M>());
  fully_shard(unit.ptr(), {rank.mesh, {}, {}});
  return unit;
}

TEST(UnitCallTest, TensorsInStructsAreFound) {
  struct Inner {
    std::optional<at::Tensor> maybe;
    std::string name;
  };
  struct Batch {
    at::Tensor x;
    Inner inner;
    std::vector<at::Tensor> more;
    bool doubles = false;
  };
  struct Output {
    at::Tensor loss;
    std::map<std::string, at::Tensor> others;
  };
  struct Model : Weighted {
    Output forward(const Batch& batch) {
      const at::Tensor y = (batch.x + *batch.inner.maybe + batch.more[0]) * weight;
      return {(batch.doubles ? y * 2 : y).sum(), {{"y", y}}};
    }
  };
  run_ranks(2, [](Rank& rank) {
    const Unit<Model> unit = sharded_unit<Model>(rank);
    const at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor y = at::ones({2}).requires_grad_();
    const Output output = unit(Batch{x, {y, "batch"}, {at::ones({2})}, true});
    EXPECT_TRUE(output.others.at("y").requires_grad());
    output.loss.backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 6.0)));
    EXPECT_TRUE(at::equal(y.grad(), at::full({2}, 6.0)));
    // Found as inputs, they are cast; the caller's own stay.
    EXPECT_EQ(x.scalar_type(), at::kFloat);
  });
}

TEST(UnitCallTest, ForwardMayWriteToWhatItIsLent) {
  struct Cache {
    std::vector<at::Tensor> keys;
    int64_t length = 0;
  };
  struct Model : Weighted {
    void forward(const at::Tensor& x, Cache& cache) {
      cache.keys.push_back(x * weight);
      ++cache.length;
    }
  };
  run_ranks(2, [](Rank& rank) {
    const Unit<Model> unit = sharded_unit<Model>(rank);
    const auto same = std::make_shared<fsdp::Sharded<Model>>();
    const FSDPModule sharded = fully_shard(same, {rank.mesh, {}, {}});
    Cache cache;
    const at::Tensor x = at::ones({2}).requires_grad_();
    unit(x, cache);
    same->forward(x, cache);
    call(
        *same,
        [](Cache& lent) {
          lent.length += 10;
          lent.keys.push_back(lent.keys[1] * 1);
        },
        std::ref(cache));
    EXPECT_EQ(cache.length, 12);
    at::stack(cache.keys).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 9.0)));
    EXPECT_TRUE(sharded.sharded_gradients()[0].local.defined());
  });
}

TEST(UnitCallTest, WhatIsNotKnownPassesThrough) {
  class Closed {
   public:
    explicit Closed(int64_t times) : times_(times) {}
    int64_t times() const { return times_; }

   private:
    int64_t times_;
  };
  struct Model : Weighted {
    at::Tensor forward(const at::Tensor& x, const Closed& closed, std::unique_ptr<int> moved,
                       const std::shared_ptr<Closed>& held, const std::function<int()>& function,
                       at::TensorList list) {
      return x * weight * closed.times() * *moved * held->times() * function() + list[0];
    }
  };
  run_ranks(2, [](Rank& rank) {
    const Unit<Model> unit = sharded_unit<Model>(rank);
    const at::Tensor x = at::ones({2}).requires_grad_();
    const std::vector<at::Tensor> list{x};
    unit(
        x, Closed(2), std::make_unique<int>(5), std::make_shared<Closed>(7), [] { return 11; },
        at::TensorList(list))
        .sum()
        .backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 3.0 * 2 * 5 * 7 * 11 + 1)));
  });
}

TEST(UnitCallTest, AResultWithoutTensorsIsRefusedWhereThereWillBeABackward) {
  class Hidden {
   public:
    explicit Hidden(at::Tensor tensor) : tensor_(std::move(tensor)) {}
    const at::Tensor& tensor() const { return tensor_; }

   private:
    at::Tensor tensor_;
  };
  struct Model : Weighted {
    Hidden forward(const at::Tensor& x) { return Hidden(x * weight); }
  };
  struct Silent : Weighted {
    void forward(const at::Tensor& x) { kept = x * weight; }
    at::Tensor kept;
  };
  run_ranks(2, [](Rank& rank) {
    const Unit<Model> unit = sharded_unit<Model>(rank);
    const at::Tensor x = at::ones({2});
    const std::string hidden = refusal([&] { unit(x); });
    EXPECT_NE(hidden.find("Model has returned a "), std::string::npos) << hidden;
    EXPECT_NE(hidden.find("Hidden"), std::string::npos) << hidden;
    const Unit<Silent> silent = sharded_unit<Silent>(rank);
    EXPECT_NE(refusal([&] { silent(x); }).find("has returned nothing"), std::string::npos);
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(unit(x).tensor(), at::full({2}, 3.0)));
    silent(x);
    EXPECT_TRUE(at::equal(silent->kept, at::full({2}, 3.0)));
  });
}

TEST(UnitCallTest, WhatHidesTensorsIsKnownHoweverDeep) {
  using detail::kIsTransparent;
  struct Open {
    at::Tensor tensor;
    std::vector<int64_t> sizes;
  };
  struct Around {
    std::map<std::string, std::shared_ptr<Open>> hidden;
    Open open;
  };
  EXPECT_TRUE((kIsTransparent<std::map<std::string, std::optional<Open>>>));
  EXPECT_TRUE((kIsTransparent<std::tuple<Open, std::variant<std::monostate, at::Tensor>>>));
  EXPECT_FALSE(kIsTransparent<std::shared_ptr<Open>>);
  EXPECT_FALSE(kIsTransparent<std::vector<std::function<int()>>>);
  EXPECT_FALSE(kIsTransparent<Around>);
  EXPECT_FALSE(kIsTransparent<at::TensorList>);
}

TEST(UnitCallTest, ForwardMayBeOverloadedAndHaveDefaultArguments) {
  struct Model : Weighted {
    at::Tensor forward(const at::Tensor& x, double factor = 2.0) const noexcept {
      return x * weight * factor;
    }
    at::Tensor forward(const std::string& name) {
      return weight * static_cast<int64_t>(name.size());
    }
  };
  struct Quiet : Weighted {
    at::Tensor forward(at::Tensor x) const noexcept { return x * weight; }
  };
  run_ranks(1, [](Rank& rank) {
    const Unit<Model> unit = sharded_unit<Model>(rank);
    EXPECT_TRUE(at::equal(unit(at::ones({2})), at::full({2}, 6.0)));
    EXPECT_TRUE(at::equal(unit(at::ones({2}), 3.0), at::full({2}, 9.0)));
    EXPECT_TRUE(at::equal(unit("four"), at::full({2}, 12.0)));
    const auto quiet = std::make_shared<fsdp::Sharded<Quiet>>();
    fully_shard(quiet, {rank.mesh, {}, {}});
    EXPECT_TRUE(at::equal(quiet->forward(at::ones({2})), at::full({2}, 3.0)));
  });
}

}  // namespace
}  // namespace fsdp::testing
