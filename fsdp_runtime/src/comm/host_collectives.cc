#include "fsdp_runtime/src/comm/host_collectives.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <utility>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/src/comm/arguments.h"

namespace fsdp {

std::optional<shm::DType> reducible_dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return shm::DType::kF32;
    case at::kDouble:
      return shm::DType::kF64;
    case at::kBFloat16:
      return shm::DType::kBF16;
    case at::kHalf:
      return shm::DType::kF16;
    case at::kInt:
      return shm::DType::kI32;
    case at::kLong:
      return shm::DType::kI64;
    default:
      return std::nullopt;
  }
}

shm::DType reduction_dtype(const at::Tensor& tensor) {
  const std::optional<shm::DType> dtype = reducible_dtype(tensor);
  TORCH_CHECK(dtype.has_value(), "cannot reduce tensors of ", tensor.scalar_type(),
              "; float32, float64, bfloat16, float16, int32 or int64 expected");
  return *dtype;
}

shm::ReduceOp transport_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return shm::ReduceOp::kSum;
    case ReduceOp::kAvg:
      return shm::ReduceOp::kAvg;
    case ReduceOp::kMax:
      return shm::ReduceOp::kMax;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown reduction ", static_cast<int>(op));
}

HostCollectives::HostCollectives(int64_t rank, int64_t size) : rank_(rank), size_(size) {
  lanes_[0] = std::make_unique<LaneThread>("fsdp-gather");
  lanes_[1] = std::make_unique<LaneThread>("fsdp-reduce");
}

void HostCollectives::stop_lanes() {
  if (lanes_[0]->is_busy() || lanes_[1]->is_busy()) {
    interrupt();
  }
  for (auto& lane : lanes_) {
    lane->stop();
  }
}

WorkPtr HostCollectives::run(Lane lane, std::function<void()> operation) {
  std::string purpose = std::exchange(purpose_, {});
  return lanes_[static_cast<size_t>(lane)]->run(
      [this, lane, purpose = std::move(purpose), operation = std::move(operation)] {
        try {
          set_purpose(static_cast<int>(lane), purpose);
          operation();
        } catch (const c10::Error&) {
          throw;
        } catch (const shm::PeerLost& error) {
          throw PeerError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.what());
        } catch (const std::exception& error) {
          TORCH_CHECK(false, error.what());
        }
      });
}

WorkPtr HostCollectives::all_gather_into(at::Tensor output, at::Tensor input, Lane lane) {
  check_all_gather(output, input, size_, c10::DeviceType::CPU);
  return run(lane, [this, lane, output = std::move(output), input = std::move(input)]() mutable {
    do_all_gather(static_cast<int>(lane), output, input);
  });
}

WorkPtr HostCollectives::reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                                             Lane lane) {
  check_reduce_scatter(output, input, size_, c10::DeviceType::CPU);
  check_reduction(output, op);
  return run(lane,
             [this, lane, op, output = std::move(output), input = std::move(input)]() mutable {
               do_reduce_scatter(static_cast<int>(lane), output, input, op);
             });
}

WorkPtr HostCollectives::all_reduce(at::Tensor tensor, ReduceOp op, Lane lane) {
  check_tensor("all_reduce", tensor, c10::DeviceType::CPU);
  check_reduction(tensor, op);
  return run(lane, [this, lane, op, tensor = std::move(tensor)]() mutable {
    do_all_reduce(static_cast<int>(lane), tensor, op);
  });
}

WorkPtr HostCollectives::broadcast(at::Tensor tensor, int64_t root, Lane lane) {
  check_tensor("broadcast", tensor, c10::DeviceType::CPU);
  check_root(root, size_);
  return run(lane, [this, lane, root, tensor = std::move(tensor)]() mutable {
    do_broadcast(static_cast<int>(lane), tensor, root);
  });
}

void HostCollectives::barrier() {
  run(Lane::kReduce, [this] { do_barrier(static_cast<int>(Lane::kReduce)); })->wait();
}

WorkPtr HostCollectives::mark(Lane lane) {
  return run(lane, [this, lane] { do_barrier(static_cast<int>(lane)); });
}

AgreementPtr HostCollectives::agree(uint64_t value) {
  class Gathered : public Agreement {
   public:
    Gathered(at::Tensor values, at::Tensor own, WorkPtr gather, WorkPtr other_lane)
        : values_(std::move(values)),
          own_(std::move(own)),
          gather_(std::move(gather)),
          other_lane_(std::move(other_lane)) {}
    bool wait() override {
      other_lane_->wait();
      gather_->wait();
      return values_.eq(own_).all().item<bool>();
    }

   private:
    at::Tensor values_, own_;
    WorkPtr gather_, other_lane_;
  };
  at::Tensor values = at::empty({size_}, at::kLong);
  at::Tensor own = values.narrow(0, rank_, 1);
  own.fill_(static_cast<int64_t>(value));
  const std::string purpose = purpose_;
  WorkPtr other_lane = mark(Lane::kGather);
  name_next(purpose);
  WorkPtr gather = all_gather_into(values, own, Lane::kReduce);
  return std::make_shared<Gathered>(std::move(values), std::move(own), std::move(gather),
                                    std::move(other_lane));
}

}  // namespace fsdp
