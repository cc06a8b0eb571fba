#include "worker/train/job.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/process_group.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdlib>

#include "formats/json/strict_json.h"
#include "worker/train/agreement.h"
#include "worker/weights/load_weights.h"

namespace fsdprun::worker {
namespace {

at::ScalarType DtypeNamed(const std::string& name) {
  return name == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

/// An unset dtype avoids a no-op cast in the runtime.
std::optional<at::ScalarType> UnlessFloat32(const std::string& name) {
  return name == "float32" ? std::nullopt : std::optional(DtypeNamed(name));
}

fsdp::MixedPrecisionPolicy Policy(const TrainConfig::Precision& precision, bool is_root) {
  fsdp::MixedPrecisionPolicy policy;
  policy.param_dtype = UnlessFloat32(precision.param);
  const bool is_mixed = precision.param != "float32" || precision.reduce != "float32";
  if (is_mixed) {
    policy.reduce_dtype = DtypeNamed(precision.reduce);
  }
  if (is_root && precision.output != precision.param) {
    policy.output_dtype = DtypeNamed(precision.output);
  }
  return policy;
}

// fsdp::cuda_device_count() loads LibTorch's CUDA libraries, so it must be called before any other
// CUDA query.
at::Device ChooseDevice(const fsdp::ProcessGroupOptions& options) {
  const bool may_use_cuda = options.backend == "auto" || options.backend == "nccl";
  const int64_t gpus = may_use_cuda ? fsdp::cuda_device_count() : 0;
  if (gpus == 0) {
    TORCH_CHECK(
        options.backend != "nccl",
        "parallel.backend is nccl, but no GPU can be used here (no driver, none visible, or "
        "a CPU build of LibTorch); choose auto, gloo or shm to train on CPUs");
    return at::kCPU;
  }
  TORCH_CHECK(options.local_rank < gpus, "local rank ", options.local_rank, " but ", gpus,
              " GPUs are visible; start one worker per GPU, each of which sees all of them (Slurm: "
              "--gpus-per-node, not --gpus-per-task), or set parallel.backend to gloo or shm");
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.local_rank));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

/// The rest of what ranks must agree in is compared by the group, once there is one.
std::string Described(const fsdp::OptionMismatch& mismatch) {
  const bool is_backend = mismatch.option == "backend";
  return "rank " + std::to_string(mismatch.rank) + ": " +
         (is_backend ? "parallel.backend" : "the type of the device") + " is " + mismatch.value +
         ", rank 0 has " + mismatch.value_of_rank0 +
         (is_backend ? "; start all nodes with the same configuration"
                     : "; make GPUs visible on all nodes, or set parallel.backend to gloo or shm");
}

/// Copies of the model along the first axis, if there are several, and shards along the last.
std::shared_ptr<fsdp::DeviceMesh> MakeMesh(int64_t copies, const Job& job) {
  const int64_t ranks = job.group->size();
  if (copies == 1) {
    return fsdp::init_device_mesh(job.device.type(), {ranks}, {"dp_shard"}, job.group);
  }
  if (ranks % copies != 0) {
    throw ConfigError("parallel.dp_replicate is " + std::to_string(copies) + ", and " +
                      std::to_string(ranks) +
                      " ranks cannot be divided into as many equal parts; set it to a divisor of " +
                      std::to_string(ranks) + " or change the number of workers");
  }
  return fsdp::init_device_mesh(job.device.type(), {copies, ranks / copies},
                                {"dp_replicate", "dp_shard"}, job.group);
}

}  // namespace

Job JoinRanks(const TrainConfig& config) {
  auto options = fsdp::ProcessGroupOptions::from_environment(at::kCPU);  // chosen below
  options.backend = config.parallel.backend;
  options.timeout = std::chrono::seconds(config.parallel.timeout_seconds);
  Job job;
  job.device = ChooseDevice(options);
  options.device_type = job.device.type();
  try {
    job.group = fsdp::init_process_group(options);
  } catch (const fsdp::OptionMismatch& mismatch) {
    throw DisagreementError(Described(mismatch));
  }
  return job;
}

void ShardModel(const TrainConfig& config, const LlamaConfig& llama, Job& job) {
  const std::shared_ptr<fsdp::DeviceMesh> mesh = MakeMesh(config.parallel.dp_replicate, job);

  fsdp::FullyShardOptions blocks;
  blocks.mesh = mesh;
  blocks.reshard_after_forward = config.parallel.strategy == "full_shard";
  blocks.mp_policy = Policy(config.precision, /*is_root=*/false);
  fsdp::FullyShardOptions root = blocks;
  root.reshard_after_forward = false;
  root.mp_policy = Policy(config.precision, /*is_root=*/true);

  job.model = fsdp::Unit<Llama>(
      std::make_shared<Llama>(llama, ParameterFactory{job.device, /*is_unmaterialized=*/true}));
  job.root = job.model->Shard(blocks, root);
}

Job MakeJob(const TrainConfig& config, const LlamaConfig& llama) {
  Job job = JoinRanks(config);
  ShardModel(config, llama, job);
  return job;
}

void FillWeights(const TrainConfig& config, Job& job) {
  const LlamaConfig& llama = job.model->config();
  if (config.model.weights != "none") {
    LoadWeights(config.model.weights, job.root.sharded_parameters(), llama.tie_word_embeddings);
    return;
  }
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(config.model.seed);
  job.root.init_parameters([&](const std::string& fqn, at::Tensor full) {
    // Always generated on the CPU, so that a seed gives the same model on every device.
    const at::Tensor drawn = full.is_cpu() ? full : at::empty_like(full, at::kCPU);
    InitLlamaParameter(llama, fqn, drawn, generator);
    if (!full.is_cpu()) {
      full.copy_(drawn);
    }
  });
}

bool HasFiniteWeights(const Job& job) {
  const at::NoGradGuard no_grad;
  at::Tensor largest = at::zeros({1}, at::TensorOptions(at::kFloat).device(job.device));
  for (const fsdp::LocalShard& slice : job.root.sharded_parameters()) {
    if (slice.local.numel() > 0) {
      largest = at::maximum(largest, at::linalg_vector_norm(slice.local, INFINITY).to(at::kFloat));
    }
  }
  const at::Tensor bad_count = at::isfinite(largest).logical_not().to(at::kFloat);
  job.group->all_reduce(bad_count, fsdp::ReduceOp::kSum, fsdp::Lane::kReduce)->wait();
  return bad_count.item<float>() == 0;
}

DeviceMemory MemoryOf(at::Device device) {
  if (!device.is_cuda()) {
    return {};
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak};
}

int64_t PeakMemoryBytes(at::Device device) {
  if (device.is_cuda()) {
    return MemoryOf(device).peak_bytes;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void SetThreads(int64_t world_size) {
  const char* given = std::getenv("OMP_NUM_THREADS");
  const int threads = given != nullptr ? std::atoi(given) : 0;
  if (threads > 0) {
    at::set_num_threads(threads);
  } else if (world_size > 1) {
    at::set_num_threads(1);
  }
}

}  // namespace fsdprun::worker
