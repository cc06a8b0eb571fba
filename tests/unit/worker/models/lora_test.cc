// Adapters beside layers whose weights have the product added.

#include "worker/models/lora.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/models/family_documents.h"
#include "worker/models/causal_lm.h"

namespace fsdprun::worker {
namespace {

using Named = std::map<std::string, at::Tensor>;

constexpr double kScale = 2.0;  // alpha / rank

LoraConfig Lora4(std::vector<std::string> targets) { return {4, 4 * kScale, std::move(targets)}; }

Named ParametersOf(const CausalLm& model) {
  Named named;
  for (const auto& parameter : model.named_parameters()) {
    named[parameter.key()] = parameter.value();
  }
  return named;
}

/// With adapters whose B is not zero, as after some steps.
std::shared_ptr<CausalLm> Adapted(const Json& document, const LoraConfig& lora,
                                  Kernels kernels = Kernels::kReference) {
  auto model = MakeInitialisedModel(document, kernels);
  AddAdapters(lora, LayerFactory{.kernels = kernels}, *model);
  const at::NoGradGuard no_grad;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  for (auto& [name, parameter] : ParametersOf(*model)) {
    if (IsAdapterWeight(name)) {
      parameter.normal_(0.0, 0.1, generator);
    }
  }
  return model;
}

/// The same function without adapters: their products are in the weights, which are trained.
std::shared_ptr<CausalLm> Merged(const Json& document, const CausalLm& adapted) {
  auto model = MakeInitialisedModel(document, adapted.kernels());
  const at::NoGradGuard no_grad;
  const Named adapters = ParametersOf(adapted);
  for (auto& [name, parameter] : ParametersOf(*model)) {
    const std::string layer = name.substr(0, name.rfind('.'));
    const auto a = adapters.find(layer + ".lora_A.weight");
    if (a != adapters.end() && name.ends_with(".weight")) {
      const at::Tensor product = at::mm(adapters.at(layer + ".lora_B.weight"), a->second) * kScale;
      parameter.add_(HasTransposedLayers(model->config()) ? product.t() : product);
    }
  }
  return model;
}

at::Tensor Tokens() { return at::arange(24, at::kLong).remainder(61).view({2, 12}); }

/// How many segments of the graph behind `loss` are computed again in backward.
size_t CheckpointsBehind(const at::Tensor& loss) {
  std::vector<torch::autograd::Node*> open = {loss.grad_fn().get()};
  std::set<torch::autograd::Node*> seen(open.begin(), open.end());
  size_t count = 0;
  while (!open.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    count += node->name() == "FsdpActivationCheckpoint" ? 1 : 0;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second) {
        open.push_back(edge.function.get());
      }
    }
  }
  return count;
}

class LoraTest : public testing::TestWithParam<const char*> {
 protected:
  static Json Document(bool is_tied) {
    Json document = DocumentOf(GetParam());
    document["tie_word_embeddings"] = is_tied;
    return document;
  }
};

INSTANTIATE_TEST_SUITE_P(Families, LoraTest, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LoraTest, ComputesWhatTheMergedWeightsDo) {
  for (const bool is_tied : {false, true}) {
    for (const Kernels kernels : {Kernels::kReference, Kernels::kFused}) {
      const auto adapted = Adapted(Document(is_tied), Lora4({kAllLinear}), kernels);
      const auto merged = Merged(Document(is_tied), *adapted);
      const auto base = MakeInitialisedModel(Document(is_tied), kernels);
      const at::NoGradGuard no_grad;
      const at::Tensor expected = merged->forward(Tokens());
      EXPECT_TRUE(adapted->forward(Tokens()).allclose(expected, 1e-4, 1e-5));
      EXPECT_FALSE(base->forward(Tokens()).allclose(expected, 1e-2, 1e-3));
      EXPECT_NEAR(adapted->Loss(Tokens(), Tokens()).item<double>(),
                  merged->Loss(Tokens(), Tokens()).item<double>(), 1e-5);
    }
  }
}

TEST_P(LoraTest, GradientsAreThoseOfTheProduct) {
  // With G the gradient of W + scale B A: scale G A^T of B, scale B^T G of A.
  for (const bool recomputes : {false, true}) {
    for (const Kernels kernels : {Kernels::kReference, Kernels::kFused}) {
      const Json document = Document(/*is_tied=*/true);
      const auto adapted = Adapted(document, Lora4({kAllLinear}), kernels);
      const auto merged = Merged(document, *adapted);
      if (recomputes) {
        adapted->CheckpointActivations();
      }
      adapted->Loss(Tokens(), Tokens()).backward();
      merged->Loss(Tokens(), Tokens()).backward();
      const Named ours = ParametersOf(*adapted), whole = ParametersOf(*merged);
      for (const std::string& layer : LinearLayers(adapted->config())) {
        at::Tensor gradient = whole.at(layer + ".weight").grad();
        gradient = HasTransposedLayers(adapted->config()) ? gradient.t() : gradient;
        const at::Tensor a = ours.at(layer + ".lora_A.weight"),
                         b = ours.at(layer + ".lora_B.weight");
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(b.grad().allclose(at::mm(gradient, a.t()) * kScale, 1e-3, 1e-6)) << layer;
        EXPECT_TRUE(a.grad().allclose(at::mm(b.t(), gradient) * kScale, 1e-3, 1e-6)) << layer;
      }
    }
  }
}

