#include "fsdp_runtime/src/comm/shm_collectives.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "fsdp_runtime/src/comm/host_collectives.h"
#include "fsdp_runtime/src/comm/shm_window.h"

namespace fsdp {
namespace {

class BothWorks : public Work {
 public:
  BothWorks(WorkPtr first, WorkPtr second) : first_(std::move(first)), second_(std::move(second)) {}
  void wait() override {
    first_->wait();
    second_->wait();
  }
  bool is_done() override { return first_->is_done() && second_->is_done(); }

 private:
  const WorkPtr first_, second_;
};

class ShmCollectives : public HostCollectives {
 public:
  ShmCollectives(std::shared_ptr<shm::World> world, GroupPlace own)
      : HostCollectives(std::move(own)),
        group_(std::move(world), static_cast<int>(place().rank), place().timeout,
               place().world_ranks),
        shared_place_(std::make_shared<const GroupPlace>(place())) {
    start();
  }
  ~ShmCollectives() override { stop(); }

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

  int64_t window_alignment() const override {
    return size() == 1 ? 0 : static_cast<int64_t>(shm::page_bytes());
  }

  std::shared_ptr<GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                   std::string purpose) override {
    if (size() == 1) {
      return nullptr;
    }
    const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
    TORCH_CHECK(numel > 0 && bytes % window_alignment() == 0, "make_gather_window for ", purpose,
                ": a multiple of ", window_alignment(), " bytes per rank expected, got ", bytes);
    std::shared_ptr<shm::Window> window;
    run("all_gather", 0, {Lane::kGather, "the window of " + purpose}, [&](int lane) {
      window = group_.make_window(lane, static_cast<size_t>(bytes), purpose);
    })->wait();
    if (window == nullptr) {
      return nullptr;
    }
    has_windows_ = true;
    return make_shm_window(std::move(window), group_.windows(), shared_place_, numel, dtype);
  }

  /// Of the gather lane also on that of the windows, which replace its all-gathers.
  WorkPtr mark(Issue issue) override {
    const bool is_of_windows = has_windows_ && issue.lane == Lane::kGather;
    const std::string purpose = issue.purpose;
    WorkPtr mark = HostCollectives::mark(std::move(issue));
    return is_of_windows ? std::make_shared<BothWorks>(
                               mark_on_window_lane(group_.windows(), shared_place_, purpose), mark)
                         : mark;
  }

 protected:
  void do_all_gather(int lane, at::Tensor& output, at::Tensor& input) override {
    group_.all_gather(lane, output.data_ptr(), input.data_ptr(), input.nbytes());
  }
  void do_reduce_scatter(int lane, at::Tensor& output, at::Tensor& input, ReduceOp op,
                         shm::Result result) override {
    group_.reduce_scatter(lane, output.data_ptr(), input.data_ptr(),
                          static_cast<size_t>(output.numel()), reduction_dtype(output),
                          transport_op(op), result);
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
  void interrupt(const GroupFailure& failure) override {
    group_.abort(failure.reason, failure.lost_rank);
  }

 private:
  shm::Group group_;
  const std::shared_ptr<const GroupPlace> shared_place_;  // with windows, which may outlive this
  bool has_windows_ = false;                              // the same on all ranks
};

}  // namespace

std::shared_ptr<FormedCollectives> make_shm_collectives(std::shared_ptr<shm::World> world,
                                                        GroupPlace place) {
  return std::make_shared<ShmCollectives>(std::move(world), std::move(place));
}

}  // namespace fsdp
