#include <fsdp/full_params.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/registry.h"
#include "fsdp_runtime/src/state_dict/whole_tensors.h"

namespace fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using UnitPtr = std::shared_ptr<ModuleState>;

constexpr const char* kGradients = "summon_full_params, gradients";

void check_idle(const ModuleState& unit) {
  TORCH_CHECK(unit.training() == ModuleState::Training::kIdle && !unit.context().in_backward(),
              "summon_full_params: ", unit.module()->name(),
              " is in its forward or backward, in which its parameters are gathered by themselves; "
              "call it before or afterwards");
  TORCH_CHECK(!unit.is_summoned, "summon_full_params: the parameters of ", unit.module()->name(),
              " are whole already, by a call around this one; use those");
}

/// The unit's own parameters, whole from the constructor to the end.
class WholeUnit {
 public:
  /// Collective. The unit is sharded.
  WholeUnit(UnitPtr unit, const FullParamsOptions& options)
      : unit_(std::move(unit)), options_(options) {
    OwnTensors own;
    walk_modules(unit_->modules(), [&](const std::string&, const ModulePtr& visited) {
      for (const auto& param : visited->named_parameters(/*recurse=*/false)) {
        own.emplace(param.value().unsafeGetTensorImpl(), param.value());
      }
      return true;
    });
    for (const std::shared_ptr<ParamGroup>& group : unit_->groups()) {
      gather(*group, own);
    }
    for (Param& param : params_) {
      param.sharded = param.tensor.detach();
      param.tensor.set_data(std::exchange(param.whole, {}));
      param.tensor.mutable_grad() = std::exchange(param.gradient, {});
    }
    unit_->is_summoned = true;
  }

  ~WholeUnit() {
    unit_->is_summoned = false;
    for (Param& param : params_) {
      param.tensor.mutable_grad().reset();
      param.tensor.set_data(param.sharded);
    }
  }
  WholeUnit(const WholeUnit&) = delete;
  WholeUnit& operator=(const WholeUnit&) = delete;

  /// Before any of them is written.
  void check_shapes() const {
    for (const Param& param : params_) {
      const at::IntArrayRef shape = param.group->store().shape(param.index);
      TORCH_CHECK(param.tensor.sizes() == shape,
                  "summon_full_params: ", param.group->store().fqn(param.index), " is of shape ",
                  param.tensor.sizes(), " behind the function, expected ", shape,
                  "; set_data() takes a tensor of the same shape. Nothing has been written back");
      const at::Tensor& gradient = param.tensor.grad();
      TORCH_CHECK(!options_.with_grads || !gradient.defined() || gradient.sizes() == shape,
                  "summon_full_params: the gradient of ", param.group->store().fqn(param.index),
                  " is of shape ", gradient.sizes(), " behind the function, expected ", shape,
                  ". Nothing has been written back");
    }
  }

  /// Local.
  void write_back() {
    for (const Param& param : params_) {
      const LocalShard part =
          param.group->store().part_of(param.group->store().shard(), param.index);
      copy_part_of(param.tensor.detach(), part);
      release_pages(part.local);
      const at::Tensor& gradient = param.tensor.grad();
      if (options_.with_grads && gradient.defined() && param.group->has_gradient(param.index)) {
        copy_part_of(gradient, param.group->store().part_of(param.group->gradient(), param.index));
      }
    }
  }

 private:
  using OwnTensors = std::unordered_map<const c10::TensorImpl*, at::Tensor>;

  /// One that this rank keeps.
  struct Param {
    at::Tensor tensor;  // the module's own
    at::Tensor whole;
    at::Tensor gradient;  // whole; undefined if there is none
    ParamGroup* group = nullptr;
    size_t index = 0;
    at::Tensor sharded;  // what `tensor` was
  };

