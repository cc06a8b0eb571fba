#include "tests/parity/rows/script.h"

#include <ATen/ATen.h>
#include <fsdp/clip_grad.h>
#include <fsdp/full_params.h>
#include <fsdp/unit.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>

#include "tests/parity/rows/optimizer.h"
#include "tests/parity/rows/values.h"

namespace parity_rows {
namespace {

using nlohmann::json;

class Case {
 public:
  Case(const json& row_case, World& world)
      : world_(world), spec_(row_case.at("model")), script_(row_case.at("script")) {}

  Results run() {
    *world_.log = {};
    build({{"seed", 42}});
    for (const json& operation : script_) {
      const std::string name = operation.at(0).get<std::string>();
      const auto found = operations().find(name);
      TORCH_CHECK(found != operations().end(), "no operation ", name);
      (this->*found->second)(operation.at(1));
      ++position_;
    }
    return std::move(results_);
  }

 private:
  using Operation = void (Case::*)(const json&);
  static const std::map<std::string, Operation>& operations() {
    static const std::map<std::string, Operation> all = {
        {"build", &Case::build},
        {"shard", &Case::shard},
        {"optimizer", &Case::make_optimizer},
        {"forward", &Case::forward},
        {"backward", &Case::backward},
        {"step", &Case::step},
        {"zero_grad", &Case::zero_grad},
        {"clip", &Case::clip},
        {"scaler", &Case::make_scaler},
        {"unscale", &Case::unscale},
        {"update_scale", &Case::update_scale},
        {"set", &Case::set},
        {"prefetch", &Case::prefetch},
        {"delay", &Case::delay},
        {"mode", &Case::set_mode},
        {"summon", &Case::summon},
        {"freeze", &Case::freeze},
        {"unshard", &Case::unshard},
        {"wait", &Case::wait},
        {"reshard", &Case::reshard},
        {"save", &Case::save},
        {"load", &Case::load},
        {"forget", &Case::forget},
        {"losses", &Case::note_losses},
        {"gradients", &Case::note_gradients},
        {"parameters", &Case::note_parameters},
        {"unsharded", &Case::note_unsharded},
        {"local", &Case::note_local},
        {"shards_of_rank", &Case::note_shards},
        {"events", &Case::note_events},
        {"dtypes", &Case::note_dtypes},
        {"planned", &Case::note_planned},
        {"members", &Case::note_members},
    };
    return all;
  }

  // --- the model

  void build(const json& options) {
    model_ = make_model(spec_);
    draw_parameters(*model_, options.at("seed").get<uint64_t>());
    if (spec_.contains("dtype")) {
      model_->to(dtype_of(spec_.at("dtype").get<std::string>()));
    }
  }

  void shard(const json& options) {
    if (options.contains("then_to")) {  // a sharded module refuses to(): what is cast is sharded
      model_->to(dtype_of(options.at("then_to").get<std::string>()));
    }
    mesh_ = world_.mesh_of(options.at("mesh").get<std::vector<int64_t>>());
    units_.clear();
    for (const json& unit : options.at("units")) {
      const std::string name = unit.at("name").get<std::string>();
      const fsdp::FullyShardOptions how = options_of(unit, options, *model_, mesh_);
      const std::vector<std::shared_ptr<torch::nn::Module>> modules =
          modules_named(*model_, unit.value("modules", json::array({name})));
      units_[name] = modules.size() == 1 ? fsdp::fully_shard(modules.front(), how)
                                         : fsdp::fully_shard(modules, how);
    }
    root_ = units_.at("");
    if (options.contains("then_to")) {
      expect_no_cast(*model_, root_.sharded_parameters().front().local.scalar_type());
    }
  }

  const fsdp::FSDPModule& unit(const json& options) const {
    return units_.at(options.value("unit", ""));
  }

  std::vector<fsdp::FSDPModule> units_named(const json& names) const {
    std::vector<fsdp::FSDPModule> found;
    for (const json& name : names) {
      found.push_back(units_.at(name.get<std::string>()));
    }
    return found;
  }

  // --- training

  void make_optimizer(const json& options) { optimizer_.make(root_, options); }

  void forward(const json& options) {
    const auto seed = options.at("seed").get<uint64_t>();
    at::manual_seed(1000 * seed + static_cast<uint64_t>(world_.group->rank()) + 1);
    at::Tensor input = model_->draw_input(options.value("batch", int64_t{3}));
    if (input.is_floating_point() && options.contains("input")) {
      input = input.to(dtype_of(options.at("input").get<std::string>()));
    }
    input.set_requires_grad(options.value("input_requires_grad", false));
    const at::AutoGradMode grad_mode(options.value("grad", true));
    at::Tensor output = call(options, input);
    output = c10::isReducedFloatingType(output.scalar_type()) ? output.to(at::kFloat) : output;
    const at::Tensor loss = output.square().mean();
    losses_[options.value("as", "loss")] = loss;
    all_losses_.push_back(loss.detach().to(at::kDouble));
  }

