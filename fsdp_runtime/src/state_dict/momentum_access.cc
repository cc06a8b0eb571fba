// fsdp::SGD and fsdp::Muon as state dicts see them.

#include <ATen/ATen.h>
#include <fsdp/muon.h>
#include <fsdp/sgd.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/optim/param_groups.h"
#include "fsdp_runtime/src/state_dict/optimizer_access.h"
#include "fsdp_runtime/src/state_dict/option_table.h"

namespace fsdp {
namespace {

constexpr char kBuffer[] = "momentum_buffer";

template <class O>
OptionEntry<O> number_option(std::string name, double O::*field) {
  return {std::move(name), [field](const O& options) { return options.*field; },
          [field](O& options, const OptionValue& value) { options.*field = number_of(value); }};
}

template <class O>
OptionEntry<O> flag_option(std::string name, bool O::*field) {
  return {std::move(name), [field](const O& options) { return options.*field; },
          [field](O& options, const OptionValue& value) { options.*field = flag_of(value); }};
}

const std::vector<OptionEntry<SGDOptions>>& table_of(const SGDOptions& /*of*/) {
  using O = SGDOptions;
  static const std::vector<OptionEntry<O>> kTable = {
      number_option("lr", &O::lr),
      number_option("momentum", &O::momentum),
      number_option("dampening", &O::dampening),
      number_option("weight_decay", &O::weight_decay),
      flag_option("nesterov", &O::nesterov),
      fixed_option<O>("maximize", false),
  };
  return kTable;
}

std::array<double, 3> coefficients_of(const OptionValue& value) {
  const auto* numbers = std::get_if<std::vector<double>>(&value);
  TORCH_CHECK(numbers != nullptr && numbers->size() == 3, "three numbers expected");
  return {(*numbers)[0], (*numbers)[1], (*numbers)[2]};
}

MuonRate rate_of(const OptionValue& value) {
  const auto* name = std::get_if<std::string>(&value);
  const bool is_none = std::holds_alternative<std::monostate>(value);
  TORCH_CHECK(is_none || (name != nullptr && (*name == "original" || *name == "match_rms_adamw")),
              "None, original or match_rms_adamw expected");
  return is_none || *name == "original" ? MuonRate::kOriginal : MuonRate::kMatchRmsAdamW;
}

const std::vector<OptionEntry<MuonOptions>>& table_of(const MuonOptions& /*of*/) {
  using O = MuonOptions;
  static const std::vector<OptionEntry<O>> kTable = {
      number_option("lr", &O::lr),
      number_option("weight_decay", &O::weight_decay),
      number_option("momentum", &O::momentum),
      flag_option("nesterov", &O::nesterov),
      {"ns_coefficients",
       [](const O& options) {
         return std::vector<double>(options.ns_coefficients.begin(), options.ns_coefficients.end());
       },
       [](O& options, const OptionValue& value) {
         options.ns_coefficients = coefficients_of(value);
       }},
      number_option("eps", &O::eps),
      {"ns_steps", [](const O& options) { return options.ns_steps; },
       [](O& options, const OptionValue& value) {
         const auto* steps = std::get_if<int64_t>(&value);
         TORCH_CHECK(steps != nullptr, "a whole number expected");
         options.ns_steps = *steps;
       }},
      {"adjust_lr_fn",
       [](const O& options) {
         return std::string(options.adjust_lr_fn == MuonRate::kOriginal ? "original"
                                                                        : "match_rms_adamw");
       },
       [](O& options, const OptionValue& value) { options.adjust_lr_fn = rate_of(value); }},
  };
  return kTable;
}

/// The momenta of all parameters that have some and of those in `groups`, which have no momentum
/// now: memory for it is made, as the options of a dict may say so.
std::vector<LocalShard> buffers_with(SGD& optimizer, const std::vector<size_t>& groups) {
  const auto set_momentum = [&optimizer, &groups](double momentum) {
    for (const size_t group : groups) {
      SGDOptions changed = optimizer.options(group);
      changed.momentum = momentum;
      optimizer.set_options(group, changed);
    }
  };
  std::vector<LocalShard> buffers;
  try {
    set_momentum(1);
    buffers = optimizer.momentum_buffer();
  } catch (...) {
    set_momentum(0);
    throw;
  }
  set_momentum(0);
  return buffers;
}

std::vector<LocalShard> buffers_with(Muon& optimizer, const std::vector<size_t>& /*groups*/) {
  return optimizer.momentum_buffer();  // there always
}

/// Neither counts updates in Python: a parameter whose momentum is loaded has done one, at least.
template <class Optimizer, class Options>
class MomentumAccess : public OptimizerAccess {
 public:
  MomentumAccess(std::string type, Optimizer& optimizer, const std::vector<ParamRef>& params)
      : type_(std::move(type)), optimizer_(optimizer) {
    for (size_t i = 0; i < params.size(); ++i) {
      number_of_.emplace(params[i].fqn, i);
      is_trainable_.push_back(params[i].group->is_trainable());
    }
    for (size_t g = 0; g < optimizer.group_count(); ++g) {
      for (const std::string& fqn : optimizer.params(g)) {
        TORCH_CHECK(number_of_.count(fqn) != 0, "the optimizer has ", fqn,
                    ", which the model has not; pass the model whose handle ", type_,
                    " was made with");
        group_of_.emplace(fqn, g);
      }
    }
    set_buffers(optimizer.momentum_buffer());
  }

