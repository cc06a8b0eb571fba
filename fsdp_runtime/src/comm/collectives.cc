#include <ATen/ops/empty.h>
#include <fsdp/collectives.h>

namespace fsdp {

at::Tensor Collectives::empty_for_comm(int64_t numel, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device()));
}

namespace {

class Finished : public Work {
 public:
  void wait() override {}
};

class Known : public Agreement {
 public:
  explicit Known(bool is_unanimous) : is_unanimous_(is_unanimous) {}
  bool wait() override { return is_unanimous_; }

 private:
  bool is_unanimous_;
};

}  // namespace

void Collectives::name_next(std::string) {}

WorkPtr Collectives::mark(Lane) { return std::make_shared<Finished>(); }

AgreementPtr Collectives::agree(uint64_t) { return std::make_shared<Known>(size() == 1); }

RecordingCollectives::RecordingCollectives(std::shared_ptr<Collectives> inner)
    : inner_(std::move(inner)) {
  TORCH_CHECK(inner_ != nullptr, "RecordingCollectives: inner is null");
}

int64_t RecordingCollectives::rank() const { return inner_->rank(); }
int64_t RecordingCollectives::size() const { return inner_->size(); }
c10::Device RecordingCollectives::device() const { return inner_->device(); }
std::string RecordingCollectives::name() const { return "recording(" + inner_->name() + ")"; }

WorkPtr RecordingCollectives::all_gather_into(at::Tensor output, at::Tensor input, Lane lane) {
  records_.push_back({"all_gather", lane, output.numel(), c10::toString(output.scalar_type())});
  return inner_->all_gather_into(std::move(output), std::move(input), lane);
}

WorkPtr RecordingCollectives::reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                                                  Lane lane) {
  records_.push_back({"reduce_scatter", lane, input.numel(), c10::toString(input.scalar_type())});
  return inner_->reduce_scatter_into(std::move(output), std::move(input), op, lane);
}

WorkPtr RecordingCollectives::all_reduce(at::Tensor tensor, ReduceOp op, Lane lane) {
  records_.push_back({"all_reduce", lane, tensor.numel(), c10::toString(tensor.scalar_type())});
  return inner_->all_reduce(std::move(tensor), op, lane);
}

WorkPtr RecordingCollectives::broadcast(at::Tensor tensor, int64_t root, Lane lane) {
  records_.push_back({"broadcast", lane, tensor.numel(), c10::toString(tensor.scalar_type())});
  return inner_->broadcast(std::move(tensor), root, lane);
}

void RecordingCollectives::barrier() {
  records_.push_back({"barrier", Lane::kReduce, 0, ""});
  inner_->barrier();
}

void RecordingCollectives::name_next(std::string purpose) { inner_->name_next(std::move(purpose)); }

WorkPtr RecordingCollectives::mark(Lane lane) { return inner_->mark(lane); }

AgreementPtr RecordingCollectives::agree(uint64_t value) { return inner_->agree(value); }

at::Tensor RecordingCollectives::empty_for_comm(int64_t numel, at::ScalarType dtype) {
  return inner_->empty_for_comm(numel, dtype);
}

}  // namespace fsdp