  at::Tensor call(const json& options, at::Tensor input) {
    if (options.contains("of")) {
      return model_->call_child(options.at("of").get<std::string>(), std::move(input));
    }
    if (options.contains("method")) {
      return fsdp::call(
          *model_, [this](at::Tensor x) { return model_->encode(std::move(x)); }, std::move(input));
    }
    if (options.value("no_input", false)) {
      return fsdp::call(*model_, [this] { return model_->forward({}); });
    }
    return fsdp::call(
        *model_, [this](at::Tensor x) { return model_->forward(std::move(x)); }, std::move(input));
  }

  void backward(const json& options) {
    at::Tensor sum;
    for (const json& name : options.value("of", json::array({"loss"}))) {
      const at::Tensor& loss = losses_.at(name.get<std::string>());
      sum = sum.defined() ? sum + loss : loss;
    }
    sum = sum * options.value("scale", 1.0);
    if (options.value("overflows", false) && world_.group->rank() == 0) {
      sum = sum * std::numeric_limits<double>::infinity();
    }
    optimizer_.scale(sum).backward();
    losses_.clear();
  }

  void step(const json& /*options*/) { optimizer_.step(); }
  void zero_grad(const json& options) { optimizer_.zero_grad(options.value("in_place", false)); }

  void clip(const json& options) {
    // JSON has no infinity.
    const double norm_type = options.value("norm_type", 2.0);
    note("norm", fsdp::clip_grad_norm_(
                     root_, options.at("max_norm").get<double>(),
                     norm_type > 0 ? norm_type : std::numeric_limits<double>::infinity()));
  }

  // --- scaled losses

  void make_scaler(const json& options) { optimizer_.make_scaler(options); }
  void unscale(const json& /*options*/) { optimizer_.unscale(); }
  void update_scale(const json& /*options*/) { note("scale", optimizer_.update_scale()); }

  // --- settings

  void set(const json& options) { set_option(unit(options), options); }

  void prefetch(const json& options) {
    const std::vector<fsdp::FSDPModule> modules = units_named(options.at("units"));
    if (options.at("pass") == "forward") {
      unit(options).set_modules_to_forward_prefetch(modules);
    } else {
      unit(options).set_modules_to_backward_prefetch(modules);
    }
  }

  /// Of what all units gather or reduce from now on.
  void delay(const json& options) {
    world_.log->late = options.at("what") == "gather" ? fsdp::Lane::kGather : fsdp::Lane::kReduce;
  }

  void set_mode(const json& options) { model_->train(options.at("train").get<bool>()); }

  void freeze(const json& options) {
    for (const json& prefix : options.at("of")) {
      set_requires_grad(*model_, prefix.get<std::string>(), !options.at("value").get<bool>());
    }
  }

  void unshard(const json& options) {
    if (options.value("async", false)) {
      handles_.push_back(unit(options).unshard_async());
    } else {
      unit(options).unshard();
    }
  }
  /// For all gathers that were issued without waiting.
  void wait(const json& /*options*/) {
    for (const fsdp::UnshardHandle& handle : std::exchange(handles_, {})) {
      handle.wait();
    }
  }
  void reshard(const json& options) { unit(options).reshard(); }

  /// Notes the whole parameters, and doubles them.
  void summon(const json& options) {
    const fsdp::FullParamsOptions how = {.recurse = options.value("recurse", true),
                                         .writeback = options.value("writeback", true),
                                         .with_grads = options.value("with_grads", false)};
    const bool was_noting = std::exchange(world_.log->is_noting, false);
    fsdp::summon_full_params(
        unit(options),
        [&] {
          for (const auto& [name, parameter] : parameters_of(*model_, options.at("of"))) {
            note("whole " + name, parameter);
            if (how.with_grads && parameter.grad().defined()) {
              note("whole gradient " + name, parameter.grad());
            }
            parameter.mul_(2);
          }
        },
        how);
    world_.log->is_noting = was_noting;
  }

  // --- state dicts

  void save(const json& options) {
    const bool was_noting = std::exchange(world_.log->is_noting, false);
    saved_ = fsdp::get_model_state_dict(root_, state_options(options));
    world_.log->is_noting = was_noting;
    std::vector<std::string> names;
    for (const auto& item : saved_) {
      names.push_back(item.key());
      if (std::holds_alternative<at::Tensor>(item.value())) {
        note("state " + item.key(), std::get<at::Tensor>(item.value()));
      }
    }
    note("names of the state", std::move(names));
  }

