#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {
namespace {

bool IsClaimTimeout(const Json& value) {
  return value.get<double>() >= 0.01 && value.get<double>() <= 300;
}

}  // namespace

std::vector<ConfigKey> CheckpointKeys() {
  using enum ValueKind;
  return {
      {"checkpoint.dir", kString, "\"\"", "a path, or \"\" for no checkpoints",
       "directory of the run's checkpoints", nullptr},
      {"checkpoint.every_steps", kInteger, "0", "an integer >= 0",
       "steps between checkpoints; 0: none for steps, only for time and at the end", IsCount<0>},
      {"checkpoint.every_minutes", kNumber, "30", "a number from 0 to 3.4e38",
       "minutes from one checkpoint's begin to the next one's, if none is meanwhile; 0: however "
       "long it takes",
       IsNotNegative},
      {"checkpoint.keep", kInteger, "2", "an integer >= 0",
       "newest checkpoints of the run that are kept; 0: all; other runs' and other programs' are "
       "neither counted nor removed",
       IsCount<0>},
      {"checkpoint.keep_every", kInteger, "0", "an integer >= 0",
       "checkpoints of steps that this divides are kept for ever, besides those of keep; 0: none",
       IsCount<0>},
      {"checkpoint.async", kBoolean, "true", "true or false",
       "write periodic checkpoints beside the training, which waits for copies in memory only, as "
       "large as the state; false: the next step waits for the files",
       nullptr},
      {"checkpoint.on_failure", kString, "\"warn\"", "\"warn\" or \"stop\"",
       "what follows a periodic checkpoint that could not be written; warn: training goes on and "
       "tries again at the next period; stop: it ends. The last one must succeed in any case",
       [](const Json& value) {
         return IsOneOf(value, {"warn", "stop"});
       }},
      {"checkpoint.resume", kString, "\"auto\"", "\"auto\", \"none\" or a path",
       "auto: newest good checkpoint in dir, if any; none: from the start; a path: that one",
       IsNotEmpty},
      {"checkpoint.takeover", kBoolean, "false", "true or false",
       "take dir from another job that uses it, which then fails, instead of refusing to start",
       nullptr},
      {"checkpoint.claim_timeout_seconds", kNumber, "30", "a number from 0.01 to 300",
       "a job that has shown no life for so long no longer uses dir; the same for all jobs on it",
       IsClaimTimeout},
  };
}

}  // namespace fsdprun::worker
