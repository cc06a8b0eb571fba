#include "worker/run/optimizer_groups.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/worker/run/small_run.h"

namespace fsdprun::worker {
namespace {

class OptimizerGroupsOfModelTest : public testing::Test {
 protected:
  SmallRun run_;
};

TEST_F(OptimizerGroupsOfModelTest, ParameterGroupsSplitByDecay) {
  const auto groups =
      nlohmann::json::parse(FormatParamGroups(run_.state.model.root, run_.config.optimizer, 0.5));
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0]["weight_decay"], 0.01);
  EXPECT_EQ(groups[1]["weight_decay"], 0.0);
  EXPECT_EQ(groups[1]["lr"], 0.5);
  EXPECT_EQ(groups[0]["betas"], nlohmann::json({0.9, 0.999}));
  EXPECT_EQ(groups[1]["params"].size(), 3u);  // two in the block and the final one
  EXPECT_EQ(groups[0]["params"].size() + groups[1]["params"].size(),
            run_.state.model.root.sharded_parameters().size());
}

TEST_F(OptimizerGroupsOfModelTest, OptimizerHasTheGroupsThatCheckpointsName) {
  const auto weight_decays = [this](const std::vector<std::string>& no_decay) {
    TrainConfig::Optimizer options = run_.config.optimizer;
    options.no_decay = no_decay;
    const auto groups = MakeParamGroups(run_.state.model.root, options);
    const fsdp::AdamW optimizer(run_.state.model.root, groups,
                                {.weight_decay = options.weight_decay});
    const auto named =
        nlohmann::json::parse(FormatParamGroups(run_.state.model.root, options, 0.5));
    EXPECT_EQ(named.size(), optimizer.group_count());
    std::vector<double> decays;
    for (size_t g = 0; g < optimizer.group_count(); ++g) {
      EXPECT_EQ(named[g]["params"], nlohmann::json(optimizer.params(g)));
      EXPECT_EQ(named[g]["weight_decay"], optimizer.options(g).weight_decay);
      decays.push_back(optimizer.options(g).weight_decay);
    }
    return decays;
  };
  EXPECT_EQ(weight_decays({}), std::vector<double>{0.01});
  EXPECT_EQ(weight_decays({"*norm.weight"}), (std::vector<double>{0.01, 0}));
  EXPECT_EQ(weight_decays({"*"}), std::vector<double>{0});
}

TEST(OptimizerGroupsTest, ChangedOptionsOfTheOptimizerAreNamed) {
  const std::string stored =
      R"([{"betas":[0.9,0.95],"eps":1e-8,"weight_decay":0.1,"params":["a","b"]}])";
  EXPECT_TRUE(DescribeChangedGroups(stored, stored).empty());
  const std::string now =
      R"([{"betas":[0.9,0.99],"eps":1e-8,"weight_decay":0.1,"params":["a"]},
          {"betas":[0.9,0.99],"eps":1e-8,"weight_decay":0.0,"params":["b","c"]}])";
  EXPECT_EQ(DescribeChangedGroups(stored, now),
            (std::vector<std::string>{
                "optimizer.betas of a was [0.9,0.95] at the checkpoint and is [0.9,0.99] now",
                "optimizer.weight_decay of b was 0.1 at the checkpoint and is 0.0 now"}));
  EXPECT_TRUE(DescribeChangedGroups("null", now).empty());
}

TEST(OptimizerGroupsTest, OptionsThatOnlyPythonHasAreNamedIfTheyComputeSomethingElse) {
  const std::string now = R"([{"betas":[0.9,0.99],"params":["a","b"]}])";
  EXPECT_TRUE(
      DescribeChangedGroups(
          R"([{"amsgrad":false,"maximize":false,"decoupled_weight_decay":true,"foreach":null,
                       "params":["a","b"]}])",
          now)
          .empty());
  EXPECT_EQ(DescribeChangedGroups(
                R"([{"amsgrad":false,"params":["a"]},{"amsgrad":true,"params":["b"]},
                    {"maximize":true,"decoupled_weight_decay":false,"params":["c"]}])",
                now),
            std::vector<std::string>{
                "the optimizer of b had amsgrad = true at the checkpoint; fsdp-train's has false"});
}

}  // namespace
}  // namespace fsdprun::worker
