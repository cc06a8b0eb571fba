// Here and not on the command line, so that this file can share the precompiled header.
#define USE_CUDA
#define USE_C10D_NCCL

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <nccl.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "fsdp_runtime/src/comm/arguments.h"
#include "fsdp_runtime/src/comm/c10d_store.h"
#include "fsdp_runtime/src/comm/collective_board.h"
#include "fsdp_runtime/src/comm/device_operation.h"
#include "fsdp_runtime/src/comm/device_watch.h"
#include "fsdp_runtime/src/comm/ended_work.h"
#include "fsdp_runtime/src/comm/group_error.h"
#include "fsdp_runtime/src/comm/nccl_entry.h"
#include "fsdp_runtime/src/comm/single_collectives.h"
#include "fsdp_runtime/src/comm/stream_lanes.h"
#include "fsdp_runtime/src/nccl/world_communicators.h"

namespace fsdp {
namespace {

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

// Any thread, with no context of its own, and also while a graph is captured, by it or another,
// when a query is illegal otherwise.
bool has_passed_on_device(const EventPtr& event) {
  try {
    const c10::cuda::CUDAGuard device(event->device_index());
    const c10::cuda::CUDAStreamCaptureModeGuard mode(cudaStreamCaptureModeRelaxed);
    return has_passed(event);
  } catch (const std::exception&) {
    return true;  // the device has failed, as the caller's next use of it tells
  }
}

/// Whether what the current stream is given becomes a part of a graph, and does not run now.
bool is_captured() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

/// The same, of the current stream of the device of `event`.
bool is_captured_beside(const EventPtr& event) {
  const c10::cuda::CUDAGuard device(event->device_index());
  return is_captured();
}

/// What an operation on a lane of a GPU gives.
class NcclWork : public StreamWork {
 public:
  NcclWork(const EventPtr& done, const std::string& operation, const GroupPlace& place)
      : StreamWork(done, operation, place), done_(done), operation_(operation) {}
  /// CUDA would refuse it, too, end the capture, and not say which operation it was.
  void wait() override {
    TORCH_CHECK(!is_captured_beside(done_), operation_,
                " was issued outside the CUDA graph that is captured now, which cannot wait for "
                "it; wait for it before the capture begins");
    StreamWork::wait();
  }
  bool is_done() override { return has_passed_on_device(done_); }

 private:
  const EventPtr done_;
  const std::string operation_;
};

/// What an operation that a graph was given gives: nothing is in flight. To ask for its event, or
/// to wait for that on the host, is an error, which ends the capture.
class CapturedWork : public StreamWork {
 public:
  CapturedWork(const EventPtr& done, const std::string& operation, const GroupPlace& place)
      : StreamWork(done, operation, place), done_(done), operation_(operation) {}
  void wait() override {
    TORCH_CHECK(is_captured_beside(done_), operation_,
                " is a part of a CUDA graph, and the current stream is not captured; wait for it "
                "on a captured stream before the capture ends");
    StreamWork::wait();
  }
  bool is_done() override { return true; }
  void wait_on_host() override {
    TORCH_CHECK(false, operation_,
                " is a part of a CUDA graph, so the host cannot wait for it; replay the graph, and "
                "wait for its stream");
  }

 private:
  const EventPtr done_;
  const std::string operation_;
};

/// The communicators of the lanes.
class NcclCommunicators : public Communicators {
 public:
  NcclCommunicators(std::array<Group, 2> groups, c10::Device device, const Membership* membership)
      : groups_(std::move(groups)), device_(device), world_(WorldCommunicators::of(membership)) {
    const c10::cuda::CUDAGuard guard(device_);
    for (size_t lane = 0; lane < groups_.size(); ++lane) {
      comms_[lane] = reinterpret_cast<ncclComm_t>(groups_[lane]->getCommPtr());
      if (comms_[lane] != nullptr) {
        world_->add(comms_[lane]);
      }
    }
  }

  ~NcclCommunicators() override { forget(); }

  c10d::ProcessGroupNCCL& lane(size_t lane) { return *groups_[lane]; }
  const Group& group(size_t lane) const { return groups_[lane]; }

  std::string asynchronous_error() override {
    static const auto get =
        entry_of_nccl<decltype(&::ncclCommGetAsyncError)>("ncclCommGetAsyncError");
    static const auto text = entry_of_nccl<decltype(&::ncclGetErrorString)>("ncclGetErrorString");
    std::lock_guard lock(mu_);
    for (const ncclComm_t comm : comms_) {
      ncclResult_t error = ncclSuccess;
      if (comm != nullptr && get != nullptr &&
          (get(comm, &error) != ncclSuccess || (error != ncclSuccess && error != ncclInProgress))) {
        return std::string("NCCL reports: ") + (text == nullptr ? "an error" : text(error));
      }
    }
    return "";
  }

