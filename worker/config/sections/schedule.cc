#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {

std::vector<ConfigKey> ScheduleKeys() {
  using enum ValueKind;
  return {
      {"schedule.kind", kString, "\"constant\"", "\"constant\", \"linear\" or \"cosine\"",
       "course of the learning rate after warm-up",
       [](const Json& value) {
         return IsOneOf(value, {"constant", "linear", "cosine"});
       }},
      {"schedule.warmup_steps", kInteger, "0", "an integer >= 0",
       "steps of linear warm-up: lr * (step + 1) / warmup_steps", IsCount<0>},
      {"schedule.min_lr_ratio", kNumber, "0.0", "a number from 0 to 1",
       "final learning rate of linear and cosine, as a fraction of lr", IsFraction},
  };
}

}  // namespace fsdprun::worker
