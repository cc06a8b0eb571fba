// Several modules as one unit.

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/chain_model.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// Three in a row, the last two of which are one unit.
struct Ends : torch::nn::Module {
  explicit Ends(bool is_tied = false) {
    if (is_tied) {
      head = Unit<Link>(std::make_shared<Link>(norm->weight));
    }
    register_module("body", body.ptr());
    register_module("norm", norm.ptr());
    register_module("head", head.ptr());
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto call = [this](const Unit<Link>& link, const at::Tensor& in) {
      return is_checkpointed
                 ? activation_checkpoint([link](const at::Tensor& t) { return link(t); }, in)
                 : link(in);
    };
    const at::Tensor normal = call(norm, call(body, x));
    if (between) {
      between();
    }
    return skips_head ? normal : call(head, normal);
  }
  Unit<Link> body{std::make_shared<Link>(0.5)};
  Unit<Link> norm{std::make_shared<Link>(0.75)};
  Unit<Link> head{std::make_shared<Link>(1.25)};
  bool skips_head = false;
  bool is_checkpointed = false;
  std::function<void()> between;
};

struct ShardedEnds {
  explicit ShardedEnds(const Rank& rank, bool is_tied = false)
      : model(std::make_shared<Ends>(is_tied)) {
    const FullyShardOptions options{.mesh = rank.mesh};
    fully_shard(model->body.ptr(), options);
    ends = fully_shard({model->norm.ptr(), model->head.ptr()}, options);
    root = fully_shard(model.ptr(), options);
  }
  Unit<Ends> model;
  FSDPModule ends;
  FSDPModule root;
};

at::Tensor input_of(int64_t rank) {
  return at::arange(12, at::kFloat).view({2, 6}) * 0.1 + static_cast<double>(rank);
}

/// Averaged over two ranks, by name.
Gradients expected_gradients(bool is_tied = false, bool skips_head = false) {
  Gradients sum;
  Ends plain(is_tied);
  plain.skips_head = skips_head;
  for (int64_t rank = 0; rank < 2; ++rank) {
    plain.zero_grad();
    plain.forward(input_of(rank)).square().sum().backward();
    for (const auto& param : plain.named_parameters()) {
      const at::Tensor& gradient = param.value().grad();
      if (gradient.defined() && !(is_tied && param.key() == "head.weight")) {
        sum[param.key()] = rank == 0 ? gradient.clone() : (sum[param.key()] + gradient) / 2;
      }
    }
  }
  return sum;
}

/// What has been warned of on this thread.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { said.push_back(warning.msg()); }
  std::vector<std::string> said;
};

TEST(ModuleListTest, IsGatheredAndReducedAsOneUnit) {
  run_ranks(2, [](Rank& rank) {
    ShardedEnds setup(rank);
    for (int step = 0; step < 2; ++step) {
      rank.comm->clear();
      setup.root.sharded_gradients();
      setup.model(input_of(rank.rank)).square().sum().backward();
      EXPECT_EQ(count(rank, "all_gather"), 2 + 2) << "step " << step;
      EXPECT_EQ(count(rank, "reduce_scatter"), 2) << "step " << step;
      if (step == 0) {
        expect_gradients(rank, setup.root, expected_gradients());
      }
    }
  });
}

TEST(ModuleListTest, IsGatheredFromItsFirstModuleToItsLast) {
  run_ranks(2, [](Rank& rank) {
    ShardedEnds setup(rank);
    bool is_looked_at = false;
    setup.model->between = [&] {
      is_looked_at = true;
      EXPECT_TRUE(is_sharded(setup.model->body->weight));
      EXPECT_FALSE(is_sharded(setup.model->norm->weight));
      EXPECT_FALSE(is_sharded(setup.model->head->weight));
    };
    const at::Tensor result = setup.model(input_of(rank.rank));
    EXPECT_TRUE(is_looked_at);
    EXPECT_TRUE(is_sharded(setup.model->norm->weight));
    EXPECT_TRUE(is_sharded(setup.model->head->weight));
    result.sum().backward();
    EXPECT_TRUE(is_sharded(setup.model->norm->weight));
  });
}

TEST(ModuleListTest, IsNamedByPlaceInItsHandleAndFromTheRootElsewhere) {
  run_ranks(2, [](Rank& rank) {
    ShardedEnds setup(rank);
    const auto names = [](const FSDPModule& handle) {
      std::vector<std::string> all;
      for (const LocalShard& shard : handle.sharded_parameters()) {
        all.push_back(shard.fqn);
      }
      return all;
    };
    EXPECT_EQ(names(setup.ends), (Events{"0.weight", "1.weight"}));
    EXPECT_EQ(names(setup.root), (Events{"body.weight", "norm.weight", "head.weight"}));
    EXPECT_EQ(fsdp_module(*setup.model->head).state(), setup.ends.state());
    EXPECT_EQ(setup.root.units().size(), 3u);
  });
}

