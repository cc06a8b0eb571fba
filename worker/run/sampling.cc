#include "worker/run/sampling.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/config/config.h"
#include "worker/run/frozen_base.h"
#include "worker/run/inputs.h"
#include "worker/run/run_description.h"
#include "worker/run/run_record.h"
#include "worker/run/run_state.h"
#include "worker/run/sample_tokenizer.h"
#include "worker/tokenizers/decode_stream.h"
#include "worker/world/vote.h"
#include "worker/world/world.h"

namespace fsdprun::worker {
namespace {

/// What is sampled, and how.
struct Plan {
  TrainConfig config;
  ModelConfig model;
};

/// Samples the next token from the logits of the last position; only what the tokenizer knows.
int64_t Draw(const at::Tensor& logits, int64_t vocab_size, double temperature,
             const at::Generator& generator) {
  const at::Tensor known = logits.slice(0, 0, vocab_size).to(at::kCPU, at::kDouble);
  if (temperature == 0) {
    return known.argmax().item<int64_t>();
  }
  return at::multinomial(at::softmax(known / temperature, 0), 1, /*replacement=*/false, generator)
      .item<int64_t>();
}

/// Samples of another model than the one that was trained would look like a bad training.
void WarnOfAnotherModel(const Json& saved, const ModelConfig& model, bool is_first) {
  if (!is_first || !HasRunRecord(saved)) {
    return;
  }
  const RunRecord now{model.description};
  for (const RunChange& change : CompareRuns(ParseRunRecord(saved), now)) {
    std::fprintf(stderr, "warning: %s\n", change.text.c_str());
  }
}

/// Refuses adapters that the checkpoint has and the configuration does not, or has otherwise;
/// model.on_change allows what can be loaded all the same.
void CheckAdapters(const Json& saved, const Plan& plan, bool is_first) {
  if (!HasRunRecord(saved)) {
    return;
  }
  RunRecord now;
  now.adapters = DescribeAdapters(plan.model, plan.config.lora);
  const RunRecord before = ParseRunRecord(saved);
  for (const std::string& text : CompareAdapters(before, now)) {
    if (plan.config.model.on_change == "refuse" || before.adapters.empty() ||
        now.adapters.empty()) {
      throw ConfigError(text + "; set lora as it was at the checkpoint, or leave out --config");
    }
    if (is_first) {
      std::fprintf(stderr, "warning: %s\n", text.c_str());
    }
  }
}

/// Fills the base of adapters, which their checkpoint does not have. Collective. Errors:
/// ConfigError if it is another one than they were trained on, unless model.on_change allows it.
void FillBase(const TrainConfig& config, const Json& saved, const checkpoint::Group& group,
              const World& world, ShardedModel& model) {
  try {
    FillWeightsOnAll(config, group, model);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string(error.what()) +
                      "; the checkpoint has adapters alone, so name the weights of their base with "
                      "--set model.weights=PATH");
  }
  const std::string digest = DigestOfBase(model, world);
  const RunRecord before = HasRunRecord(saved) ? ParseRunRecord(saved) : RunRecord{};
  const Json trained_on = before.adapters.value(kBaseDigest, Json());
  if (!trained_on.is_string() || trained_on == digest) {
    return;
  }
  const std::string text = "the weights of model.weights = " + Excerpt(Json(config.model.weights)) +
                           " are not those that the adapters were trained on";
  if (config.model.on_change == "refuse") {
    throw ConfigError(text + "; name these with --set model.weights=PATH, or set model.on_change " +
                      "to warn to use them all the same");
  }
  if (world.rank() == 0) {
    std::fprintf(stderr, "warning: %s\n", text.c_str());
  }
}

/// The checkpoint's `train.state`; an empty object if it has none.
Json ReadTrainingState(const checkpoint::Candidate& candidate, const checkpoint::Group& group) {
  checkpoint::State state;
  checkpoint::LoadOptions options;
  options.may_lack_objects = true;
  checkpoint::Load(candidate, state, group, options);
  return ParseStrictJson(state.training_state_json, "training state");
}

Plan CheckedPlan(const Json& resolved, const Json* model_config, const std::string& source) {
  Plan plan{ParseConfig(resolved), {}};
  plan.model = model_config == nullptr ? ReadModelConfig(plan.config.model.config)
                                       : ParseModelConfig(*model_config, source);
  CheckModel(plan.config, plan.model, source);
  return plan;
}

/// By the configuration that was given.
std::optional<Plan> PlanOfConfig(const CommandLine& line) {
  if (line.config.empty()) {
    return std::nullopt;
  }
  const Json resolved = ResolveConfig(line.config, line.overrides);
  return CheckedPlan(resolved, nullptr, resolved.at("model").at("config"));
}

/// Nobody has said how long the windows are of what another program has trained: not longer than
/// the model takes.
void LimitWindows(const RunDescription& description, const ModelConfig& model,
                  const CommandLine& line, Json& resolved) {
  const bool is_given = std::any_of(
      line.overrides.begin(), line.overrides.end(),
      [](const std::string& assignment) { return assignment.starts_with("data.seq_len="); });
  if (description.config.empty() && !is_given) {
    Json& length = resolved.at("data").at("seq_len");
    length = std::min(length.get<int64_t>(), model.max_position_embeddings);
  }
}

/// By what the checkpoint says of itself.
Plan PlanOfCheckpoint(const CommandLine& line, const Json& saved, const std::string& path) {
  const bool is_described = HasRunDescription(saved);
  const RunDescription description = is_described ? ParseRunDescription(saved) : RunDescription{};
  Json resolved = ResolveConfigForUse(description.config, path, line.overrides);
  const std::string model = resolved.at("model").at("config");
  if (model != kModelOfCheckpoint) {
    LimitWindows(description, ReadModelConfig(model), line, resolved);
    return CheckedPlan(resolved, nullptr, model);
  }
  if (!is_described) {
    throw ConfigError(path +
                      " does not say which model it is of, because another program or an older "
                      "fsdp-train has written it; give --config FILE, or --set model.config=PATH "
                      "with the model's config.json");
  }
  const std::string source = path + ": model_config";
  LimitWindows(description, ParseModelConfig(description.model_config, source), line, resolved);
  return CheckedPlan(resolved, &description.model_config, source);
}

struct Sampled {
  World world;
  TrainConfig config;
  ShardedModel model;
  std::unique_ptr<const Tokenizer> tokenizer;
};

Sampled LoadModel(const CommandLine& line) {
  std::optional<Plan> plan = PlanOfConfig(line);
  // The ranks meet before they look at the checkpoint, by what the command line alone says.
  const TrainConfig::Parallel parallel =
      plan ? plan->config.parallel
           : ParseConfig(ResolveConfigForUse(Json::object(), "", line.overrides)).parallel;
  Sampled sampled{JoinRanks(parallel), {}, {}, nullptr};
  ArrangeRanks(parallel.dp_replicate, sampled.world);
  const checkpoint::Group group{sampled.world.group, sampled.world.device, nullptr, nullptr};
  const checkpoint::Candidate candidate = checkpoint::FindAt(line.sample.checkpoint, group);
  const Json saved = ReadTrainingState(candidate, group);
  if (!plan) {
    plan = PlanOfCheckpoint(line, saved, candidate.path);
  }
  WarnOfAnotherModel(saved, plan->model, sampled.world.rank() == 0);
  CheckAdapters(saved, *plan, sampled.world.rank() == 0);
  sampled.tokenizer = SampleTokenizer(line.sample.tokenizer, saved, plan->model.vocab_size);
  sampled.config = plan->config;
  sampled.model = ShardModel(plan->config, plan->model, sampled.world);
  if (sampled.model.has_adapters) {
    FillBase(sampled.config, saved, group, sampled.world, sampled.model);
  }
  checkpoint::State state = WeightTensors(sampled.model);
  checkpoint::LoadOptions options;
  options.may_lack_objects = true;
  checkpoint::Load(candidate, state, group, options);
  return sampled;
}

/// Logits of the token after a sequence that grows. Each token is computed once while all fit into
/// the windows that the model was trained on; then only the last ones are seen, whose positions
/// change with every token, so all of them are computed again.
class NextToken {
 public:
  NextToken(const Sampled& sampled, int64_t longest)
      : sampled_(sampled),
        cache_(sampled.model.module->MakeCache(std::min(longest, sampled.config.data.seq_len))) {}

