#include "formats/models/lora.h"
#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {
namespace {

bool IsRank(const Json& value) { return IsCount<0>(value) && value.get<int64_t>() <= kMaxLoraRank; }

bool IsAlpha(const Json& value) { return IsPositive(value) && IsNotNegative(value); }

}  // namespace

std::vector<ConfigKey> LoraKeys() {
  using enum ValueKind;
  return {
      {"lora.rank", kInteger, "0", "an integer from 0 to 65536",
       "of the adapters (LoRA) that are trained instead of the model's weights: B A x times alpha "
       "/ "
       "rank is added to what a linear layer makes of x; 0: the weights themselves are trained",
       IsRank},
      {"lora.alpha", kNumber, "16.0", "a number > 0, up to 3.4e38", "as PEFT's lora_alpha",
       IsAlpha},
      {"lora.targets", kNamesOrAllLinear, "\"all-linear\"", "\"all-linear\" or a list of names",
       "linear layers that get an adapter, by the ends of their names: [\"q_proj\", \"v_proj\"]; "
       "all-linear: all in the model's blocks",
       IsNotEmpty},
  };
}

}  // namespace fsdprun::worker
