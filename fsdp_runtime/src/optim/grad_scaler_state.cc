// How a GradScaler is saved and loaded.

#include <ATen/ATen.h>
#include <fsdp/grad_scaler.h>

#include <array>
#include <string>

namespace fsdp {
namespace {

constexpr std::array<const char*, 5> kScalerKeys = {"scale", "growth_factor", "backoff_factor",
                                                    "growth_interval", "_growth_tracker"};

double scaler_number(const ModelStateDict& state_dict, const char* key) {
  const StateValue* value = state_dict.find(key);
  TORCH_CHECK(value != nullptr, "GradScaler.load_state_dict: \"", key,
              "\" is missing; pass what state_dict() returned");
  const auto* tensor = std::get_if<at::Tensor>(value);
  TORCH_CHECK(tensor != nullptr && tensor->defined() && tensor->numel() == 1,
              "GradScaler.load_state_dict: \"", key, "\" is not a tensor of one element");
  return tensor->item().toDouble();
}

}  // namespace

ModelStateDict GradScaler::state_dict() const {
  ModelStateDict dict;
  if (!options_.enabled) {
    return dict;
  }
  const auto real = [](double value) { return at::full({}, value, at::kDouble); };
  const auto whole = [](int64_t value) { return at::full({}, value, at::kLong); };
  dict.insert("scale", real(get_scale()));
  dict.insert("growth_factor", real(options_.growth_factor));
  dict.insert("backoff_factor", real(options_.backoff_factor));
  dict.insert("growth_interval", whole(options_.growth_interval));
  dict.insert("_growth_tracker", whole(growth_tracker_.defined() ? growth_tracker_.item<int>()
                                                                 : init_growth_tracker_));
  return dict;
}

void GradScaler::load_state_dict(const ModelStateDict& state_dict) {
  if (!options_.enabled) {
    return;
  }
  TORCH_CHECK(!state_dict.is_empty(),
              "GradScaler.load_state_dict: the state dict is empty, possibly because it was saved "
              "by a scaler that is disabled");
  TORCH_CHECK(state_dict.size() == kScalerKeys.size(),
              "GradScaler.load_state_dict: ", state_dict.size(),
              " entries; expected those that state_dict() returns");
  std::array<double, kScalerKeys.size()> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = scaler_number(state_dict, kScalerKeys[i]);
  }
  GradScaler loaded({.init_scale = values[0],
                     .growth_factor = values[1],
                     .backoff_factor = values[2],
                     .growth_interval = static_cast<int64_t>(values[3]),
                     .enabled = true,
                     .process_group = options_.process_group});  // which checks them
  options_ = loaded.options_;
  init_growth_tracker_ = static_cast<int64_t>(values[4]);
  if (scale_.defined()) {
    scale_.fill_(values[0]);
    growth_tracker_.fill_(init_growth_tracker_);
  }
}

}  // namespace fsdp
