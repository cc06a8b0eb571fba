#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>

#include <mutex>
#include <utility>
#include <vector>

namespace fsdp::detail {

/// The states of the default generators that a segment with these inputs may use.
class GeneratorStates {
 public:
  explicit GeneratorStates(const std::vector<at::Tensor>& inputs) {
    add(at::detail::getDefaultCPUGenerator());
    for (const at::Tensor& input : inputs) {
      if (input.is_cuda()) {
        add(at::globalContext().defaultGenerator(input.device()));
      }
    }
  }
  /// The current states of the same generators.
  GeneratorStates now() const {
    GeneratorStates current;
    for (const auto& [generator, state] : states_) {
      current.add(generator);
    }
    return current;
  }
  void restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator target = generator;
      std::lock_guard<std::mutex> lock(target.mutex());
      target.set_state(state);
    }
  }

 private:
  GeneratorStates() = default;
  void add(const at::Generator& generator) {
    for (const auto& [known, state] : states_) {
      if (known == generator) {
        return;
      }
    }
    at::Generator source = generator;
    std::lock_guard<std::mutex> lock(source.mutex());
    states_.emplace_back(source, source.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Sets the generators to `states` and restores their previous states at the end.
class GeneratorScope {
 public:
  explicit GeneratorScope(const GeneratorStates& states) : outer_(states.now()) {
    states.restore();
  }
  ~GeneratorScope() { outer_.restore(); }
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  GeneratorStates outer_;
};

/// The state of autocast for the devices that a segment with these inputs may use.
class AutocastState {
 public:
  explicit AutocastState(const std::vector<at::Tensor>& inputs)
      : uses_cache_(at::autocast::is_autocast_cache_enabled()) {
    add(at::kCPU);
    for (const at::Tensor& input : inputs) {
      if (input.is_cuda()) {
        add(at::kCUDA);
      }
    }
  }
  /// The current state for the same devices.
  AutocastState now() const {
    AutocastState current;
    for (const Device& device : devices_) {
      current.add(device.type);
    }
    return current;
  }
  void restore() const {
    for (const Device& device : devices_) {
      at::autocast::set_autocast_enabled(device.type, device.is_enabled);
      at::autocast::set_autocast_dtype(device.type, device.dtype);
    }
    at::autocast::set_autocast_cache_enabled(uses_cache_);
  }
  bool is_enabled() const {
    return std::any_of(devices_.begin(), devices_.end(),
                       [](const Device& device) { return device.is_enabled; });
  }

 private:
  struct Device {
    c10::DeviceType type;
    bool is_enabled;
    at::ScalarType dtype;
  };

  AutocastState() : uses_cache_(at::autocast::is_autocast_cache_enabled()) {}
  void add(c10::DeviceType type) {
    for (const Device& known : devices_) {
      if (known.type == type) {
        return;
      }
    }
    devices_.push_back(
        {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  }

  std::vector<Device> devices_;
  bool uses_cache_;
};

/// Sets autocast to `state` and restores the previous state at the end. The casts of weights that
/// autocast keeps do not pass into the scope, where a cast must be younger than its unit's
/// post-backward node, or out of it, where nobody might forget them before the weights change.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state)
      : outer_(state.now()), casts_(state.is_enabled() || outer_.is_enabled()) {
    clear_casts();
    state.restore();
  }
  ~AutocastScope() {
    clear_casts();
    outer_.restore();
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void clear_casts() const {
    if (casts_) {
      at::autocast::clear_cache();
    }
  }

  AutocastState outer_;
  bool casts_;
};

}  // namespace fsdp::detail
