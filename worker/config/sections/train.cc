#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {

std::vector<ConfigKey> TrainKeys() {
  using enum ValueKind;
  return {
      {"train.steps", kInteger, "1000", "an integer >= 0", "optimizer steps of the whole run",
       IsCount<0>},
      {"train.micro_batch_size", kInteger, "1", "an integer >= 1",
       "windows per rank in one forward", IsCount<1>},
      {"train.grad_accumulation", kInteger, "1", "an integer >= 1",
       "forwards per rank and optimizer step", IsCount<1>},
      {"train.sync_each_micro_batch", kBoolean, "true", "true or false",
       "reduce the gradients after each forward of train.grad_accumulation, so that a rank keeps a "
       "shard of their sum; false: after the last one only, with less communication and whole "
       "gradients kept in between",
       nullptr},
      {"train.max_grad_norm", kNumber, "1.0", "a number from 0 to 3.4e38",
       "clip the global gradient norm to this; 0: never", IsNotNegative},
      {"train.activation_checkpointing", kBoolean, "false", "true or false",
       "recompute each block in backward instead of keeping its activations", nullptr},
      {"train.eval_every", kInteger, "0", "an integer >= 0",
       "steps between evaluations on data.valid; 0: never (then also not at the end)", IsCount<0>},
      {"train.eval_batches", kInteger, "0", "an integer >= 0",
       "micro batches per rank in one evaluation; 0: all of data.valid", IsCount<0>},
  };
}

}  // namespace fsdprun::worker
