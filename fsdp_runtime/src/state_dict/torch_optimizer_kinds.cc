#include "fsdp_runtime/src/state_dict/torch_optimizer_kinds.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <tuple>

#include "fsdp_runtime/src/state_dict/option_table.h"

namespace fsdp {
namespace {

/// A tensor of a state `S` of an optimizer with options `O`.
template <class O, class S>
struct StateEntry {
  std::string name;
  at::Tensor& (*tensor)(S&);
  bool (*is_needed)(const O&);
};

/// `S`: default-constructible, like `O` but for SGD's.
template <class O, class S>
class KindOf : public TorchOptimizerKind {
 public:
  using Initial = std::unique_ptr<State> (*)(const at::Tensor&, const O&);

  KindOf(std::string type, std::vector<OptionEntry<O>> options,
         std::vector<StateEntry<O, S>> states, int64_t& (*step)(S&), Initial initial = nullptr)
      : type_(std::move(type)),
        options_(std::move(options)),
        states_(std::move(states)),
        step_(step),
        initial_(initial) {}

  std::string type() const override { return type_; }
  OptionValues options_of(const Options& options) const override {
    return fsdp::options_of(options_, static_cast<const O&>(options));
  }
  std::string set_options(Options& options, const OptionValues& values,
                          bool strict) const override {
    return set_options_of(options_, static_cast<O&>(options), values, strict);
  }
  std::vector<std::string> state_names() const override {
    std::vector<std::string> names;
    for (const StateEntry<O, S>& entry : states_) {
      names.push_back(entry.name);
    }
    return names;
  }
  bool needs(const std::string& state_name, const Options& options) const override {
    return std::any_of(states_.begin(), states_.end(), [&](const auto& entry) {
      return entry.name == state_name && entry.is_needed(static_cast<const O&>(options));
    });
  }
  bool has_type_of(const State& state) const override {
    return dynamic_cast<const S*>(&state) != nullptr;
  }
  std::unique_ptr<State> make_state() const override { return std::make_unique<S>(); }
  std::vector<at::Tensor*> tensors_of(State& state) const override {
    std::vector<at::Tensor*> tensors;
    for (const StateEntry<O, S>& entry : states_) {
      tensors.push_back(&entry.tensor(static_cast<S&>(state)));
    }
    return tensors;
  }
  int64_t* step_of(State& state) const override {
    return step_ == nullptr ? nullptr : &step_(static_cast<S&>(state));
  }
  std::unique_ptr<State> initial_state(const at::Tensor& parameter,
                                       const Options& options) const override {
    return initial_ == nullptr ? nullptr : initial_(parameter, static_cast<const O&>(options));
  }