TEST(ModuleListTest, TiedParametersOfItsModulesAreOne) {
  run_ranks(2, [](Rank& rank) {
    ShardedEnds setup(rank, /*is_tied=*/true);
    EXPECT_EQ(setup.ends.sharded_parameters().size(), 1u);
    setup.model(input_of(rank.rank)).square().sum().backward();
    expect_gradients(rank, setup.root, expected_gradients(/*is_tied=*/true));
  });
}

TEST(ModuleListTest, RecomputationsReduceItOnce) {
  run_ranks(2, [](Rank& rank) {
    ShardedEnds setup(rank);
    setup.model->is_checkpointed = true;
    setup.model(input_of(rank.rank).requires_grad_()).square().sum().backward();
    EXPECT_EQ(count(rank, "reduce_scatter"), 2);
    expect_gradients(rank, setup.root, expected_gradients());
  });
}

TEST(ModuleListTest, ModulesThatDoNotRunAreNamedOnceAndNothingElseHappens) {
  run_ranks(2, [](Rank& rank) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    ShardedEnds setup(rank);
    setup.model->skips_head = true;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor result = setup.model(input_of(rank.rank));
      EXPECT_TRUE(is_sharded(setup.model->norm->weight));
      if (step == 0) {
        result.square().sum().backward();
        expect_gradients(rank, setup.root,
                         expected_gradients(/*is_tied=*/false, /*skips_head=*/true));
        AdamW(setup.root, {}).zero_grad();
      }
    }
    ASSERT_EQ(warnings.said.size(), 1u);
    EXPECT_NE(warnings.said[0].find("these have not run: head."), std::string::npos)
        << warnings.said[0];
    setup.model->skips_head = false;
    setup.model(input_of(rank.rank)).square().sum().backward();
    expect_gradients(rank, setup.root, expected_gradients());
  });
}

TEST(ModuleListTest, AForwardThatFailsBetweenItsModulesLeavesItSharded) {
  run_ranks(2, [](Rank& rank) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    ShardedEnds setup(rank);
    setup.model->between = [] { TORCH_CHECK(false, "told to fail"); };
    EXPECT_THROW(setup.model(input_of(rank.rank)), c10::Error);
    EXPECT_TRUE(is_sharded(setup.model->norm->weight));
    setup.model->between = nullptr;
    setup.model(input_of(rank.rank)).square().sum().backward();
    expect_gradients(rank, setup.root, expected_gradients());
    EXPECT_TRUE(warnings.said.empty()) << warnings.said.front();
  });
}

TEST(ModuleListTest, RefusesWhatCannotBeOneUnit) {
  run_ranks(2, [](Rank& rank) {
    const FullyShardOptions options{.mesh = rank.mesh};
    const auto says = [](const std::string& text, const std::function<void()>& run) {
      const std::string said = refusal(run);
      EXPECT_NE(said.find(text), std::string::npos) << said;
    };
    Unit<Ends> model(std::make_shared<Ends>());
    const std::shared_ptr<torch::nn::Module> norm = model->norm.ptr();
    const std::shared_ptr<torch::nn::Module> head = model->head.ptr();
    using List = std::vector<std::shared_ptr<torch::nn::Module>>;
    says("no module in the list", [&] { fully_shard(List{}, options); });
    says("is null", [&] { fully_shard(List{norm, nullptr}, options); });
    says("twice", [&] { fully_shard(List{norm, head, norm}, options); });
    torch::nn::ModuleList blocks(std::make_shared<Link>(1.0));
    says("container without forward", [&] { fully_shard(blocks, options); });
    says("container without forward", [&] { fully_shard(List{norm, blocks.ptr()}, options); });

    struct CalledList : torch::nn::ModuleListImpl {};  // it could have a forward
    fully_shard(std::make_shared<CalledList>(), options);

    fully_shard(List{norm, head}, options);
    says("has been sharded already", [&] { fully_shard(head, options); });
    says("can be no root", [&] { model->norm(input_of(0)); });
    struct Part : torch::nn::Module {};
    const auto part = std::make_shared<Part>();
    part->register_module("norm", norm);
    says("outside it", [&] { fully_shard(part, options); });
    fully_shard(model.ptr(), options);
    model(input_of(rank.rank)).sum().backward();
  });
}

}  // namespace
}  // namespace fsdp::testing
