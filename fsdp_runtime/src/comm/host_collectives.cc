#include "fsdp_runtime/src/comm/host_collectives.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <utility>

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

HostCollectives::HostCollectives(GroupPlace place)
    : place_(std::move(place)), group_text_(group_text(place_.world_ranks)) {
  lanes_[0] = std::make_unique<LaneThread>("fsdp-gather");
  lanes_[1] = std::make_unique<LaneThread>("fsdp-reduce");
}

void HostCollectives::start() { place_.membership->add(*this); }

void HostCollectives::stop() {
  if (lanes_[0]->is_busy() || lanes_[1]->is_busy()) {
    place_.membership->revoke(
        {called(place_.rank) + " destroyed its process group while operations were in flight",
         place_.world_rank(place_.rank)});
  }
  for (auto& lane : lanes_) {
    lane->stop();
  }
  place_.membership->remove(*this, place_.name);
}

void HostCollectives::abort(const std::string& reason) {
  place_.membership->revoke({called(place_.rank) + " aborted all groups: " + reason, {}});
}

WorkPtr HostCollectives::all_gather_into(at::Tensor output, at::Tensor input, Issue issue) {
  check_all_gather(output, input, place_.size, c10::DeviceType::CPU);
  const size_t bytes = output.nbytes();
  return run("all_gather", bytes, std::move(issue),
             [this, output = std::move(output), input = std::move(input)](int lane) mutable {
               do_all_gather(lane, output, input);
             });
}

WorkPtr HostCollectives::reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                                             Issue issue) {
  return reduce_scatter(std::move(output), std::move(input), op, std::move(issue),
                        shm::Result::kStored);
}

WorkPtr HostCollectives::reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                                             Issue issue) {
  if (!has_reduce_scatter_onto(output.scalar_type())) {
    return Collectives::reduce_scatter_onto(std::move(output), std::move(input), op,
                                            std::move(issue));
  }
  return reduce_scatter(std::move(output), std::move(input), op, std::move(issue),
                        shm::Result::kAdded);
}

WorkPtr HostCollectives::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op,
                                        Issue issue, shm::Result result) {
  check_reduce_scatter(output, input, place_.size, c10::DeviceType::CPU);
  check_reduction(output, op);
  const size_t bytes = input.nbytes();
  return run("reduce_scatter", bytes, std::move(issue),
             [this, op, result, output = std::move(output), input = std::move(input)](
                 int lane) mutable { do_reduce_scatter(lane, output, input, op, result); });
}

WorkPtr HostCollectives::all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) {
  check_tensor("all_reduce", tensor, c10::DeviceType::CPU);
  check_reduction(tensor, op);
  const size_t bytes = tensor.nbytes();
  return run("all_reduce", bytes, std::move(issue),
             [this, op, tensor = std::move(tensor)](int lane) mutable {
               do_all_reduce(lane, tensor, op);
             });
}

WorkPtr HostCollectives::broadcast(at::Tensor tensor, int64_t root, Issue issue) {
  check_tensor("broadcast", tensor, c10::DeviceType::CPU);
  check_root(root, place_.size);
  const size_t bytes = tensor.nbytes();
  return run("broadcast", bytes, std::move(issue),
             [this, root, tensor = std::move(tensor)](int lane) mutable {
               do_broadcast(lane, tensor, root);
             });
}

void HostCollectives::barrier() { mark(Lane::kReduce)->wait(); }

WorkPtr HostCollectives::run_on_lane(Issue issue, std::function<void()> stage) {
  return lanes_[static_cast<size_t>(issue.lane)]->run(
      [after = std::move(issue.after), stage = std::move(stage)] {
        if (after) {
          after->wait();
        }
        stage();
      });
}

WorkPtr HostCollectives::mark(Issue issue) {
  return run("barrier", 0, std::move(issue), [this](int lane) { do_barrier(lane); });
}

AgreementPtr HostCollectives::agree(uint64_t value, std::string purpose) {
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
  at::Tensor values = at::empty({place_.size}, at::kLong);
  at::Tensor own = values.narrow(0, place_.rank, 1);
  own.fill_(static_cast<int64_t>(value));
  WorkPtr other_lane = mark({Lane::kGather, purpose});
  WorkPtr gather = all_gather_into(values, own, {Lane::kReduce, std::move(purpose)});
  return std::make_shared<Gathered>(std::move(values), std::move(own), std::move(gather),
                                    std::move(other_lane));
}

}  // namespace fsdp
