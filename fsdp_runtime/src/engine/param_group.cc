#include "fsdp_runtime/src/engine/param_group.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "fsdp_runtime/src/engine/chunk_views.h"
#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/leaf_owners.h"
#include "fsdp_runtime/src/engine/run_context.h"
#include "fsdp_runtime/src/trace/trace_log.h"

namespace fsdp {
namespace {

at::ScalarType compute_dtype(const std::vector<NamedParameter>& params,
                             const GroupOptions& options) {
  const at::ScalarType own = params.front().tensor.scalar_type();
  return c10::isFloatingType(own) ? options.param_dtype.value_or(own) : own;
}

/// Of the pages of most machines.
constexpr int64_t kPageBytes = 4096;

/// Copies of the parameters are laid out alike, or their gradients could not be summed; but the
/// rows of a mesh may have different backends, and only some of them windows.
int64_t page_bytes(const GroupOptions& options) {
  const bool has_copies = options.replicas != nullptr && options.comm->device().is_cpu();
  return has_copies ? kPageBytes : options.comm->window_alignment();
}

/// On the CPU a gradient is copied while it is in the cache, and its memory is free at once.
GradientBuffer::Delivery delivery_to(const Collectives& comm) {
  return comm.is_stream_ordered() ? GradientBuffer::Delivery::kInBatches
                                  : GradientBuffer::Delivery::kAtOnce;
}

}  // namespace

at::ScalarType reduce_dtype(const std::vector<NamedParameter>& params,
                            const GroupOptions& options) {
  const at::ScalarType computed = compute_dtype(params, options);
  return c10::isFloatingType(computed) ? options.reduce_dtype.value_or(computed) : computed;
}

ParamGroup::ParamGroup(const std::vector<NamedParameter>& params, const GroupOptions& options)
    : comm_(options.comm),
      replicas_(options.replicas),
      store_(params, *comm_,
             {options.mesh_axes, compute_dtype(params, options), page_bytes(options),
              make_shard_memory(options.offload_policy, *comm_)}),
      unsharded_(store_, comm_, compute_dtype(params, options)),
      gradients_(store_, reduce_dtype(params, options), delivery_to(*comm_)),
      reducer_(store_, comm_, replicas_, reduce_dtype(params, options)),
      uses_(params.size()) {
  set_unit_name("");
  if (store_.is_on_disk() && params.front().tensor.requires_grad()) {
    reducer_.memory();  // a full disk is an error now, and not in the first backward
  }
}

ParamGroup::~ParamGroup() {
  if (context_) {
    context_->forget(this);
  }
}

void ParamGroup::retarget(const std::vector<NamedParameter>& params) {
  at::NoGradGuard no_grad;
  params_.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    at::Tensor tensor = params[i].tensor;
    tensor.mutable_grad().reset();
    tensor.set_data(unsharded_.view(i));
    params_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                       tensor.unsafeGetTensorImpl(), ParameterSeal(tensor, params[i].fqn)});
    params_.back().seal.close();
  }
}

void ParamGroup::check_unused() const {
  TORCH_CHECK(
      is_sharded() && !unsharded_.has_part() && !collects_gradients() && !reducer_.is_reducing(),
      "fully_shard: ", store_.fqn(0), " is in use; shard the root before the first forward");
}

void ParamGroup::set_context(std::shared_ptr<RunContext> context) {
  check_unused();
  context_ = std::move(context);
}

void ParamGroup::set_fqn(size_t index, const std::string& fqn) {
  store_.set_fqn(index, fqn);
  params_[index].seal.set_fqn(fqn);
  unsharded_.set_fqn(index, fqn);
  if (full_) {
    full_->set_fqn(index, fqn);
  }
  gradients_.set_fqn(index, fqn);
}

void ParamGroup::set_unit_name(const std::string& name) {
  purpose_ = name.empty() ? "the root unit" : "unit " + name;
}

void ParamGroup::prepare_to_write() {
  context_->forget_post_optim_event();
  reshard();
  store_.prepare_to_write();
}