TEST_P(LoraTest, EachBlockWithAnAdapterIsCheckpointed) {
  const auto model = Adapted(Document(/*is_tied=*/false), Lora4({kAllLinear}));
  model->CheckpointActivations();
  EXPECT_EQ(CheckpointsBehind(model->Loss(Tokens(), Tokens())), 2u);  // of two blocks
  // The first block is frozen whole: it keeps nothing, and has nothing to be computed again.
  const auto last =
      Adapted(Document(/*is_tied=*/false),
              Lora4({std::string(GetParam()) == "gpt2" ? "1.attn.c_attn" : "1.self_attn.v_proj"}));
  last->CheckpointActivations();
  EXPECT_EQ(CheckpointsBehind(last->Loss(Tokens(), Tokens())), 1u);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(model->Loss(Tokens(), Tokens()).requires_grad());
}

TEST_P(LoraTest, TheBaseHasNoGradients) {
  const auto model = Adapted(Document(/*is_tied=*/false), Lora4({kAllLinear}));
  model->Loss(Tokens(), Tokens()).backward();
  size_t adapters = 0;
  for (const auto& [name, parameter] : ParametersOf(*model)) {
    EXPECT_EQ(parameter.requires_grad(), IsAdapterWeight(name)) << name;
    EXPECT_EQ(parameter.grad().defined(), IsAdapterWeight(name)) << name;
    adapters += IsAdapterWeight(name) ? 1 : 0;
  }
  EXPECT_EQ(adapters, AdapterWeights(model->config(), Lora4({kAllLinear})).size());
}

TEST_P(LoraTest, WeightsAreThoseThatAreDescribed) {
  const LoraConfig lora = Lora4({kAllLinear});
  const auto model = Adapted(Document(/*is_tied=*/true), lora);
  std::vector<std::string> names;
  const Named parameters = ParametersOf(*model);
  for (const std::string& name : model->named_parameters().keys()) {
    if (IsAdapterWeight(name)) {
      names.push_back(name);
    }
  }
  std::vector<std::string> described;
  for (const WeightShape& weight : AdapterWeights(model->config(), lora)) {
    described.push_back(weight.name);
    EXPECT_EQ(parameters.at(weight.name).sizes().vec(), weight.shape) << weight.name;
  }
  EXPECT_EQ(names, described);
}

TEST_P(LoraTest, OnlyTheTargetsHaveOne) {
  const std::string target =
      std::string(GetParam()) == "gpt2" ? "1.attn.c_attn" : "1.self_attn.v_proj";
  const auto model = Adapted(Document(/*is_tied=*/true), Lora4({target}));
  std::vector<std::string> names;
  for (const std::string& name : model->named_parameters().keys()) {
    if (IsAdapterWeight(name)) {
      names.push_back(name);
    }
  }
  ASSERT_EQ(names.size(), 2u);
  EXPECT_THAT(names[0], testing::HasSubstr(target + ".lora_A.weight"));
  EXPECT_THROW(Adapted(Document(true), Lora4({"nothing"})), ConfigError);
}

TEST(LoraInitTest, BeginsWithTheBase) {
  const Json document = DocumentOf("llama");
  auto model = MakeInitialisedModel(document);
  AddAdapters(Lora4({kAllLinear}), LayerFactory{}, *model);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  for (auto& [name, parameter] : ParametersOf(*model)) {
    if (IsAdapterWeight(name)) {
      InitAdapterWeight(name, parameter, generator);
    }
  }
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(model->forward(Tokens()).equal(MakeInitialisedModel(document)->forward(Tokens())));
}

TEST(LoraInitTest, AIsUniformWithinTheBoundOfItsInputs) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const at::Tensor a = at::empty({50, 400}), b = at::ones({400, 50});
  InitAdapterWeight("layer.lora_A.weight", a, generator);
  InitAdapterWeight("layer.lora_B.weight", b, generator);
  const double bound = 1 / std::sqrt(400.0);
  EXPECT_LE(a.abs().max().item<double>(), bound * (1 + 1e-6));
  EXPECT_GT(a.abs().max().item<double>(), 0.99 * bound);
  EXPECT_NEAR(a.mean().item<double>(), 0, 0.02 * bound);
  EXPECT_NEAR(a.std().item<double>(), bound / std::sqrt(3.0), 0.02 * bound);
  EXPECT_TRUE(b.eq(0).all().item<bool>());
}

TEST(LoraTextTest, ContinuesWithAdapters) {
  const auto model = Adapted(DocumentOf("llama"), Lora4({kAllLinear}));
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = Tokens().slice(0, 0, 1);
  KeyValueCache cache = model->MakeCache(12);
  model->Continue(tokens.slice(1, 0, 11), cache);
  EXPECT_TRUE(model->Continue(tokens.slice(1, 11, 12), cache)
                  .allclose(model->forward(tokens).select(1, 11), 1e-4, 1e-5));
}

}  // namespace
}  // namespace fsdprun::worker
