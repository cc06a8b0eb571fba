#include <ATen/ATen.h>
#include <fsdp/distributed_data_parallel.h>
#include <torch/nn/module.h>

#include <utility>

#include "fsdp_runtime/src/comm/worlds.h"
#include "fsdp_runtime/src/replicate/replica_state.h"

namespace fsdp {

NoSync::NoSync(std::shared_ptr<ReplicaState> state)
    : state_(std::move(state)), was_synced_(state_->reducer().is_synced()) {
  state_->reducer().set_synced(false);
}

NoSync::~NoSync() {
  if (state_) {  // it has not been moved from
    state_->reducer().set_synced(was_synced_);
  }
}

NoSync ReplicateModule::no_sync() const { return NoSync(state_); }

void ReplicateModule::set_requires_gradient_sync(bool requires_gradient_sync) const {
  state_->reducer().set_synced(requires_gradient_sync);
}

void ReplicateModule::register_comm_hook(CommHook hook) const {
  state_->reducer().set_hook(std::move(hook));
}

void ReplicateModule::join(const std::function<void()>& body, const JoinOptions& options) const {
  state_->join(body, options);
}

std::vector<std::vector<std::string>> ReplicateModule::buckets() const {
  return state_->reducer().bucket_names();
}

void ReplicateModule::prepare_forward() const { state_->prepare_forward(); }

void ReplicateModule::prepare_backward(const std::vector<at::Tensor>& outputs) const {
  state_->prepare_backward(outputs);
}

void ReplicateModule::prepare_backward(const std::vector<at::Tensor*>& outputs) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(outputs.size());
  for (const at::Tensor* output : outputs) {
    tensors.push_back(*output);
  }
  state_->prepare_backward(tensors);
}

ReplicateModule replicate(const std::shared_ptr<torch::nn::Module>& module,
                          const DistributedDataParallelOptions& options) {
  TORCH_CHECK(module, "DistributedDataParallel: module is null");
  std::shared_ptr<Collectives> group = options.process_group;
  if (!group) {
    group = Worlds::get().only("DistributedDataParallel without a process_group");
  }
  return ReplicateModule(std::make_shared<ReplicaState>(module, std::move(group), options));
}

}  // namespace fsdp