  void load(const json& options) {
    fsdp::set_model_state_dict(root_, saved_, state_options(options));
  }

  /// Drops everything; notes how many units are left.
  void forget(const json& /*options*/) {
    std::vector<std::weak_ptr<fsdp::ModuleState>> states;
    for (const auto& [name, handle] : units_) {
      states.emplace_back(handle.state());
    }
    optimizer_ = {};
    losses_.clear();
    units_.clear();
    root_ = {};
    model_.reset();
    const auto alive = std::count_if(states.begin(), states.end(),
                                     [](const auto& state) { return !state.expired(); });
    note("units alive", {std::to_string(alive) + " of " + std::to_string(states.size())});
  }

  // --- results

  std::string key(const std::string& what) {
    char number[8];
    std::snprintf(number, sizeof number, "%03d ", position_);
    return number + what;
  }
  void note(const std::string& what, const at::Tensor& value) {
    results_.tensors[key(what)] = value.detach().clone();
  }
  void note(const std::string& what, std::vector<std::string> value) {
    results_.texts[key(what)] = std::move(value);
  }

  void note_losses(const json& /*options*/) {
    note("losses", at::stack(all_losses_));
    all_losses_.clear();
  }

  void note_gradients(const json& /*options*/) {
    std::vector<fsdp::LocalShard> gradients = root_.sharded_gradients();
    std::erase_if(gradients, [](const auto& gradient) { return !gradient.local.defined(); });
    note_wholes("gradient ", gradients);
  }

  void note_parameters(const json& /*options*/) {
    note_wholes("parameter ", root_.sharded_parameters());
  }

  void note_wholes(const std::string& what, const std::vector<fsdp::LocalShard>& shards) {
    const bool was_noting = std::exchange(world_.log->is_noting, false);
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> wholes = wholes_of(shards, *mesh_->group(mesh_->ndim() - 1));
    for (size_t i = 0; i < shards.size(); ++i) {
      note(what + shards[i].fqn, wholes[i]);
    }
    world_.log->is_noting = was_noting;
  }

  /// What the module's own parameters are while they are whole.
  void note_unsharded(const json& /*options*/) {
    for (const auto& [name, parameter] : unique_parameters(*model_)) {
      note("unsharded " + name, parameter);
    }
  }

  /// What is ignored, and its gradients, which are this rank's.
  void note_local(const json& options) {
    for (const auto& [name, parameter] : parameters_of(*model_, options.at("of"))) {
      note("local " + name, parameter);
      note("local gradient " + name, parameter.grad());
    }
  }

  /// As they are on this rank, in their shapes.
  void note_shards(const json& /*options*/) {
    for (const auto& [name, leaf] : root_.named_parameters()) {
      note("shard " + name, leaf);
      if (leaf.grad().defined()) {
        note("shard of the gradient " + name, leaf.grad());
      }
    }
  }

  void note_events(const json& /*options*/) {
    note("events", std::exchange(world_.log->events, {}));
  }

  /// What a policy makes units, with how many elements each.
  void note_planned(const json& options) { note("planned", planned_units(model_, options)); }
  /// What each unit has, with all in it.
  void note_members(const json& /*options*/) { note("members", members_of(units_)); }

  void note_dtypes(const json& /*options*/) { note("dtypes", std::exchange(model_->seen, {})); }

  World& world_;
  const json& spec_;
  const json& script_;
  std::shared_ptr<RowModel> model_;
  std::shared_ptr<fsdp::DeviceMesh> mesh_;
  std::map<std::string, fsdp::FSDPModule> units_;
  std::vector<fsdp::UnshardHandle> handles_;
  fsdp::FSDPModule root_;
  Optimizer optimizer_;
  std::map<std::string, at::Tensor> losses_;  // by name, until their backward
  std::vector<at::Tensor> all_losses_;
  fsdp::ModelStateDict saved_;
  Results results_;
  int position_ = 0;  // in the script
};

}  // namespace

const std::shared_ptr<fsdp::DeviceMesh>& World::mesh_of(const std::vector<int64_t>& shape) {
  std::shared_ptr<fsdp::DeviceMesh>& mesh = meshes[shape];
  if (!mesh) {
    std::vector<std::string> names = {"dp_replicate", "dp_shard"};
    names.erase(names.begin(), names.end() - static_cast<int64_t>(shape.size()));
    mesh = fsdp::init_device_mesh(c10::kCPU, shape, names, group);
  }
  return mesh;
}

Results run_case(const nlohmann::json& row_case, World& world) {
  return Case(row_case, world).run();
}

}  // namespace parity_rows
