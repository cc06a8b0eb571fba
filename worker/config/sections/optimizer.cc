#include <algorithm>

#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {
namespace {

bool AreBetas(const Json& value) {
  return value.size() == 2 && std::all_of(value.begin(), value.end(), [](const Json& beta) {
           return beta.get<double>() >= 0 && beta.get<double>() < 1;
         });
}

}  // namespace

std::vector<ConfigKey> OptimizerKeys() {
  using enum ValueKind;
  return {
      {"optimizer.name", kString, "\"adamw\"", "\"adamw\"", "optimizer",
       [](const Json& value) { return IsOneOf(value, {"adamw"}); }},
      {"optimizer.lr", kNumber, "0.001", "a number from 0 to 3.4e38", "peak learning rate",
       IsNotNegative},
      {"optimizer.betas", kBetas, "[0.9, 0.999]", "a list of two numbers in [0, 1)",
       "decay rates of the moment estimates", AreBetas},
      {"optimizer.eps", kNumber, "1e-8", "a number > 0", "added to the denominator", IsPositive},
      {"optimizer.weight_decay", kNumber, "0.01", "a number from 0 to 3.4e38",
       "decoupled weight decay", IsNotNegative},
      {"optimizer.no_decay", kStringList, "[]", "a list of name patterns",
       "parameters without weight decay; * stands for any text, e.g. \"*norm.weight\"", nullptr},
  };
}

}  // namespace fsdprun::worker
