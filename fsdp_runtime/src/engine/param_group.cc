#include "fsdp_runtime/src/engine/param_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "fsdp_runtime/src/engine/run_context.h"

namespace fsdp {
namespace {

plan::GroupLayout layout_of(const std::vector<NamedParameter>& params, int64_t ranks) {
  std::vector<plan::ParamShape> shapes;
  shapes.reserve(params.size());
  for (const NamedParameter& param : params) {
    shapes.push_back({param.fqn, param.tensor.sizes().vec()});
  }
  return plan::make_group_layout(shapes, ranks);
}

bool is_unmaterialized(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.storage().data() == nullptr;
}

// For destructors and error paths, which may not throw; the error has been or will be reported
// elsewhere.
void wait_quietly(const WorkPtr& work) noexcept {
  try {
    if (work) {
      work->wait();
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): only the end of the operation matters here
  }
}

}  // namespace

ParamGroup::ParamGroup(const std::vector<NamedParameter>& params, const GroupOptions& options)
    : comm_(options.comm),
      dtype_(params.front().tensor.scalar_type()),
      compute_dtype_(options.param_dtype.value_or(dtype_)),
      reduce_dtype_(options.reduce_dtype.value_or(compute_dtype_)),
      device_(params.front().tensor.device()),
      layout_(layout_of(params, comm_->size())),
      slices_(plan::slices_of_rank(layout_, comm_->rank())),
      padding_(plan::padding_of(layout_)),
      storage_(layout_.numel() * static_cast<int64_t>(c10::elementSize(compute_dtype_)), device_),
      gradient_storage_(layout_.numel() * static_cast<int64_t>(c10::elementSize(reduce_dtype_)),
                        device_) {
  at::NoGradGuard no_grad;
  gathered_ = storage_.view(compute_dtype_, 0, {layout_.numel()});
  own_slice_ =
      storage_.view(compute_dtype_, comm_->rank() * layout_.shard_numel, {layout_.shard_numel});
  gathered_gradient_ = gradient_storage_.view(reduce_dtype_, 0, {layout_.numel()});
  copy_local_slices(params);
  retarget_parameters(params);
  make_gradient_views();
}

ParamGroup::~ParamGroup() {
  wait_quietly(gather_work_);
  wait_quietly(reduction_);
  if (!context_) {
    return;
  }
  context_->remove_reduction(this);
  if (slot_ != nullptr) {
    context_->release_parameter_slot(slot_);
  }
  for (Slot* slot : {gradient_slot_, reduced_slot_}) {
    if (slot != nullptr) {
      context_->release_gradient_slot(slot);
    }
  }
}

void ParamGroup::copy_local_slices(const std::vector<NamedParameter>& params) {
  shard_ = comm_->empty_for_comm(layout_.shard_numel, dtype_);
  shard_.zero_();
  for (size_t i = 0; i < params.size(); ++i) {
    const plan::ParamSlice& slice = slices_[i];
    if (slice.numel() == 0 || is_unmaterialized(params[i].tensor)) {
      continue;
    }
    shard_.narrow(0, slice.shard_offset, slice.numel())
        .copy_(params[i].tensor.detach().flatten().narrow(0, slice.flat_begin, slice.numel()));
  }
}

void ParamGroup::retarget_parameters(const std::vector<NamedParameter>& params) {
  params_.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    at::Tensor tensor = params[i].tensor;
    const std::vector<int64_t> shape = tensor.sizes().vec();
    tensor.mutable_grad().reset();
    tensor.set_data(storage_.view(compute_dtype_, layout_.params[i].offset, shape));
    params_.push_back({params[i].fqn, shape,
                       c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                       tensor.unsafeGetTensorImpl(), at::Tensor(), false, false});
  }
  own_uses_.assign(params_.size(), 0);
  is_used_.assign(params_.size(), 0);
}

void ParamGroup::make_gradient_views() {
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].gradient =
        gradient_storage_.view(reduce_dtype_, layout_.params[i].offset, params_[i].shape);
  }
}

void ParamGroup::check_unused() const {
  TORCH_CHECK(is_sharded() && !collects_gradients_ && gradient_slot_ == nullptr && !reduction_,
              "fully_shard: ", params_.front().fqn,
              " is in use; shard the root before the first forward");
}

void ParamGroup::set_context(std::shared_ptr<RunContext> context) {
  check_unused();
  context_ = std::move(context);
}

std::string ParamGroup::purpose() const {
  return unit_name_.empty() ? "the root unit" : "unit " + unit_name_;
}

bool ParamGroup::is_local() const { return comm_->size() == 1 && !casts_parameters(); }

void ParamGroup::start_unshard() {
  if (gather_ != Gather::kSharded) {
    return;
  }
  if (is_local()) {
    storage_.point_to(shard_.data_ptr());
    gather_ = Gather::kUnsharded;
    return;
  }
  at::NoGradGuard no_grad;
  comm_->name_next(purpose());
  slot_ = context_->acquire_parameter_slot(storage_.bytes());
  storage_.point_to(slot_->data());
  if (casts_parameters()) {
    own_slice_.copy_(shard_);
    gather_work_ = comm_->all_gather_into(gathered_, own_slice_, Lane::kGather);
  } else {
    gather_work_ = comm_->all_gather_into(gathered_, shard_, Lane::kGather);
  }
  gather_ = Gather::kInFlight;
  RuntimeCounters& counters = context_->counters_in_place();
  counters.gathers += 1;
  counters.gathered_bytes += storage_.bytes();
}

void ParamGroup::wait_for_unshard() {
  start_unshard();
  if (gather_ == Gather::kInFlight) {
    gather_work_->wait();
    gather_work_.reset();
    gather_ = Gather::kUnsharded;
  }
}

void ParamGroup::reshard() {
  if (gather_ == Gather::kSharded) {
    return;
  }
  if (gather_ == Gather::kInFlight) {
    gather_work_->wait();
    gather_work_.reset();
  }
  storage_.poison();
  gather_ = Gather::kSharded;
  if (slot_ != nullptr) {
    context_->release_parameter_slot(slot_);
    slot_ = nullptr;
  }
}

at::Tensor ParamGroup::all_gather_copy() const {
  at::NoGradGuard no_grad;
  at::Tensor whole =
      at::empty({layout_.numel()}, at::TensorOptions().dtype(dtype_).device(device_));
  comm_->name_next(purpose());
  comm_->all_gather_into(whole, shard_, Lane::kGather)->wait();
  return whole;
}

}  // namespace fsdp
