#include "fsdp_runtime/src/replicate/replica_tensors.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fsdp/device_mesh.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/registry.h"
#include "fsdp_runtime/src/state_dict/model_ranks.h"

namespace fsdp {
namespace {

constexpr const char* kReplicate = "DistributedDataParallel";
constexpr int64_t kBufferAlignment = 64;

std::vector<NamedParameter> all_tensors(const ReplicaTensors& tensors) {
  std::vector<NamedParameter> all;
  for (const auto* list : {&tensors.trained, &tensors.frozen, &tensors.buffers}) {
    all.insert(all.end(), list->begin(), list->end());
  }
  return all;
}

/// Why this rank cannot replicate them; "" if it can.
std::string replica_problem(const ReplicaTensors& tensors, c10::Device device) {
  if (!tensors.problem.empty()) {
    return tensors.problem;
  }
  for (const NamedParameter& tensor : all_tensors(tensors)) {
    if (const std::optional<Claim> owner = Registry::get().claim_of(tensor.tensor)) {
      return "parameter " + tensor.fqn +
             " has been sharded by fully_shard; for copies of shards give that a mesh of two axes";
    }
    if (tensor.tensor.device() != device) {
      return tensor.fqn + " is on " + tensor.tensor.device().str() + ", the group on " +
             device.str() + "; move the model there before, model->to(world->device())";
    }
    if (tensor.tensor.layout() != at::kStrided ||
        (tensor.tensor.numel() > 0 && tensor.tensor.storage().data() == nullptr)) {
      return tensor.fqn + " has no memory of its own; fill the model before";
    }
  }
  for (const NamedParameter& param : tensors.trained) {
    const at::ScalarType dtype = param.tensor.scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 &&
        dtype != at::kHalf) {
      return "the gradient of parameter " + param.fqn + " would be " + c10::toString(dtype) +
             ", which no group can reduce; float32, float64, bfloat16 or float16 expected";
    }
  }
  return tensors.trained.empty()
             ? "the module has no parameter that requires grad; train without it"
             : "";
}

/// A line for each tensor.
std::vector<std::string> descriptions(const ReplicaTensors& tensors) {
  std::vector<std::string> lines;
  const auto add = [&lines](const char* kind, const std::vector<NamedParameter>& list) {
    for (const NamedParameter& tensor : list) {
      std::ostringstream line;
      line << kind << tensor.fqn << " of shape " << tensor.tensor.sizes() << " and dtype "
           << tensor.tensor.scalar_type();
      lines.push_back(line.str());
    }
  };
  add("parameter ", tensors.trained);
  add("frozen parameter ", tensors.frozen);
  add("buffer ", tensors.buffers);
  return lines;
}

/// Where this rank differs from rank 0; "" if it does not.
std::string difference(const std::vector<std::string>& own, const std::string& text_of_first) {
  std::istringstream text(text_of_first);
  std::string line;
  size_t count = 0;
  for (; std::getline(text, line); ++count) {
    if (count == own.size() || own[count] != line) {
      return (count < own.size() ? own[count] : "nothing") + " here, where rank 0 has " + line +
             "; make the same module on all ranks";
    }
  }
  return count < own.size()
             ? own[count] + " here, which rank 0 has not; make the same module on all ranks"
             : "";
}

}  // namespace

ReplicaTensors replica_tensors(const std::shared_ptr<torch::nn::Module>& module,
                               const std::vector<std::string>& ignored) {
  ReplicaTensors tensors;
  std::unordered_set<const c10::TensorImpl*> seen;  // looked up only, never iterated
  std::unordered_set<std::string> found;            // looked up only, never iterated
  const auto is_new = [&](const std::string& name, const at::Tensor& tensor) {
    if (std::find(ignored.begin(), ignored.end(), name) != ignored.end()) {
      found.insert(name);
      return false;
    }
    return tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second;
  };
  walk_modules(module, "", [&](const std::string& name, const auto& visited) {
    for (const auto& param : visited->named_parameters(/*recurse=*/false)) {
      const std::string fqn = join_names(name, param.key());
      if (is_new(fqn, param.value())) {
        (param.value().requires_grad() ? tensors.trained : tensors.frozen)
            .push_back({fqn, param.value()});
      }
    }
    for (const auto& buffer : visited->named_buffers(/*recurse=*/false)) {
      const std::string fqn = join_names(name, buffer.key());
      if (is_new(fqn, buffer.value())) {
        tensors.buffers.push_back({fqn, buffer.value()});
      }
    }
    return true;
  });
  for (const std::string& name : ignored) {
    if (!found.contains(name)) {
      tensors.problem = name + " of params_and_buffers_to_ignore is no parameter or buffer of " +
                        module->name() +
                        "; take the names of named_parameters() and "
                        "named_buffers()";
    }
  }
  return tensors;
}

void check_replicas(const ReplicaTensors& tensors, const std::string& options_problem,
                    const std::shared_ptr<Collectives>& comm) {
  const auto mesh = init_device_mesh(comm->device().type(), {comm->size()}, {"dp_replicate"}, comm);
  const ModelRanks ranks(*mesh, kReplicate);
  ranks.agree(options_problem.empty() ? replica_problem(tensors, comm->device()) : options_problem,
              0);
  const std::vector<std::string> own = descriptions(tensors);
  std::string text;
  for (const std::string& line : own) {
    text += line + '\n';
  }
  ranks.agree(difference(own, ranks.text_of_first(text)), 0);
}

void send_tensors(const std::vector<NamedParameter>& tensors, Collectives& comm, int64_t root) {
  const at::NoGradGuard no_grad;
  struct Sent {
    at::Tensor target;
    at::Tensor dense;
    WorkPtr work;
  };
  std::vector<Sent> all;
  for (const NamedParameter& tensor : tensors) {
    if (tensor.tensor.numel() > 0) {
      const at::Tensor target = tensor.tensor.detach();
      const at::Tensor dense = target.contiguous();
      all.push_back(
          {target, dense, comm.broadcast(dense, root, {Lane::kReduce, "the initial parameters"})});
    }
  }
  for (const Sent& sent : all) {
    sent.work->wait();
    if (!sent.dense.is_same(sent.target)) {
      sent.target.copy_(sent.dense);
    }
  }
}

BufferMessage::BufferMessage(Collectives& comm, const std::vector<NamedParameter>& buffers) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
  for (const NamedParameter& buffer : buffers) {
    if (buffer.tensor.numel() > 0) {
      buffers_.push_back(buffer.tensor);
      offsets.push_back(bytes);
      const auto own = static_cast<int64_t>(buffer.tensor.numel() * buffer.tensor.element_size());
      bytes += (own + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    }
  }
  if (buffers_.empty()) {
    return;
  }
  bytes_ = comm.empty_for_comm(bytes, at::kByte).zero_();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const at::Tensor& buffer = buffers_[i];
    parts_.push_back(
        bytes_.narrow(0, offsets[i], buffer.numel() * static_cast<int64_t>(buffer.element_size()))
            .view(buffer.scalar_type())
            .view(buffer.sizes()));
  }
}

void BufferMessage::send(Collectives& comm, int64_t root) {
  const at::NoGradGuard no_grad;
  if (comm.rank() == root) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].copy_(buffers_[i]);
    }
  }
  comm.broadcast(bytes_, root, {Lane::kReduce, "buffers"})->wait();
  if (comm.rank() != root) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      buffers_[i].copy_(parts_[i]);
    }
  }
}

}  // namespace fsdp
