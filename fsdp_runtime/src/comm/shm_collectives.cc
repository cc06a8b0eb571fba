#include "fsdp_runtime/src/comm/shm_collectives.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "fsdp_runtime/src/comm/host_collectives.h"

namespace fsdp {
namespace {

class ShmCollectives : public HostCollectives {
 public:
  ShmCollectives(std::shared_ptr<shm::World> world, int64_t rank, std::chrono::milliseconds timeout)
      : HostCollectives(rank, world->size),
        group_(std::move(world), static_cast<int>(rank), timeout) {}
  ~ShmCollectives() override { stop_lanes(); }

  std::string name() const override { return "shm"; }

  at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override {
    TORCH_CHECK(numel >= 0, "empty_for_comm: numel is ", numel);
    std::shared_ptr<void> piece =
        numel == 0 ? nullptr
                   : group_.allocate(static_cast<size_t>(numel) * c10::elementSize(dtype));
    if (piece == nullptr) {
      return Collectives::empty_for_comm(numel, dtype);
    }
    void* data = piece.get();
    return at::from_blob(
        data, {numel}, [piece = std::move(piece)](void*) mutable { piece.reset(); },
        at::TensorOptions().dtype(dtype));
  }

 protected:
  void do_all_gather(int lane, at::Tensor& output, at::Tensor& input) override {
    group_.all_gather(lane, output.data_ptr(), input.data_ptr(), input.nbytes());
  }
  void do_reduce_scatter(int lane, at::Tensor& output, at::Tensor& input, ReduceOp op) override {
    group_.reduce_scatter(lane, output.data_ptr(), input.data_ptr(),
                          static_cast<size_t>(output.numel()), reduction_dtype(output),
                          transport_op(op));
  }
  void do_all_reduce(int lane, at::Tensor& tensor, ReduceOp op) override {
    group_.all_reduce(lane, tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                      reduction_dtype(tensor), transport_op(op));
  }
  void do_broadcast(int lane, at::Tensor& tensor, int64_t root) override {
    group_.broadcast(lane, tensor.data_ptr(), tensor.nbytes(), static_cast<int>(root));
  }
  void do_barrier(int lane) override { group_.barrier(lane); }
  void set_purpose(int lane, const std::string& purpose) override {
    group_.set_purpose(lane, purpose);
  }
  void interrupt() override {
    group_.abort("rank " + std::to_string(rank()) +
                 " destroyed its process group while operations were in flight");
  }

 private:
  shm::Group group_;
};

}  // namespace

std::shared_ptr<Collectives> make_shm_collectives(std::shared_ptr<shm::World> world, int64_t rank,
                                                  std::chrono::milliseconds timeout) {
  return std::make_shared<ShmCollectives>(std::move(world), rank, timeout);
}

}  // namespace fsdp