void ParamGroup::begin_update() {
  context_->forget_post_optim_event();
  store_.begin_update();
}

void ParamGroup::end_update() { store_.end_update(context_->write_epoch()); }

void ParamGroup::set_custom_all_gather(const std::shared_ptr<AllGather>& custom) {
  custom_all_gather_ = custom;
  unsharded_.set_custom(custom);
  if (full_) {
    full_->set_custom(custom);
  }
}

void ParamGroup::set_full_precision(bool is_full) {
  if (is_full == is_full_ || unsharded_.dtype() == store_.dtype()) {
    return;
  }
  reshard();
  const c10::InferenceMode outside(false);  // an evaluation's is not that of the training behind it
  at::NoGradGuard no_grad;
  if (!full_) {
    full_ = std::make_unique<GatherBuffer>(store_, comm_, store_.dtype());
    full_->set_custom(custom_all_gather_);
    for (size_t i = 0; i < size(); ++i) {
      full_->set_fqn(i, store_.fqn(i));
    }
  }
  is_full_ = is_full;
  for (size_t i = 0; i < size(); ++i) {
    if (auto impl = params_[i].tensor.lock()) {
      at::Tensor tensor(std::move(impl));
      tensor.set_data(unsharded().view(i));
      params_[i].seal = ParameterSeal(tensor, store_.fqn(i));
      params_[i].seal.close();
    }
  }
}

void ParamGroup::start_unshard() {
  if (is_sharded()) {
    context_->on_parameter_memory_used();
  }
  in_use().start(*context_, purpose_);
}

void ParamGroup::wait_for_unshard() {
  start_unshard();
  if (unsharded().is_in_flight()) {
    context_->on_parameter_memory_used();  // what is copied out is read and given back behind it
    const trace::Span waits("wait", "wait for the gather of", purpose_);
    in_use().wait(*context_);
  }
  if (!are_open_) {
    are_open_ = true;
    for (Param& param : params_) {
      param.seal.open();
    }
  }
}

void ParamGroup::reshard() {
  if (!is_sharded()) {
    context_->on_parameter_memory_used();  // somebody may have read the memory behind it
  }
  in_use().reshard();
  close_seals();
}

void ParamGroup::reshard_to_part(const std::shared_ptr<Collectives>& part_comm) {
  if (!is_sharded()) {
    context_->on_parameter_memory_used();
  }
  in_use().reshard_to_part(*context_, part_comm);
  close_seals();
}

void ParamGroup::close_seals() {
  if (are_open_) {
    are_open_ = false;
    for (Param& param : params_) {
      param.seal.close();
    }
  }
}

at::Tensor ParamGroup::all_gather_copy() const {
  at::NoGradGuard no_grad;
  const int64_t numel = store_.layout().shard_numel;
  at::Tensor whole =
      at::empty({store_.layout().numel()}, store_.shard().options().device(store_.device()));
  at::Tensor input = store_.shard();
  if (store_.is_offloaded()) {
    input = whole.narrow(0, comm_->rank() * numel, numel);
    input.copy_(store_.shard());
  }
  comm_->all_gather_into(whole, input, {Lane::kGather, purpose_})->wait();
  release_pages(store_.shard());
  return whole;
}

at::Tensor ParamGroup::gathered_copy(size_t index) const {
  at::NoGradGuard no_grad;
  return copy_of_whole(all_gather_copy(), store_.layout(), index, store_.shape(index));
}

bool ParamGroup::is_trainable() const {
  return std::any_of(params_.begin(), params_.end(), [](const Param& param) {
    const auto tensor = param.tensor.lock();
    return tensor && tensor->requires_grad();
  });
}

bool ParamGroup::is_accumulated() const {
  const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
  if (inputs == nullptr || inputs->empty()) {
    return is_trainable();
  }
  return std::any_of(params_.begin(), params_.end(), [inputs](const Param& param) {
    const auto tensor = param.tensor.lock();
    if (!tensor || !tensor->requires_grad()) {
      return false;
    }
    // Those that autograd hands to its caller instead are captured, but not needed.
    const auto found =
        inputs->find(torch::autograd::impl::try_get_grad_accumulator(at::Tensor(tensor)).get());
    return found != inputs->end() && found->second.needed_;
  });
}

