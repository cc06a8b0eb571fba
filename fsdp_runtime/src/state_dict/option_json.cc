#include "fsdp_runtime/src/state_dict/option_json.h"

#include <nlohmann/json.hpp>

namespace fsdp {
namespace {

nlohmann::json json_of_value(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> nlohmann::json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) {
          return nullptr;
        } else {
          return held;
        }
      },
      value);
}

OptionValue value_of_json(const nlohmann::json& json) {
  if (json.is_boolean()) {
    return json.get<bool>();
  }
  if (json.is_number_integer()) {
    return json.get<int64_t>();
  }
  if (json.is_number()) {
    return json.get<double>();
  }
  if (json.is_string()) {
    return json.get<std::string>();
  }
  if (json.is_array()) {
    return json.get<std::vector<double>>();
  }
  return std::monostate();
}

}  // namespace

nlohmann::json json_of(const OptionValues& options) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : options) {
    json[name] = json_of_value(value);
  }
  return json;
}

OptionValues options_of_json(const nlohmann::json& json) {
  OptionValues options;
  for (const auto& [name, value] : json.items()) {
    options.emplace(name, value_of_json(value));
  }
  return options;
}

}  // namespace fsdp
