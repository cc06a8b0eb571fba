#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {
namespace {

constexpr std::string_view kDtypes = "\"float32\" or \"bfloat16\"";

}  // namespace

std::vector<ConfigKey> PrecisionKeys() {
  using enum ValueKind;
  return {
      {"precision.param", kString, "\"float32\"", kDtypes,
       "dtype of gathered parameters and compute; the shards stay float32",
       [](const Json& value) {
         return IsOneOf(value, {"float32", "bfloat16"});
       }},
      {"precision.reduce", kString, "\"float32\"", kDtypes, "dtype of gradient reduction",
       [](const Json& value) {
         return IsOneOf(value, {"float32", "bfloat16"});
       }},
      {"precision.output", kString, "\"float32\"", kDtypes, "dtype of the logits",
       [](const Json& value) {
         return IsOneOf(value, {"float32", "bfloat16"});
       }},
  };
}

}  // namespace fsdprun::worker
