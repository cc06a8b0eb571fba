#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {

std::vector<ConfigKey> DataKeys() {
  using enum ValueKind;
  return {
      {"data.train", kStringList, "", "a list of at least one path",
       "text files, read as one stream in this order", IsNotEmpty},
      {"data.valid", kStringList, "[]", "a list of paths", "text files for evaluation", nullptr},
      {"data.format", kString, "\"text\"", "\"text\"", "file format",
       [](const Json& value) { return IsOneOf(value, {"text"}); }},
      {"data.tokenizer", kString, "\"byte\"", "\"byte\"", "one token (0..255) per byte",
       [](const Json& value) { return IsOneOf(value, {"byte"}); }},
      {"data.seq_len", kInteger, "256", "an integer >= 1", "tokens per window", IsCount<1>},
      {"data.shuffle", kBoolean, "true", "true or false",
       "permute the windows of every epoch as DistributedSampler does", nullptr},
      {"data.seed", kInteger, "0", "an integer from 0 to 2^63-1", "seed of the permutation",
       IsSeed},
      {"data.on_change", kString, "\"refuse\"", "\"refuse\" or \"warn\"",
       "resuming with another text or order than the checkpoint's, so that the position is lost; "
       "warn: continue after as many tokens of the epoch",
       [](const Json& value) {
         return IsOneOf(value, {"refuse", "warn"});
       }},
  };
}

}  // namespace fsdprun::worker