 private:
  const std::string type_;
  const std::vector<OptionEntry<O>> options_;
  const std::vector<StateEntry<O, S>> states_;
  int64_t& (*const step_)(S&);
  const Initial initial_;
};

template <class O>
OptionEntry<O> number_option(std::string name, double& (*of)(O&)) {
  return {std::move(name), [of](const O& options) { return of(const_cast<O&>(options)); },
          [of](O& options, const OptionValue& value) { of(options) = number_of(value); }};
}

template <class O>
OptionEntry<O> flag_option(std::string name, bool& (*of)(O&)) {
  return {std::move(name), [of](const O& options) { return of(const_cast<O&>(options)); },
          [of](O& options, const OptionValue& value) { of(options) = flag_of(value); }};
}

template <class O>
OptionEntry<O> betas_option() {
  return {"betas",
          [](const O& options) {
            return std::vector<double>{std::get<0>(options.betas()), std::get<1>(options.betas())};
          },
          [](O& options, const OptionValue& value) {
            std::tie(std::get<0>(options.betas()), std::get<1>(options.betas())) = betas_of(value);
          }};
}

// TORCH_ARG declares accessors; these name them where a table can hold them.
#define FSDPRUN_ARG(Type, name) \
  [](Type & of) -> auto& { return of.name(); }

template <class O, class S>
KindOf<O, S> adam_kind(const char* type, bool decouples_weight_decay) {
  return {type,
          {number_option<O>("lr", FSDPRUN_ARG(O, lr)), betas_option<O>(),
           number_option<O>("eps", FSDPRUN_ARG(O, eps)),
           number_option<O>("weight_decay", FSDPRUN_ARG(O, weight_decay)),
           flag_option<O>("amsgrad", FSDPRUN_ARG(O, amsgrad)), fixed_option<O>("maximize", false),
           fixed_option<O>("decoupled_weight_decay", decouples_weight_decay)},
          {{"exp_avg", FSDPRUN_ARG(S, exp_avg), [](const O&) { return true; }},
           {"exp_avg_sq", FSDPRUN_ARG(S, exp_avg_sq), [](const O&) { return true; }},
           {"max_exp_avg_sq", FSDPRUN_ARG(S, max_exp_avg_sq),
            [](const O& options) { return options.amsgrad(); }}},
          FSDPRUN_ARG(S, step)};
}

KindOf<torch::optim::SGDOptions, torch::optim::SGDParamState> sgd_kind() {
  using O = torch::optim::SGDOptions;
  using S = torch::optim::SGDParamState;
  return {
      "torch::optim::SGD",
      {number_option<O>("lr", FSDPRUN_ARG(O, lr)),
       number_option<O>("momentum", FSDPRUN_ARG(O, momentum)),
       number_option<O>("dampening", FSDPRUN_ARG(O, dampening)),
       number_option<O>("weight_decay", FSDPRUN_ARG(O, weight_decay)),
       flag_option<O>("nesterov", FSDPRUN_ARG(O, nesterov)), fixed_option<O>("maximize", false)},
      // A state without momentum buffer is none.
      {{"momentum_buffer", FSDPRUN_ARG(S, momentum_buffer), [](const O&) { return true; }}},
      nullptr};
}

KindOf<torch::optim::RMSpropOptions, torch::optim::RMSpropParamState> rmsprop_kind() {
  using O = torch::optim::RMSpropOptions;
  using S = torch::optim::RMSpropParamState;
  return {
      "torch::optim::RMSprop",
      {number_option<O>("lr", FSDPRUN_ARG(O, lr)), number_option<O>("alpha", FSDPRUN_ARG(O, alpha)),
       number_option<O>("eps", FSDPRUN_ARG(O, eps)),
       number_option<O>("weight_decay", FSDPRUN_ARG(O, weight_decay)),
       number_option<O>("momentum", FSDPRUN_ARG(O, momentum)),
       flag_option<O>("centered", FSDPRUN_ARG(O, centered)), fixed_option<O>("maximize", false)},
      {{"square_avg", FSDPRUN_ARG(S, square_avg), [](const O&) { return true; }},
       {"momentum_buffer", FSDPRUN_ARG(S, momentum_buffer),
        [](const O& options) { return options.momentum() > 0; }},
       {"grad_avg", FSDPRUN_ARG(S, grad_avg), [](const O& options) { return options.centered(); }}},
      FSDPRUN_ARG(S, step)};
}

KindOf<torch::optim::AdagradOptions, torch::optim::AdagradParamState> adagrad_kind() {
  using O = torch::optim::AdagradOptions;
  using S = torch::optim::AdagradParamState;
  return {"torch::optim::Adagrad",
          {number_option<O>("lr", FSDPRUN_ARG(O, lr)),
           number_option<O>("lr_decay", FSDPRUN_ARG(O, lr_decay)),
           number_option<O>("eps", FSDPRUN_ARG(O, eps)),
           number_option<O>("weight_decay", FSDPRUN_ARG(O, weight_decay)),
           number_option<O>("initial_accumulator_value", FSDPRUN_ARG(O, initial_accumulator_value)),
           fixed_option<O>("maximize", false)},
          {{"sum", FSDPRUN_ARG(S, sum), [](const O&) { return true; }}},
          FSDPRUN_ARG(S, step),
          [](const at::Tensor& parameter,
             const O& options) -> std::unique_ptr<torch::optim::OptimizerParamState> {
            auto state = std::make_unique<S>();
            state->sum(at::full_like(parameter, options.initial_accumulator_value()));
            return state;
          }};
}

#undef FSDPRUN_ARG

}  // namespace

const TorchOptimizerKind* kind_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  static const auto kSgd = sgd_kind();
  static const auto kAdam = adam_kind<AdamOptions, AdamParamState>("torch::optim::Adam", false);
  static const auto kAdamW =
      adam_kind<torch::optim::AdamWOptions, AdamWParamState>("torch::optim::AdamW", true);
  static const auto kRmsprop = rmsprop_kind();
  static const auto kAdagrad = adagrad_kind();
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) {
    return &kSgd;
  }
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) {
    return &kAdam;
  }
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) {
    return &kAdamW;
  }
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) {
    return &kRmsprop;
  }
  return dynamic_cast<const Adagrad*>(&optimizer) != nullptr ? &kAdagrad : nullptr;
}

}  // namespace fsdp
