#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {
namespace {

bool IsPeakFlops(const Json& value) { return value == "auto" || IsNotNegative(value); }

bool AreTraceSteps(const Json& value) {
  return value.size() == 2 && IsCount<1>(value[0]) && IsCount<1>(value[1]) &&
         value[0].get<int64_t>() <= value[1].get<int64_t>();
}

}  // namespace

std::vector<ConfigKey> MetricsKeys() {
  using enum ValueKind;
  return {
      {"metrics.jsonl", kString, "\"\"", "a path, or \"\" for no file",
       "one JSON record per step and evaluation", nullptr},
      {"metrics.tensorboard", kString, "\"\"", "a path, or \"\" for no files",
       "directory for TensorBoard, with a file of curves for each start of the run", nullptr},
      {"metrics.every_steps", kInteger, "1", "an integer >= 0",
       "steps between metrics records and progress lines; 0: never", IsCount<0>},
      {"metrics.peak_flops", kNumberOrAuto, "\"auto\"", "\"auto\" or a number from 0 to 3.4e38",
       "what one device can do at most, in operations per second, of which mfu is a part; auto: as "
       "the data sheet of a known GPU says, for bfloat16; 0: not known",
       IsPeakFlops},
      {"metrics.trace_dir", kString, "\"\"", "a path, or \"\" for no trace",
       "directory for a timeline of all ranks, in the format of Chrome's traces (Perfetto reads "
       "it)",
       nullptr},
      {"metrics.trace_steps", kIntegerList, "[3, 4]", "a list of two integers from 1 on, in order",
       "first and last step of the timeline, counted from where this start begins: 1 is the first "
       "step that it does",
       AreTraceSteps},
  };
}

}  // namespace fsdprun::worker