  /// Those of the other groups as well: they fail together. Nothing once these are being freed.
  void revoke() override {
    {
      std::lock_guard lock(mu_);
      if (comms_ == std::array<ncclComm_t, 2>{}) {
        return;
      }
    }
    world_->revoke(device_);
  }

  void abort() override {
    forget();
    const c10::cuda::CUDAGuard guard(device_);
    for (const Group& group : groups_) {
      group->abort();
    }
  }

  /// Not interrupted by revoke(): what it would stop is being freed.
  void shutdown() override {
    forget();
    const c10::cuda::CUDAGuard guard(device_);
    for (const Group& group : groups_) {
      group->shutdown();
    }
  }

  void warn(const std::string& what) override { TORCH_WARN(what); }

 private:
  /// LibTorch frees them.
  void forget() {
    std::array<ncclComm_t, 2> comms = {};
    {
      std::lock_guard lock(mu_);
      comms = std::exchange(comms_, {});
    }
    for (const ncclComm_t comm : comms) {
      world_->remove(comm);
    }
  }

  const std::array<Group, 2> groups_;
  const c10::Device device_;
  const std::shared_ptr<WorldCommunicators> world_;
  std::mutex mu_;
  std::array<ncclComm_t, 2> comms_ = {};  // guarded by mu_; null once they are being freed
};

/// A communicator for each lane: of its own, or split from those of `whole`.
std::array<Group, 2> make_groups(const NcclFormation& formation, NcclCommunicators* whole,
                                 c10::Device device) {
  const ProcessGroupOptions& options = formation.options;
  std::array<Group, 2> groups;
  for (size_t lane = 0; lane < groups.size(); ++lane) {
    auto nccl = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    nccl->timeout = 2 * options.timeout;  // LibTorch's word comes after that of DeviceWatch
    nccl->group_name = "fsdp-lane" + std::to_string(lane);
    if (whole != nullptr) {
      nccl->split_from = whole->group(lane);
      nccl->split_color = static_cast<int>(formation.place.world_ranks.front());
    }
    auto keys = c10::make_intrusive<ClientStore>(
        std::make_shared<StoreClient>(formation.store->host(), formation.store->port(),
                                      options.timeout),
        options.store_prefix + "/nccl" + std::to_string(lane));
    groups[lane] = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        keys, static_cast<int>(options.rank), static_cast<int>(options.world_size), nccl);
    groups[lane]->setBoundDeviceId(device);
    groups[lane]->eagerConnectSingleDevice(device);
  }
  return groups;
}

/// NCCL waits for the peers without a bound, and nothing can end that before it has returned.
std::array<Group, 2> make_groups_in_time(const NcclFormation& formation, NcclCommunicators* whole,
                                         c10::Device device) {
  const auto made = std::make_shared<std::array<Group, 2>>();
  form_within(formation.place, [made, formation, whole, device] {  // `formation` keeps `whole`
    const c10::cuda::CUDAGuard guard(device);
    *made = make_groups(formation, whole, device);
  });
  return *made;
}

// Relies on NCCL_LAUNCH_ORDER_IMPLICIT=1, which init_process_group sets, against a deadlock of the
// lanes' kernels. CUDA_DEVICE_MAX_CONNECTIONS must stay at its default, because 1 serialises the
// lanes with compute.
//
// Each lane has a communicator and a stream, which StreamLanes orders. An operation runs on the
// lane's stream as a synchronous c10d operation: no internal stream, no tensor stash, no
// record_stream. The caller keeps the tensors alive until a stream that waited has passed, so the
// allocator cannot reuse their memory too early.
class NcclCollectives : public Collectives {
 public:
  NcclCollectives(const NcclFormation& formation, NcclCommunicators* whole)
      : place_(formation.place),
        group_text_(group_text(place_.world_ranks)),
        device_(c10::kCUDA, static_cast<c10::DeviceIndex>(formation.options.local_rank)),
        lanes_(device_),
        communicators_(std::make_shared<NcclCommunicators>(
            make_groups_in_time(formation, whole, device_), device_, place_.membership.get())),
        watch_(place_, communicators_, {}) {}