  /// [vocab_size]. `tokens`: those of the last call, and at least one more.
  at::Tensor Logits(const std::vector<int64_t>& tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    if (count <= cache_.capacity()) {
      return sampled_.model.module
          .call_method(&CausalLm::Continue, Last(tokens, count - cache_.length()), std::ref(cache_))
          .select(0, 0);
    }
    const int64_t length = std::min(count, sampled_.config.data.seq_len);
    return sampled_.model.module(Last(tokens, length)).select(0, 0).select(0, length - 1);
  }

 private:
  /// int64 [1, count].
  at::Tensor Last(const std::vector<int64_t>& tokens, int64_t count) const {
    return at::tensor(
               at::ArrayRef<int64_t>(tokens).slice(tokens.size() - static_cast<size_t>(count)))
        .view({1, count})
        .to(sampled_.world.device);
  }

  const Sampled& sampled_;
  KeyValueCache cache_;
};

/// What the model goes on from: the prompt, or what stands before a document.
std::vector<int64_t> FirstTokens(const std::string& prompt, const Tokenizer& tokenizer) {
  std::vector<uint32_t> ids;
  tokenizer.Encode(prompt, Tokenizer::SpecialTokens::kOmitted, ids);
  if (ids.empty() && tokenizer.document_end()) {
    ids.push_back(*tokenizer.document_end());
  } else if (ids.empty()) {
    tokenizer.Encode("\n", Tokenizer::SpecialTokens::kOmitted, ids);
  }
  if (ids.empty()) {
    throw ConfigError("--prompt: the tokenizer makes nothing of it; give another text");
  }
  return {ids.begin(), ids.end()};
}

}  // namespace

void Sample(const CommandLine& line, const std::function<void(std::string_view)>& write) {
  const at::NoGradGuard no_grad;
  const SampleRequest& request = line.sample;
  Sampled sampled = LoadModel(line);
  const Tokenizer& tokenizer = *sampled.tokenizer;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(request.seed);
  write(request.prompt);
  std::vector<int64_t> tokens = FirstTokens(request.prompt, tokenizer);
  DecodeStream text(tokenizer);
  if (!request.prompt.empty()) {
    // They are written already; what comes next may depend on them.
    for (const int64_t token : tokens) {
      text.Next(static_cast<uint32_t>(token));
    }
  }
  NextToken next(sampled, static_cast<int64_t>(tokens.size()) + request.tokens);
  for (int64_t i = 0; i < request.tokens; ++i) {
    const at::Tensor logits = next.Logits(tokens);
    // Unlike machines may differ in a last bit, and so in the token, of which the ranks must see
    // the same: all of them end with the document, or none.
    const int64_t drawn = Draw(logits, tokenizer.vocab_size(), request.temperature, generator);
    tokens.push_back(NumberOfRank0(sampled.world, drawn));
    if (tokenizer.document_end() == static_cast<uint32_t>(tokens.back())) {
      break;
    }
    write(text.Next(static_cast<uint32_t>(tokens.back())));
  }
  write(text.End());
}

}  // namespace fsdprun::worker
