#include "fsdp_runtime/src/optim/param_groups.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string>& fqns() {
  static const std::vector<std::string> kFqns = {"embedding", "block.weight", "block.bias"};
  return kFqns;
}

std::string refusal_of(const std::vector<AdamWParamGroup>& groups,
                       const std::vector<std::string>& names = fqns()) {
  try {
    resolve_param_groups(groups, {}, names);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "accepted";
}

TEST(ParamGroupsTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(refusal_of({}), HasSubstr("no param groups"));
  EXPECT_THAT(refusal_of({{.params = {"embedding"}}}, {}), HasSubstr("no parameters below"));
  EXPECT_THAT(refusal_of({{.params = {"embedding"}}, {.params = {}}}),
              HasSubstr("param group 1 names no parameter"));
  EXPECT_THAT(refusal_of({{.params = {"embedding", "block.wait"}}}),
              HasSubstr("param group 0 names \"block.wait\", which is no parameter"));
  EXPECT_THAT(refusal_of({{.params = {"embedding", "embedding"}}}),
              HasSubstr("param group 0 names \"embedding\" twice"));
  EXPECT_THAT(refusal_of({{.params = {"embedding"}}, {.params = {"block.bias", "embedding"}}}),
              HasSubstr("param groups 0 and 1 both name \"embedding\""));
}

TEST(ParamGroupsTest, OptionsOutOfRangeAreNamedWithTheirGroup) {
  const std::vector<std::pair<AdamWParamGroup, std::string>> wrong = {
      {{.params = {"block.bias"}, .lr = -1.0}, "lr of param group 1 is -1; expected at least 0"},
      {{.params = {"block.bias"}, .lr = std::nan("")}, "lr of param group 1 is nan"},
      {{.params = {"block.bias"}, .beta1 = 1.0}, "beta1 of param group 1 is 1; expected one in"},
      {{.params = {"block.bias"}, .beta2 = -0.5}, "beta2 of param group 1 is -0.5"},
      {{.params = {"block.bias"}, .eps = -1.0}, "eps of param group 1 is -1"},
      {{.params = {"block.bias"}, .weight_decay = -1.0}, "weight_decay of param group 1 is -1"}};
  for (const auto& [group, text] : wrong) {
    EXPECT_THAT(refusal_of({{.params = {"embedding"}}, group}), HasSubstr(text));
  }
}

TEST(ParamGroupsTest, WhatAGroupDoesNotSetIsTheDefault) {
  const AdamWOptions defaults{.lr = 1, .beta1 = 0.1, .beta2 = 0.2, .eps = 0.3, .weight_decay = 0.4};
  const ResolvedParamGroups resolved = resolve_param_groups(
      {{.params = {"block.bias"}, .weight_decay = 0.0},
       {.params = {"embedding"}, .lr = 2.0, .beta1 = 0.5, .beta2 = 0.6, .eps = 0.7}},
      defaults, fqns());
  EXPECT_THAT(resolved.group_of, ElementsAre(1u, std::nullopt, 0u));
  ASSERT_EQ(resolved.options.size(), 2u);
  const auto values = [](const AdamWOptions& options) {
    return std::vector<double>{options.lr, options.beta1, options.beta2, options.eps,
                               options.weight_decay};
  };
  EXPECT_THAT(values(resolved.options[0]), ElementsAre(1, 0.1, 0.2, 0.3, 0));
  EXPECT_THAT(values(resolved.options[1]), ElementsAre(2, 0.5, 0.6, 0.7, 0.4));
}

}  // namespace
}  // namespace fsdp
