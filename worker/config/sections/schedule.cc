#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {

std::vector<ConfigKey> ScheduleKeys() {
  using enum ValueKind;
  return {
      {"schedule.kind", kString, "\"constant\"", "\"constant\", \"linear\", \"cosine\" or \"wsd\"",
       "course of the learning rate after warm-up; wsd: constant, and a decay at the end",
       [](const Json& value) {
         return IsOneOf(value, {"constant", "linear", "cosine", "wsd"});
       }},
      {"schedule.warmup_steps", kInteger, "0", "an integer >= 0",
       "steps of linear warm-up: lr * (step + 1) / warmup_steps", IsCount<0>},
      {"schedule.min_lr_ratio", kNumber, "0.0", "a number from 0 to 1",
       "final learning rate of linear, cosine and wsd, as a fraction of lr", IsFraction},
      {"schedule.decay_steps", kInteger, "0", "an integer >= 0",
       "steps of wsd's decay, the last ones of train.steps; 0: schedule.decay_fraction says it",
       IsCount<0>},
      {"schedule.decay_fraction", kNumber, "0.1", "a number from 0 to 1",
       "part of train.steps that is wsd's decay, rounded to whole steps", IsFraction},
      {"schedule.decay_shape", kString, "\"linear\"", "\"linear\", \"cosine\" or \"1-sqrt\"",
       "of wsd's decay, with p from 0 to 1 over its steps; linear: 1 - p; cosine: (1 + cos(pi p)) "
       "/ 2; 1-sqrt: 1 - sqrt(p)",
       [](const Json& value) {
         return IsOneOf(value, {"linear", "cosine", "1-sqrt"});
       }},
  };
}

}  // namespace fsdprun::worker