void ParamGroup::begin_gradients() {
  if (!gradients_.is_collecting()) {
    context_->finish_reductions_through(reducer_);
    reducer_.arrive();
    if (leaves_) {
      leaves_->take_back(reducer_, uses_);
    }
    reducer_.begin();
    if (reducer_.is_local()) {
      // What earlier backwards have given is there and is added to.
      gradients_.begin_in(reducer_.memory(*context_), reducer_.gradient().defined());
    } else {
      gradients_.begin(*context_);
    }
  }
  gradients_.prepare(*context_);
}

void ParamGroup::start_reduction(bool all_reduces) {
  TORCH_INTERNAL_ASSERT(gradients_.is_collecting() && !reducer_.is_reducing());
  const bool is_used = !users_.empty() && (all_reduces || !replicas_);
  if (is_used) {
    context_->use_gradients();  // of the unit before, which was reduced during this backward
  }
  at::NoGradGuard no_grad;
  if (leaves_) {
    leaves_->take_back(reducer_, uses_);  // if an earlier backward has begun to collect
  }
  gradients_.hold_memory(*context_);
  gradients_.write(*context_);
  uses_.begin_round();
  for (size_t i = 0; i < size(); ++i) {
    if (gradients_.is_added_to(i)) {
      uses_.add_own(i);
    }
  }
  if (is_used) {
    context_->add_to_use(this);
  } else {
    context_->add_reduced(this);
  }
  reducer_.start(*context_, gradients_.take(), {purpose_, all_reduces});
}

void ParamGroup::settle_backward() { context_->settle_gradients(); }

void ParamGroup::settle_offload() {
  reducer_.arrive();
  store_.wait_for_copies();
}

void ParamGroup::settle_gradient() {
  settle_backward();
  context_->finish_reductions_through(reducer_);
  reducer_.arrive();
  comm_->check_results("the gradients");
  if (replicas_) {
    replicas_->check_results("the gradients");
  }
  if (leaves_) {
    leaves_->take_replaced();
  }
}

void ParamGroup::drop_gradient() {
  reducer_.drop();
  uses_.clear();
  gradients_.drop();
  if (leaves_) {
    leaves_->clear();
  }
}

void ParamGroup::drop_gradients(const std::vector<size_t>& indices) {
  context_->finish_reductions_through(reducer_);
  reducer_.arrive();
  for (const size_t index : indices) {
    gradients_.drop(index);  // before its memory is zeroed: somebody may have it on loan
    uses_.drop(index);
    if (leaves_) {
      leaves_->tensors()[index].mutable_grad().reset();
    }
  }
  if (is_gradient_needed()) {
    reducer_.zero(indices);
  } else {
    drop_gradient();  // so that the next one is written, and not added to zeros
  }
}

bool ParamGroup::is_gradient_needed() const {
  // The answer is the same on all ranks, as the operation of the next reduction has to be.
  if (gradients_.is_collecting() || reducer_.has_row_sum() || uses_.is_in_round()) {
    return true;
  }
  for (size_t i = 0; i < size(); ++i) {
    const bool is_shown = leaves_ && leaves_->tensors()[i].grad().defined();
    if (is_shown || (uses_.is_used(i) && !(leaves_ && leaves_->is_dropped(i)))) {
      return true;
    }
  }
  return false;
}

const std::vector<at::Tensor>& ParamGroup::leaves() {
  if (!leaves_) {
    settle_gradient();
    leaves_.emplace(store_, is_trainable());
    for (const at::Tensor& leaf : leaves_->tensors()) {
      LeafOwners::get().add(leaf, weak_from_this());
    }
    show_gradients();
  }
  return leaves_->tensors();
}

void ParamGroup::show_gradients() {
  if (leaves_) {
    leaves_->take_back(reducer_, uses_);  // if this backward has not come to the group
    leaves_->show(reducer_, uses_);
  }
}

}  // namespace fsdp
