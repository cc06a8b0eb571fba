// Here and not on the command line, so that this file can share the precompiled header.
#define USE_CUDA
#define USE_C10D_NCCL

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <array>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "fsdp_runtime/src/comm/arguments.h"
#include "fsdp_runtime/src/comm/c10d_store.h"
#include "fsdp_runtime/src/comm/nccl_entry.h"
#include "fsdp_runtime/src/comm/single_collectives.h"

namespace fsdp {
namespace {

using c10::cuda::CUDAStream;
using Group = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

c10d::ReduceOp nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown reduction ", static_cast<int>(op));
}

// Complete when the lane's stream has reached `done`.
class StreamWork : public Work {
 public:
  explicit StreamWork(at::cuda::CUDAEvent done) : done_(std::move(done)) {}
  void wait() override { done_.block(c10::cuda::getCurrentCUDAStream(done_.device_index())); }
  void synchronize() { done_.synchronize(); }

 private:
  at::cuda::CUDAEvent done_;
};

// Relies on NCCL_LAUNCH_ORDER_IMPLICIT=1, which init_process_group sets, against a deadlock of the
// lanes' kernels. CUDA_DEVICE_MAX_CONNECTIONS must stay at its default, because 1 serialises the
// lanes with compute.
//
// Each lane has a communicator and a high-priority stream. An operation waits for the work on the
// current stream at the time of issue and runs on the lane's stream as a synchronous c10d
// operation: no internal stream, no tensor stash, no record_stream. The caller keeps the tensors
// alive until a stream that waited has passed, so the allocator cannot reuse their memory too
// early.
class NcclCollectives : public Collectives {
 public:
  NcclCollectives(const std::shared_ptr<StoreClient>& store, const ProcessGroupOptions& options)
      : rank_(options.rank),
        size_(options.world_size),
        device_(c10::kCUDA, static_cast<c10::DeviceIndex>(options.local_rank)),
        streams_{new_stream(device_), new_stream(device_)} {
    for (size_t lane = 0; lane < groups_.size(); ++lane) {
      auto nccl = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
      nccl->timeout = options.timeout;
      nccl->group_name = "fsdp-lane" + std::to_string(lane);
      auto keys = c10::make_intrusive<ClientStore>(
          std::make_shared<StoreClient>(store->host(), store->port(), options.timeout),
          options.store_prefix + "/nccl" + std::to_string(lane));
      groups_[lane] = c10::make_intrusive<c10d::ProcessGroupNCCL>(keys, static_cast<int>(rank_),
                                                                  static_cast<int>(size_), nccl);
      groups_[lane]->setBoundDeviceId(device_);
      groups_[lane]->eagerConnectSingleDevice(device_);
    }
  }

  // Aborts locally: a collective shutdown could hang if a peer is gone.
  ~NcclCollectives() override {
    for (const Group& group : groups_) {
      try {
        group->abort();
      } catch (const std::exception& error) {
        TORCH_WARN("aborting an NCCL communicator: ", error.what());
      }
    }
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::string name() const override { return "nccl"; }
  c10::Device device() const override { return device_; }

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Lane lane) override {
    check_all_gather(output, input, size_, c10::kCUDA);
    return run(lane, [&](c10d::ProcessGroupNCCL& group) {
      c10d::AllgatherOptions options;
      options.asyncOp = false;
      group._allgather_base(output, input, options);
    });
  }

  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Lane lane) override {
    check_reduce_scatter(output, input, size_, c10::kCUDA);
    check_reduction(output, op);
    return run(lane, [&](c10d::ProcessGroupNCCL& group) {
      c10d::ReduceScatterOptions options;
      options.reduceOp = nccl_op(op);
      options.asyncOp = false;
      group._reduce_scatter_base(output, input, options);
    });
  }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Lane lane) override {
    check_tensor("all_reduce", tensor, c10::kCUDA);
    check_reduction(tensor, op);
    return run(lane, [&](c10d::ProcessGroupNCCL& group) {
      c10d::AllreduceOptions options;
      options.reduceOp = nccl_op(op);
      options.asyncOp = false;
      std::vector<at::Tensor> tensors{tensor};
      group.allreduce(tensors, options);
    });
  }

  WorkPtr broadcast(at::Tensor tensor, int64_t root, Lane lane) override {
    check_tensor("broadcast", tensor, c10::kCUDA);
    check_root(root, size_);
    return run(lane, [&](c10d::ProcessGroupNCCL& group) {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.asyncOp = false;
      std::vector<at::Tensor> tensors{tensor};
      group.broadcast(tensors, options);
    });
  }

  void barrier() override {
    c10::cuda::CUDAGuard guard(device_);
    at::Tensor token = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device_));
    const WorkPtr work = all_reduce(token, ReduceOp::kSum, Lane::kReduce);
    static_cast<StreamWork&>(*work).synchronize();
  }

 private:
  static CUDAStream new_stream(c10::Device device) {
    return c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index());
  }

  template <typename Issue>
  WorkPtr run(Lane lane, Issue issue) {
    const CUDAStream& stream = streams_[static_cast<size_t>(lane)];
    at::cuda::CUDAEvent ready;
    ready.record(c10::cuda::getCurrentCUDAStream(device_.index()));
    ready.block(stream);
    c10::cuda::CUDAStreamGuard guard(stream);
    issue(*groups_[static_cast<size_t>(lane)]);
    at::cuda::CUDAEvent done;
    done.record(stream);
    return std::make_shared<StreamWork>(std::move(done));
  }

  const int64_t rank_;
  const int64_t size_;
  const c10::Device device_;
  const std::array<CUDAStream, 2> streams_;
  std::array<Group, 2> groups_;
};

}  // namespace

extern "C" FSDP_API std::shared_ptr<Collectives>* fsdp_make_nccl_collectives(
    const std::shared_ptr<StoreClient>& store, const ProcessGroupOptions& options) {
  const auto devices = static_cast<int64_t>(c10::cuda::device_count());
  TORCH_CHECK(
      devices > 0,
      "init_process_group: backend nccl needs a GPU and none is visible (driver missing, or "
      "CUDA_VISIBLE_DEVICES empty); choose backend gloo or shm to train on CPUs");
  TORCH_CHECK(options.local_rank >= 0 && options.local_rank < devices,
              "init_process_group: local_rank ", options.local_rank, " but ", devices,
              " GPUs are visible; start one worker per GPU");
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.local_rank));
  c10::cuda::set_device(device.index());
  if (options.world_size == 1) {
    return new std::shared_ptr<Collectives>(make_single_collectives("nccl", device));
  }
  return new std::shared_ptr<Collectives>(std::make_shared<NcclCollectives>(store, options));
}

extern "C" FSDP_API int64_t fsdp_count_cuda_devices() {
  return static_cast<int64_t>(c10::cuda::device_count());
}

}  // namespace fsdp
