#include "fsdp_runtime/src/state_dict/option_table.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace fsdp {

double number_of(const OptionValue& value) {
  const auto* whole = std::get_if<int64_t>(&value);
  const auto* real = std::get_if<double>(&value);
  TORCH_CHECK(whole != nullptr || real != nullptr, "a number expected");
  const double number = real != nullptr ? *real : static_cast<double>(*whole);
  TORCH_CHECK(number >= 0, "a number that is at least 0 expected, got ", number);
  return number;
}

bool flag_of(const OptionValue& value) {
  const auto* flag = std::get_if<bool>(&value);
  TORCH_CHECK(flag != nullptr, "true or false expected");
  return *flag;
}

std::pair<double, double> betas_of(const OptionValue& value) {
  const auto* betas = std::get_if<std::vector<double>>(&value);
  TORCH_CHECK(betas != nullptr && betas->size() == 2, "two numbers expected");
  for (const double beta : *betas) {
    TORCH_CHECK(beta >= 0 && beta < 1, "two numbers in [0, 1) expected, got ", beta);
  }
  return {betas->front(), betas->back()};
}

void check_same(const OptionValue& value, const OptionValue& expected) {
  TORCH_CHECK(value == expected, "LibTorch has only the default of Python");
}

bool is_only_pythons(const std::string& option) {
  for (const char* name : {"foreach", "fused", "capturable", "differentiable", "initial_lr"}) {
    if (option == name) {
      return true;
    }
  }
  return false;
}

}  // namespace fsdp
