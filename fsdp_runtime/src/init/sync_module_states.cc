#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fsdp/initialize.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fsdp_runtime/src/comm/worlds.h"
#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/state_dict/model_ranks.h"
#include "fsdp_runtime/src/state_dict/texts.h"

namespace fsdp {
namespace {

constexpr const char* kSync = "sync_module_states";

struct SyncTensor {
  std::string name;
  at::Tensor tensor;
};

/// What of a module is whole on each rank, and the groups of what is sharded.
struct SyncStates {
  std::vector<SyncTensor> whole;
  std::vector<ParamGroup*> groups;
};

SyncStates states_of(const std::shared_ptr<torch::nn::Module>& module) {
  SyncStates states;
  std::unordered_set<const c10::TensorImpl*> seen;  // or sharded; looked up only, never iterated
  for (const std::shared_ptr<ModuleState>& unit : units_below({module})) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      states.groups.push_back(group.get());
      for (size_t i = 0; i < group->size(); ++i) {
        seen.insert(group->key(i));
      }
    }
  }
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      states.whole.push_back({name, tensor.detach()});
    }
  };
  walk_modules(module, "", [&](const std::string& name, const auto& visited) {
    for (const auto& param : visited->named_parameters(/*recurse=*/false)) {
      add(join_names(name, param.key()), param.value());
    }
    for (const auto& buffer : visited->named_buffers(/*recurse=*/false)) {
      add(join_names(name, buffer.key()), buffer.value());
    }
    return true;
  });
  return states;
}

std::string sync_problem(const SyncStates& states, c10::Device device) {
  for (const SyncTensor& state : states.whole) {
    if (state.tensor.device() != device) {
      return state.name + " is on " + state.tensor.device().str() + ", the mesh's group on " +
             device.str() + "; move the module there before";
    }
    if (state.tensor.numel() > 0 && state.tensor.storage().data() == nullptr) {
      return state.name +
             " has no memory; shard the module and fill it by init_parameters(), which gives the "
             "same on all ranks, or from a state dict with broadcast_from_rank0";
    }
  }
  return "";
}

uint64_t sync_digest(const SyncStates& states, int64_t bucket_bytes) {
  TextDigest digest;
  digest.mix(bucket_bytes);
  for (const SyncTensor& state : states.whole) {
    digest.mix(state.name);
    digest.mix(state.tensor.scalar_type());
    digest.mix(state.tensor.dim());
    for (const int64_t size : state.tensor.sizes()) {
      digest.mix(size);
    }
  }
  for (const ParamGroup* group : states.groups) {
    for (size_t i = 0; i < group->size(); ++i) {
      digest.mix(group->store().fqn(i));
    }
  }
  return digest.value();
}

/// Sends bytes of many tensors together.
class Bucket {
 public:
  Bucket(const ModelRanks& ranks, int64_t bytes) : ranks_(ranks), capacity_(bytes) {}

  void add(const at::Tensor& tensor) {
    const at::Tensor dense = tensor.contiguous();
    const at::Tensor bytes = dense.view({-1}).view(at::kByte);
    for (int64_t begin = 0; begin < bytes.numel();) {
      const int64_t size = std::min(bytes.numel() - begin, capacity_ - filled_);
      pieces_.push_back(bytes.narrow(0, begin, size));
      filled_ += size;
      begin += size;
      if (filled_ == capacity_) {
        send();
      }
    }
    if (!dense.is_same(tensor)) {
      send();
      tensor.copy_(dense);
    }
  }

  void send() {
    if (filled_ == 0) {
      return;
    }
    at::Tensor bytes =
        ranks_.is_first()
            ? at::cat(pieces_)
            : at::empty({filled_}, at::TensorOptions(at::kByte).device(ranks_.device()));
    ranks_.send_from_first(bytes);
    int64_t begin = 0;
    for (const at::Tensor& piece : pieces_) {
      if (!ranks_.is_first()) {
        piece.copy_(bytes.narrow(0, begin, piece.numel()));
      }
      begin += piece.numel();
    }
    pieces_.clear();
    filled_ = 0;
  }

 private:
  const ModelRanks& ranks_;
  const int64_t capacity_;
  std::vector<at::Tensor> pieces_;
  int64_t filled_ = 0;
};

void sync_copies(ParamGroup& group, int64_t bucket_bytes) {
  if (!group.replicas()) {
    return;
  }
  const at::Tensor& shard = group.store().shard();
  const int64_t piece =
      std::max<int64_t>(bucket_bytes / static_cast<int64_t>(shard.element_size()), 1);
  for (int64_t begin = 0; begin < shard.numel(); begin += piece) {
    const int64_t numel = std::min(piece, shard.numel() - begin);
    at::Tensor own = shard.narrow(0, begin, numel);
    const at::Tensor sent = group.store().is_offloaded() ? own.to(group.store().device()) : own;
    group.replicas()->broadcast(sent, /*root=*/0, {Lane::kReduce, kSync})->wait();
    if (!sent.is_same(own)) {
      own.copy_(sent);
    }
    release_pages(own);
  }
}

std::shared_ptr<DeviceMesh> mesh_of_world() {
  const std::shared_ptr<Collectives> world =
      Worlds::get().only("sync_module_states without a mesh");
  return init_device_mesh(world->device().type(), {world->size()}, {"dp_shard"}, world);
}

}  // namespace

void sync_module_states(const std::shared_ptr<torch::nn::Module>& module,
                        const std::shared_ptr<DeviceMesh>& mesh, int64_t bucket_bytes) {
  TORCH_CHECK(module, "sync_module_states: module is null");
  TORCH_CHECK(bucket_bytes > 0, "sync_module_states: bucket_bytes is ", bucket_bytes,
              ", expected at least 1");
  const at::NoGradGuard no_grad;
  const ModelRanks ranks(mesh ? *mesh : *mesh_of_world(), kSync);
  const SyncStates states = states_of(module);
  ranks.agree(sync_problem(states, ranks.device()), sync_digest(states, bucket_bytes));
  ranks.together([&] {
    Bucket bucket(ranks, bucket_bytes);
    for (const SyncTensor& state : states.whole) {
      bucket.add(state.tensor);
    }
    bucket.send();
    for (ParamGroup* group : states.groups) {
      group->prepare_to_write();
      sync_copies(*group, bucket_bytes);
    }
  });
}

}  // namespace fsdp
