#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/strict_json.h"
#include "formats/models/lora.h"
#include "worker/config/schedule.h"

namespace fsdprun::worker {

/// The configuration of a run, resolved and valid. Keys and meanings: sections/.
struct TrainConfig {
  struct Model {
    std::string config;
    std::string weights;
    uint64_t seed = 0;
    std::string on_change;
    bool has_fused_kernels = false;
  } model;
  LoraConfig lora;
  struct Data {
    std::vector<std::string> train;
    std::vector<std::string> valid;
    int64_t seq_len = 0;
    bool shuffle = false;
    uint64_t seed = 0;
    std::string on_change;
    std::string format;
    std::string dtype;
    std::string sampler;
    bool drop_last = false;
    std::string documents;
    /// -1: as the files say.
    int64_t document_end = -1;
    struct Source {
      std::vector<std::string> files;
      double weight = 0;
    };
    std::vector<Source> mixture;
  } data;
  struct Train {
    int64_t steps = 0;
    int64_t micro_batch_size = 0;
    int64_t grad_accumulation = 0;
    /// 0: grad_accumulation says it.
    int64_t global_batch_size = 0;
    bool sync_each_micro_batch = false;
    double max_grad_norm = 0;
    bool activation_checkpointing = false;
    bool step_graph = false;
    std::vector<std::string> freeze;
    int64_t eval_every = 0;
    int64_t eval_batches = 0;
    std::string on_nonfinite = "stop";
    std::string on_spike = "off";
    int64_t spike_window = 0;
    double spike_deviations = 0;
    int64_t max_bad_steps = 0;
    int64_t max_rollbacks = 0;
    bool deterministic = false;
    std::string on_out_of_memory = "stop";
  } train;
  struct Optimizer {
    std::string name = "adamw";
    double lr = 0;
    double beta1 = 0;
    double beta2 = 0;
    double eps = 0;
    double weight_decay = 0;
    std::vector<std::string> no_decay;
    // Of sgd and muon.
    double momentum = 0;
    double dampening = 0;
    bool nesterov = false;
    // Of muon.
    int64_t ns_steps = 0;
    std::string adjust_lr_fn;
    double adamw_lr = 0;
    // Of adamw, also of what muon leaves to it.
    bool fused = false;
  } optimizer;
  Schedule schedule;
  struct Parallel {
    std::string backend;
    std::string strategy;
    int64_t dp_replicate = 1;
    int64_t timeout_seconds = 600;
  } parallel;
  struct Precision {
    std::string param;
    std::string reduce;
    std::string output;
  } precision;
  struct Checkpoint {
    std::string dir;
    int64_t every_steps = 0;
    /// 0: never.
    double every_minutes = 0;
    int64_t keep = 0;
    int64_t keep_every = 0;
    bool is_async = false;
    std::string on_failure;
    std::string resume;
    bool takeover = false;
    double claim_timeout_seconds = 0;
  } checkpoint;
  struct Metrics {
    std::string jsonl;
    std::string tensorboard;
    int64_t every_steps = 0;
    /// Of one device; 0: not known. Absent: to be found out.
    std::optional<double> peak_flops;
    std::string trace_dir;
    int64_t trace_first = 0;
    int64_t trace_last = 0;
  } metrics;
};

/// Defaults, then the file (empty: none), then the overrides in order; validated.
/// Errors: ConfigError, one line.
Json ResolveConfig(const std::string& path, const std::vector<std::string>& overrides);

/// The value of model.config and data.train where no files are named.
inline constexpr char kModelOfCheckpoint[] = "as the checkpoint says";

/// Of who uses a model that was trained with `trained`: the defaults, then what of it has to do
/// with the use (data.seq_len, precision, lora and its base), then the overrides; validated. How a
/// model was sharded says nothing about how it is used. `source` names `trained` in errors. Errors:
/// as above.
Json ResolveConfigForUse(const Json& trained, const std::string& source,
                         const std::vector<std::string>& overrides);

/// Typed view of a resolved configuration. Precondition: ValidateConfig accepts it.
TrainConfig ParseConfig(const Json& resolved);

/// Whether a run that goes on after `done` steps (absent: it starts anew) will save a checkpoint of
/// `step`, as far as that is known before: for steps and at the end, if nothing stops it. Which
/// steps checkpoint.every_minutes and requests come to, nobody knows; one that cannot be saved then
/// is told of and left out.
bool WillSave(const TrainConfig& config, std::optional<int64_t> done, int64_t step);

/// Whether `name` matches `pattern`, in which * matches any text, including none.
bool MatchesPattern(std::string_view name, std::string_view pattern);

}  // namespace fsdprun::worker
