#include "worker/run/sampling.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "worker/data/token_stream.h"
#include "worker/run/run_record.h"
#include "worker/run/run_state.h"
#include "worker/world/world.h"

namespace fsdprun::worker {
namespace {

/// Samples the next token from the logits of the last position; only byte tokens.
int64_t Draw(const at::Tensor& logits, double temperature, const at::Generator& generator) {
  const at::Tensor bytes = logits.slice(0, 0, kByteTokens).to(at::kCPU, at::kDouble);
  if (temperature == 0) {
    return bytes.argmax().item<int64_t>();
  }
  return at::multinomial(at::softmax(bytes / temperature, 0), 1, /*replacement=*/false, generator)
      .item<int64_t>();
}

/// Samples of another model than the one that was trained would look like a bad training.
void WarnOfAnotherModel(const std::string& training_state, const LlamaConfig& llama,
                        bool is_first) {
  const Json saved = ParseStrictJson(training_state, "training state");
  if (!is_first || !HasRunRecord(saved)) {
    return;
  }
  const RunRecord now{DescribeLlama(llama), Json::object()};
  for (const RunChange& change : CompareRuns(ParseRunRecord(saved), now)) {
    std::fprintf(stderr, "warning: %s\n", change.text.c_str());
  }
}

struct Sampled {
  World world;
  ShardedModel model;
};

Sampled LoadModel(const TrainConfig& config, const std::string& path) {
  const LlamaConfig llama = ReadLlamaConfig(config.model.config);
  if (llama.vocab_size < kByteTokens) {
    throw ConfigError(config.model.config + ": vocab_size = " + std::to_string(llama.vocab_size) +
                      ": expected at least 256 for data.tokenizer \"byte\"");
  }
  Sampled sampled{JoinRanks(config.parallel), {}};
  ArrangeRanks(config.parallel.dp_replicate, sampled.world);
  sampled.model = ShardModel(config, llama, sampled.world);
  const checkpoint::Group group{sampled.world.group, sampled.world.device, nullptr};
  const checkpoint::Candidate candidate = checkpoint::FindAt(path, group);
  checkpoint::State state = WeightTensors(sampled.model);
  checkpoint::LoadOptions options;
  options.weights_only = true;
  checkpoint::Load(candidate, state, group, options);
  WarnOfAnotherModel(state.training_state_json, llama, sampled.world.rank() == 0);
  return sampled;
}

}  // namespace

void Sample(const TrainConfig& config, const SampleRequest& request,
            const std::function<void(std::string_view)>& write) {
  const at::NoGradGuard no_grad;
  Sampled sampled = LoadModel(config, request.checkpoint);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(request.seed);
  write(request.prompt);
  std::vector<int64_t> tokens;
  for (const char byte : request.prompt) {
    tokens.push_back(static_cast<unsigned char>(byte));
  }
  if (tokens.empty()) {
    tokens.push_back('\n');
  }
  for (int64_t i = 0; i < request.bytes; ++i) {
    const auto length = std::min<int64_t>(static_cast<int64_t>(tokens.size()), config.data.seq_len);
    const at::Tensor context =
        at::tensor(at::ArrayRef<int64_t>(tokens).slice(tokens.size() - static_cast<size_t>(length)))
            .view({1, length})
            .to(sampled.world.device);
    const at::Tensor logits = sampled.model.module(context).select(0, 0).select(0, length - 1);
    tokens.push_back(Draw(logits, request.temperature, generator));
    const char byte = static_cast<char>(tokens.back());
    write(std::string_view(&byte, 1));
  }
}

}  // namespace fsdprun::worker
