#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {

namespace {

/// What a step is.
std::vector<ConfigKey> StepKeys() {
  using enum ValueKind;
  return {
      {"train.steps", kInteger, "1000", "an integer >= 0", "optimizer steps of the whole run",
       IsCount<0>},
      {"train.micro_batch_size", kInteger, "1", "an integer >= 1",
       "windows per rank in one forward", IsCount<1>},
      {"train.grad_accumulation", kInteger, "1", "an integer >= 1",
       "forwards per rank and optimizer step", IsCount<1>},
      {"train.global_batch_size", kInteger, "0", "an integer >= 0",
       "windows in an optimizer step of all ranks together, whatever their number; the number of "
       "forwards follows from it and train.micro_batch_size; 0: from train.grad_accumulation and "
       "the number of ranks",
       IsCount<0>},
      {"train.sync_each_micro_batch", kBoolean, "true", "true or false",
       "reduce the gradients after each forward of train.grad_accumulation, so that a rank keeps a "
       "shard of their sum; false: after the last one only, with less communication and whole "
       "gradients kept in between",
       nullptr},
      {"train.max_grad_norm", kNumber, "1.0", "a number from 0 to 3.4e38",
       "clip the global gradient norm to this; 0: never", IsNotNegative},
      {"train.activation_checkpointing", kBoolean, "false", "true or false",
       "recompute each block in backward instead of keeping its activations", nullptr},
      {"train.step_graph", kBoolean, "false", "true or false",
       "on GPUs replay each step as a CUDA graph, captured after the first three, which saves the "
       "host the time to launch its kernels; takes more memory; optimizer.name = adamw only",
       nullptr},
      {"train.freeze", kStringList, "[]", "a list of name patterns",
       "parameters that keep their values; * stands for any text, e.g. \"*embed_tokens*\"; with "
       "lora all but the adapters do",
       nullptr},
  };
}

/// What follows one that is bad, or has no memory.
std::vector<ConfigKey> FaultKeys() {
  using enum ValueKind;
  return {
      {"train.on_nonfinite", kString, "\"stop\"", "\"stop\", \"skip\" or \"rollback\"",
       "what follows a loss or gradient norm that is infinite or NaN, which no weight is updated "
       "with; stop: training ends; skip: it goes on with the next step; rollback: it goes on from "
       "the newest checkpoint, without the data of this step",
       [](const Json& value) {
         return IsOneOf(value, {"stop", "skip", "rollback"});
       }},
      {"train.on_spike", kString, "\"off\"", "\"off\", \"stop\", \"skip\" or \"rollback\"",
       "the same for a loss or gradient norm that is far above that of the steps before; off: it "
       "is not looked for",
       [](const Json& value) {
         return IsOneOf(value, {"off", "stop", "skip", "rollback"});
       }},
      {"train.spike_window", kInteger, "100", "an integer from 2 to 100000",
       "good steps whose mean and standard deviation a spike is measured by; before so many there "
       "is none",
       [](const Json& value) { return IsCount<2>(value) && value.get<int64_t>() <= 100'000; }},
      {"train.spike_deviations", kNumber, "6.0", "a number > 0",
       "standard deviations above the mean at which a spike begins; a deviation counts as at least "
       "1 % of the mean",
       IsPositive},
      {"train.max_bad_steps", kInteger, "3", "an integer >= 0",
       "steps in a row that may be skipped; after one more training ends", IsCount<0>},
      {"train.max_rollbacks", kInteger, "3", "an integer >= 0",
       "how often a start goes back to a checkpoint; at one more training ends", IsCount<0>},
      {"train.on_out_of_memory", kString, "\"stop\"", "\"stop\" or \"shrink\"",
       "what follows a forward or backward without memory for it; stop: the run fails; shrink: it "
       "notes in checkpoint.dir that half as many windows are the most in a forward, and its "
       "launcher starts it again, with the same batches in more forwards",
       [](const Json& value) {
         return IsOneOf(value, {"stop", "shrink"});
       }},
  };
}

}  // namespace

std::vector<ConfigKey> TrainKeys() {
  using enum ValueKind;
  std::vector<ConfigKey> keys = StepKeys();
  const std::vector<ConfigKey> faults = FaultKeys();
  keys.insert(keys.end(), faults.begin(), faults.end());
  const std::vector<ConfigKey> others = {
      {"train.deterministic", kBoolean, "false", "true or false",
       "only algorithms that give the same bits each time, and an error where there is none",
       nullptr},
      {"train.eval_every", kInteger, "0", "an integer >= 0",
       "steps between evaluations on data.valid; 0: never (then also not at the end)", IsCount<0>},
      {"train.eval_batches", kInteger, "0", "an integer >= 0",
       "windows per rank in one evaluation, in units of train.micro_batch_size; 0: all of "
       "data.valid",
       IsCount<0>},
  };
  keys.insert(keys.end(), others.begin(), others.end());
  return keys;
}

}  // namespace fsdprun::worker