  bool keeps() const {
    const DeviceMesh& mesh = *unit_->mesh();
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
      if (options_.rank0_only && mesh.local_rank(axis) != 0) {
        return false;
      }
    }
    return true;
  }

  /// One tensor for each parameter of `group` for which `wants(index)`; undefined for others.
  template <class Wants>
  std::vector<at::Tensor> memory_for(const ParamGroup& group, Wants wants) const {
    std::vector<at::Tensor> whole(group.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      if (keeps() && wants(i)) {
        whole[i] = empty_whole(group, i, group.store().dtype(), options_.offload_to_cpu);
      }
    }
    return whole;
  }

  void gather(ParamGroup& group, const OwnTensors& own) {
    const auto whole = memory_for(group, [](size_t) { return true; });
    gather_whole(group, parameter_parts(group), whole, group.store().dtype(), "summon_full_params");
    const auto gradients = options_.with_grads && group.is_trainable()
                               ? gather_gradients(group)
                               : std::vector<at::Tensor>(group.size());
    for (size_t i = 0; i < group.size(); ++i) {
      const auto found = own.find(group.key(i));
      if (found != own.end() && whole[i].defined()) {
        const at::IntArrayRef shape = group.store().shape(i);
        params_.push_back({found->second,
                           whole[i].view(shape),
                           gradients[i].defined() ? gradients[i].view(shape) : at::Tensor(),
                           &group,
                           i,
                           {}});
      }
    }
  }

  std::vector<at::Tensor> gather_gradients(ParamGroup& group) const {
    group.settle_gradient();
    std::vector<at::Tensor> parts(group.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (group.has_gradient(i)) {
        parts[i] = group.store().part_of(group.gradient(), i).local;
      }
    }
    const std::vector<bool> have = some_rank_has(group, parts);
    auto whole = memory_for(group, [&](size_t i) { return have[i]; });
    if (std::find(have.begin(), have.end(), true) != have.end()) {
      gather_whole(group, parts, whole, group.store().dtype(), kGradients);
    }
    return whole;
  }

  /// By parameter, whether a rank has a part: a rank may have dropped its gradients by itself.
  /// Collective.
  static std::vector<bool> some_rank_has(const ParamGroup& group,
                                         const std::vector<at::Tensor>& parts) {
    std::vector<float> own;
    for (const at::Tensor& part : parts) {
      own.push_back(part.defined() ? 1 : 0);
    }
    at::Tensor found = at::tensor(own).to(group.comm()->device());
    group.comm()->all_reduce(found, ReduceOp::kMax, {Lane::kReduce, kGradients})->wait();
    const at::Tensor here = found.cpu();
    std::vector<bool> have;
    for (int64_t i = 0; i < here.numel(); ++i) {
      have.push_back(here[i].item<float>() > 0);
    }
    return have;
  }

  const UnitPtr unit_;
  const FullParamsOptions options_;
  std::vector<Param> params_;
};

/// What `unit` and, with recurse, those below it have to be before they are whole, and are again.
class GatheredUnits {
 public:
  explicit GatheredUnits(const std::vector<UnitPtr>& units) {
    for (const UnitPtr& unit : units) {
      check_idle(*unit);
    }
    for (const UnitPtr& unit : units) {
      if (!unit->groups().empty() && !unit->is_sharded()) {
        gathered_.push_back(unit);
      }
      unit->prepare_to_write();
    }
  }
  void gather_again() const {
    for (const UnitPtr& unit : gathered_) {
      unit->wait_for_unshard();
    }
  }

 private:
  std::vector<UnitPtr> gathered_;
};

void summon(const std::vector<UnitPtr>& units, const std::function<void()>& body,
            const FullParamsOptions& options) {
  const at::NoGradGuard no_grad;
  const GatheredUnits before(units);
  {
    std::vector<std::unique_ptr<WholeUnit>> whole;
    for (const UnitPtr& unit : units) {
      whole.push_back(std::make_unique<WholeUnit>(unit, options));
    }
    body();
    if (options.writeback) {
      for (const std::unique_ptr<WholeUnit>& unit : whole) {
        unit->check_shapes();
      }
      for (const std::unique_ptr<WholeUnit>& unit : whole) {
        unit->write_back();
      }
    }
  }
  before.gather_again();
}

void apply_below(const ModulePtr& module, const std::function<void(torch::nn::Module&)>& fn,
                 std::unordered_set<const torch::nn::Module*>& seen) {
  if (!seen.insert(module.get()).second) {
    return;
  }
  const auto visit = [&] {
    for (const ModulePtr& child : module->children()) {
      apply_below(child, fn, seen);
    }
    fn(*module);
  };
  if (const UnitPtr unit = Registry::get().find(*module)) {
    summon({unit}, visit, {});
  } else {
    visit();
  }
}

}  // namespace

void summon_full_params(const FSDPModule& unit, const std::function<void()>& body,
                        const FullParamsOptions& options) {
  TORCH_CHECK(unit,
              "summon_full_params: empty FSDPModule handle; use the one that fully_shard returns");
  TORCH_CHECK(body, "summon_full_params: the function to run is empty");
  TORCH_CHECK(!options.rank0_only || !options.writeback,
              "summon_full_params: with rank0_only the other ranks have nothing to write back; set "
              "writeback to false, or rank0_only");
  summon(options.recurse ? unit.state()->units() : std::vector<UnitPtr>{unit.state()}, body,
         options);
}

void apply(const FSDPModule& unit, const std::function<void(torch::nn::Module& module)>& fn) {
  TORCH_CHECK(unit, "apply: empty FSDPModule handle; use the one that fully_shard returns");
  TORCH_CHECK(fn, "apply: the function to call is empty");
  std::unordered_set<const torch::nn::Module*> seen;
  apply_below(unit.state()->module(), fn, seen);
}

}  // namespace fsdp
