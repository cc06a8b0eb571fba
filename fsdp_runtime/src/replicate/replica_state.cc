#include "fsdp_runtime/src/replicate/replica_state.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace fsdp {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

/// Of this rank; "" if there is none.
std::string options_problem(const DistributedDataParallelOptions& options) {
  return options.bucket_cap_mb > 0 && std::isfinite(options.bucket_cap_mb)
             ? ""
             : "bucket_cap_mb is " + std::to_string(options.bucket_cap_mb) +
                   ", expected a number above 0";
}

ReducerOptions reducer_options(const DistributedDataParallelOptions& options) {
  const auto bytes = static_cast<int64_t>(std::ceil(options.bucket_cap_mb * kMiB));
  return {.find_unused_parameters = options.find_unused_parameters,
          .static_graph = options.static_graph,
          .limits = {.first_bytes = std::min(bytes, static_cast<int64_t>(kMiB)), .bytes = bytes}};
}

}  // namespace

ReplicaState::ReplicaState(const std::shared_ptr<torch::nn::Module>& module,
                           std::shared_ptr<Collectives> comm,
                           const DistributedDataParallelOptions& options)
    : comm_(std::move(comm)),
      tensors_(replica_tensors(module, options.params_and_buffers_to_ignore)),
      buffers_(*comm_, options.broadcast_buffers && comm_->size() > 1
                           ? tensors_.buffers
                           : std::vector<NamedParameter>()) {
  check_replicas(tensors_, options_problem(options), comm_);
  if (options.init_sync) {
    for (const auto* list : {&tensors_.trained, &tensors_.frozen, &tensors_.buffers}) {
      send_tensors(*list, *comm_, /*root=*/0);
    }
  }
  reducer_ = std::make_shared<BucketReducer>(tensors_.trained, comm_, reducer_options(options));
  reducer_->install_hooks();
}

void ReplicaState::prepare_forward() {
  reducer_->settle();
  const bool has_round = at::GradMode::is_enabled() && reducer_->is_synced();
  if (is_joining_) {
    announce_forward(has_round);
  }
  if (sends_buffers_ && !buffers_.is_empty()) {
    buffers_.send(*comm_, root_);
  }
  sends_buffers_ = has_round;
}

void ReplicaState::prepare_backward(const std::vector<at::Tensor>& outputs) {
  if (at::GradMode::is_enabled() && reducer_->is_synced()) {
    reducer_->watch(outputs);
  }
}

}  // namespace fsdp