  std::string type() const override { return type_; }

  std::vector<OptimizerParamGroup> groups() const override {
    std::vector<OptimizerParamGroup> groups;
    for (size_t g = 0; g < optimizer_.group_count(); ++g) {
      groups.push_back(
          {optimizer_.params(g), options_of(table_of(Options()), optimizer_.options(g))});
    }
    return groups;
  }

  bool can_have_state(const std::string& fqn) const override {
    return is_trainable_[number_of_.at(fqn)];
  }

  std::optional<ParamState> state_of(const std::string& fqn) const override {
    if (buffer_of_.count(fqn) == 0) {
      return std::nullopt;
    }
    if (steps_.empty()) {
      steps_ = optimizer_.parameter_steps();
    }
    const at::Tensor& buffer = buffers_[buffer_of_.at(fqn)].local;
    return steps_[number_of_.at(fqn)] == 0
               ? std::nullopt
               : std::make_optional(ParamState{std::nullopt, {{kBuffer, buffer}}});
  }

  std::vector<std::string> state_names() const override { return {kBuffer}; }
  bool counts_steps() const override { return false; }
  bool needs(const std::string& /*name*/, size_t /*group*/,
             const OptionValues& /*options*/) const override {
    return true;
  }

  std::string option_problem(size_t group, const OptionValues& options,
                             bool strict) const override {
    Options changed = optimizer_.options(group);
    std::string problem = set_options_of(table_of(Options()), changed, options, strict);
    try {
      check_options(group, changed);
    } catch (const c10::Error& error) {
      return problem.empty() ? error.what_without_backtrace() : problem;
    }
    return problem;
  }

  std::string problem_of_keeping() const override {
    try {
      optimizer_.parameter_steps();
      return "";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
  }

  std::vector<std::vector<at::Tensor>> begin_load(const std::vector<NewState>& states) override {
    make_buffers_for(states);
    std::vector<std::vector<at::Tensor>> targets;
    for (const NewState& state : states) {
      std::vector<at::Tensor>& tensors = targets.emplace_back();
      if (buffer_of_.count(state.fqn) != 0) {
        const at::Tensor& buffer = buffers_[buffer_of_.at(state.fqn)].local;
        tensors.assign(state.tensors.size(), buffer);
        if (!state.is_kept && !state.is_there) {
          buffer.zero_();
        }
      }
    }
    return targets;
  }

  void end_load(const std::vector<NewState>& states,
                const std::vector<OptionValues>& options) override {
    const bool keeps_some = std::any_of(states.begin(), states.end(),
                                        [](const NewState& state) { return state.is_kept; });
    std::vector<int64_t> steps =
        keeps_some ? optimizer_.parameter_steps() : std::vector<int64_t>(number_of_.size(), 0);
    for (const NewState& state : states) {
      if (!state.is_kept) {
        steps[number_of_.at(state.fqn)] = state.is_there ? 1 : 0;
      }
    }
    optimizer_.set_parameter_steps(steps);
    for (size_t g = 0; g < options.size(); ++g) {
      Options changed = optimizer_.options(g);
      set_options_of(table_of(Options()), changed, options[g], /*strict=*/false);
      optimizer_.set_options(g, changed);
    }
  }

 private:
  void set_buffers(std::vector<LocalShard> buffers) {
    buffers_ = std::move(buffers);
    buffer_of_.clear();
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffer_of_.emplace(buffers_[i].fqn, i);
    }
  }
  /// Where a dict has some and the optimizer, without momentum until now, has none.
  void make_buffers_for(const std::vector<NewState>& states) {
    std::set<size_t> groups;
    for (const NewState& state : states) {
      if (!state.is_kept && !state.tensors.empty() && buffer_of_.count(state.fqn) == 0) {
        groups.insert(group_of_.at(state.fqn));
      }
    }
    if (!groups.empty()) {
      set_buffers(buffers_with(optimizer_, {groups.begin(), groups.end()}));
    }
  }

  const std::string type_;
  Optimizer& optimizer_;
  std::vector<bool> is_trainable_;  // by number of a parameter of the model
  std::vector<LocalShard> buffers_;
  // Looked up only, never iterated.
  std::unordered_map<std::string, size_t> number_of_;  // of a parameter of the model
  std::unordered_map<std::string, size_t> group_of_;   // of a parameter of the optimizer
  std::unordered_map<std::string, size_t> buffer_of_;  // where a parameter is in buffers_
  mutable std::vector<int64_t> steps_;                 // by number; empty: not asked for yet
};

}  // namespace

std::unique_ptr<OptimizerAccess> access_to(SGD& optimizer, const std::vector<ParamRef>& params) {
  return std::make_unique<MomentumAccess<SGD, SGDOptions>>("fsdp::SGD", optimizer, params);
}

std::unique_ptr<OptimizerAccess> access_to(Muon& optimizer, const std::vector<ParamRef>& params) {
  return std::make_unique<MomentumAccess<Muon, MuonOptions>>("fsdp::Muon", optimizer, params);
}

}  // namespace fsdp