  NcclCommunicators& communicators() { return *communicators_; }
  int64_t rank() const override { return place_.rank; }
  int64_t size() const override { return place_.size; }
  std::vector<int64_t> world_ranks() const override {
    return place_.world_ranks.empty() ? Collectives::world_ranks() : place_.world_ranks;
  }
  std::string name() const override { return "nccl"; }
  c10::Device device() const override { return device_; }

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    check_all_gather(output, input, size(), c10::kCUDA);
    return run_collective("all_gather", output.nbytes(), issue, [&](c10d::ProcessGroupNCCL& group) {
      c10d::AllgatherOptions options;
      options.asyncOp = false;
      group._allgather_base(output, input, options);
    });
  }

  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    check_reduce_scatter(output, input, size(), c10::kCUDA);
    check_reduction(output, op);
    return run_collective("reduce_scatter", input.nbytes(), issue,
                          [&](c10d::ProcessGroupNCCL& group) {
                            c10d::ReduceScatterOptions options;
                            options.reduceOp = nccl_op(op);
                            options.asyncOp = false;
                            group._reduce_scatter_base(output, input, options);
                          });
  }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
    check_tensor("all_reduce", tensor, c10::kCUDA);
    check_reduction(tensor, op);
    return run_collective("all_reduce", tensor.nbytes(), issue, [&](c10d::ProcessGroupNCCL& group) {
      c10d::AllreduceOptions options;
      options.reduceOp = nccl_op(op);
      options.asyncOp = false;
      std::vector<at::Tensor> tensors{tensor};
      group.allreduce(tensors, options);
    });
  }

  WorkPtr broadcast(at::Tensor tensor, int64_t root, Issue issue) override {
    check_tensor("broadcast", tensor, c10::kCUDA);
    check_root(root, size());
    return run_collective("broadcast", tensor.nbytes(), issue, [&](c10d::ProcessGroupNCCL& group) {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.asyncOp = false;
      std::vector<at::Tensor> tensors{tensor};
      group.broadcast(tensors, options);
    });
  }

  void barrier() override {
    c10::cuda::CUDAGuard guard(device_);
    TORCH_CHECK(
        !is_captured(),
        "barrier: the host cannot wait for the ranks while a CUDA graph is captured; call it "
        "before that, or behind it");
    at::Tensor token = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device_));
    // The current stream waits, too, because it is its order in which the token's memory goes back.
    all_reduce(token, ReduceOp::kSum, Lane::kReduce)->wait();
    wait_for_launched(place_, watch_, "barrier on lane 1");
  }

  void check_results(const std::string& operation) const override {
    check_groups(place_, operation);
  }

  void abort(const std::string& reason) override {
    place_.membership->revoke({"rank " + std::to_string(place_.world_rank(place_.rank)) +
                                   " aborted all groups: " + reason,
                               {}});
  }

  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
    return launch_stage(stage, [&](const auto& run_stage) {
      return run("stage", issue, nullptr, [&](c10d::ProcessGroupNCCL&) { run_stage(); });
    });
  }

 private:
  template <typename Launch>
  WorkPtr run_collective(const char* kind, size_t bytes, const Issue& issue, Launch launch) {
    const CollectiveBoard::What what{kind, group_text_, issue.purpose, bytes};
    return run(kind, issue, std::make_shared<OpenCollective>(what), launch);
  }

  /// `open` ends when the watch has seen that the device is done; null: it is no collective. What
  /// is captured is not watched: it runs as often as the graph is launched, of which this hears
  /// nothing.
  template <typename Launch>
  WorkPtr run(const char* kind, const Issue& issue, std::shared_ptr<OpenCollective> open,
              Launch launch) {
    const size_t lane = static_cast<size_t>(issue.lane);
    const std::string operation = kind + (issue.purpose.empty() ? "" : " for " + issue.purpose) +
                                  " on lane " + std::to_string(lane);
    check_groups(place_, operation);
    bool is_for_graph = false;
    const EventPtr done = lanes_.run(issue, [&] {
      is_for_graph = is_captured();  // as the caller's stream, for which the lane's one waits
      launch_operation(place_, operation, [&] { launch(communicators_->lane(lane)); });
    });
    if (is_for_graph) {
      return std::make_shared<CapturedWork>(done, operation, place_);
    }
    watch_.add(operation, [done, open = std::move(open)] { return has_passed_on_device(done); });
    return std::make_shared<NcclWork>(done, operation, place_);
  }

  const GroupPlace place_;
  const std::string group_text_;
  const c10::Device device_;
  const StreamLanes lanes_;
  const std::shared_ptr<NcclCommunicators> communicators_;
  DeviceWatch watch_;  // the last member: it ends the communicators
};

}  // namespace

extern "C" FSDP_API std::shared_ptr<Collectives>* fsdp_make_nccl_collectives(
    const NcclFormation& formation) {
  const ProcessGroupOptions& options = formation.options;
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
  auto* whole = dynamic_cast<NcclCollectives*>(formation.whole.get());
  NcclCommunicators* parent = whole == nullptr ? nullptr : &whole->communicators();
  if (options.world_size == 1 && !options.communicates_alone) {
    if (parent != nullptr) {
      form_within(formation.place, [formation, parent, device] {
        const c10::cuda::CUDAGuard guard(device);
        for (size_t lane = 0; lane < 2; ++lane) {
          parent->group(lane)->performNocolorSplit(device);  // the others split: it takes all ranks
        }
      });
    }
    return new std::shared_ptr<Collectives>(
        make_single_collectives("nccl", device, formation.place));
  }
  return new std::shared_ptr<Collectives>(std::make_shared<NcclCollectives>(formation, parent));
}

extern "C" FSDP_API int64_t fsdp_count_cuda_devices() {
  return static_cast<int64_t>(c10::cuda::device_count());
}

}  // namespace fsdp
