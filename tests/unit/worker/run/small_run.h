#pragma once

#include <chrono>
#include <memory>

#include "formats/models/decoder/parse_decoder.h"
#include "worker/config/config.h"
#include "worker/config/config_schema.h"
#include "worker/contract/control_channel.h"
#include "worker/metrics/run_report.h"
#include "worker/metrics/vitals.h"
#include "worker/run/run_context.h"
#include "worker/run/run_optimizer.h"
#include "worker/run/run_state.h"
#include "worker/run/stop_listener.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

inline ModelConfig SmallLlama() {
  DecoderConfig llama;
  llama.vocab_size = 16;
  llama.hidden_size = 8;
  llama.intermediate_size = 12;
  llama.num_hidden_layers = 1;
  llama.num_attention_heads = llama.num_key_value_heads = 2;
  llama.head_dim = 4;
  return DescribeDecoder("llama", llama);
}

/// What a run of one rank has when it begins.
struct SmallRun {
  /// `changes`: sections of keys.
  explicit SmallRun(const ModelConfig& model = SmallLlama(), const Json& changes = Json::object()) {
    Json resolved = DefaultConfig();
    resolved["model"]["config"] = "unused";
    resolved["data"]["train"] = {"unused"};
    resolved["optimizer"]["no_decay"] = {"*norm.weight"};
    MergeConfig(resolved, changes, "changes");
    config = ParseConfig(resolved);
    world = JoinRanks(config.parallel);
    ArrangeRanks(config.parallel.dp_replicate, world);
    state.model = ShardModel(config, model, world);
    FillWeights(config, state.model);
    state.optimizer = MakeOptimizer(state.model, config.optimizer);
    state.windows = 10;
    state.data = {.tokens = 100, .digest = "00", .seq_len = config.data.seq_len};
    state.record = RecordRun(model, resolved, world.size());
  }
  RunContext context() { return {config, world, channel, vitals, report, stop}; }
  checkpoint::Group group() const { return {world.group, world.device, nullptr, nullptr}; }

  TrainConfig config;
  World world;
  RunState state;
  ControlChannel channel{-1};
  Vitals vitals{nullptr, [] { return std::chrono::nanoseconds(0); }};
  RunReport report{{.view = ProgressView::kPlain, .is_first_rank = true}, channel};
  StopListener stop{channel};
};

}  // namespace fsdprun::worker
