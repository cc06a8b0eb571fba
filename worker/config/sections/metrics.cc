#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {

std::vector<ConfigKey> MetricsKeys() {
  using enum ValueKind;
  return {
      {"metrics.jsonl", kString, "\"\"", "a path, or \"\" for no file",
       "one JSON record per step and evaluation", nullptr},
      {"metrics.tensorboard", kString, "\"\"",
       "\"\" (TensorBoard files are not supported; use metrics.jsonl)", "TensorBoard directory",
       [](const Json& value) { return IsOneOf(value, {""}); }},
      {"metrics.every_steps", kInteger, "1", "an integer >= 0",
       "steps between metrics records and progress lines; 0: never", IsCount<0>},
  };
}

}  // namespace fsdprun::worker
