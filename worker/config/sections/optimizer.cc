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

bool IsBelowOne(const Json& value) {
  return value == "auto" || (value.get<double>() >= 0 && value.get<double>() < 1);
}

bool IsRateOrAuto(const Json& value) { return value == "auto" || IsNotNegative(value); }

bool IsIterationCount(const Json& value) { return IsCount<1>(value) && value.get<int64_t>() < 100; }

}  // namespace

std::vector<ConfigKey> OptimizerKeys() {
  using enum ValueKind;
  return {
      {"optimizer.name", kString, "\"adamw\"", "\"adamw\", \"sgd\" or \"muon\"",
       "optimizer, as PyTorch's of this name; muon: of the matrices in the model's blocks, and "
       "adamw of the rest",
       [](const Json& value) {
         return IsOneOf(value, {"adamw", "sgd", "muon"});
       }},
      {"optimizer.lr", kNumber, "0.001", "a number from 0 to 3.4e38", "peak learning rate",
       IsNotNegative},
      {"optimizer.betas", kBetas, "[0.9, 0.999]", "a list of two numbers in [0, 1)",
       "decay rates of adamw's moment estimates", AreBetas},
      {"optimizer.eps", kNumber, "1e-8", "a number > 0", "added to adamw's denominator",
       IsPositive},
      {"optimizer.weight_decay", kNumber, "0.01", "a number from 0 to 3.4e38",
       "decoupled weight decay; of sgd: what is added of a weight to its gradient", IsNotNegative},
      {"optimizer.no_decay", kStringList, "[]", "a list of name patterns",
       "parameters without weight decay; * stands for any text, e.g. \"*norm.weight\"", nullptr},
      {"optimizer.momentum", kNumberOrAuto, "\"auto\"", "\"auto\" or a number in [0, 1)",
       "of sgd and muon; auto: 0 for sgd, 0.95 for muon", IsBelowOne},
      {"optimizer.dampening", kNumber, "0.0", "a number from 0 to 1",
       "of sgd's momentum: 1 less this is the part of a gradient that goes into it", IsFraction},
      {"optimizer.nesterov", kBooleanOrAuto, "\"auto\"", "\"auto\", true or false",
       "Nesterov's momentum, of sgd and muon; auto: true for muon only", nullptr},
      {"optimizer.ns_steps", kInteger, "5", "an integer from 1 to 99",
       "iterations of Newton-Schulz in muon", IsIterationCount},
      {"optimizer.adjust_lr_fn", kString, "\"original\"", "\"original\" or \"match_rms_adamw\"",
       "how muon's learning rate depends on a matrix of A x B; original: sqrt(max(1, A / B)); "
       "match_rms_adamw: 0.2 * sqrt(max(A, B)), for learning rates of adamw",
       [](const Json& value) {
         return IsOneOf(value, {"original", "match_rms_adamw"});
       }},
      {"optimizer.adamw_lr", kNumberOrAuto, "\"auto\"", "\"auto\" or a number from 0 to 3.4e38",
       "peak learning rate of what muon leaves to adamw; auto: optimizer.lr", IsRateOrAuto},
      {"optimizer.fused", kBooleanOrAuto, "\"auto\"", "\"auto\", true or false",
       "adamw by PyTorch's fused kernel on the CPU, too: faster, with other last bits; auto: with "
       "model.kernels = fused",
       nullptr},
  };
}

}  // namespace fsdprun::worker
