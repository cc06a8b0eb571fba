#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fsdp/collectives.h>

#include <exception>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/comm/ended_work.h"
#include "fsdp_runtime/src/comm/on_callers_stream.h"
#include "fsdp_runtime/src/comm/watched_window.h"

namespace fsdp {

at::Tensor Collectives::empty_for_comm(int64_t numel, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device()));
}

std::shared_ptr<GatherWindow> Collectives::make_gather_window(int64_t, at::ScalarType,
                                                              std::string) {
  return nullptr;
}

namespace {

class Known : public Agreement {
 public:
  explicit Known(bool is_unanimous) : is_unanimous_(is_unanimous) {}
  bool wait() override { return is_unanimous_; }

 private:
  bool is_unanimous_;
};

}  // namespace

std::vector<int64_t> Collectives::world_ranks() const {
  std::vector<int64_t> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

WorkPtr Collectives::reduce_scatter_onto(at::Tensor output, at::Tensor, ReduceOp, Issue) {
  TORCH_CHECK(false, name(), " cannot add a reduce-scatter of ", output.scalar_type(),
              " to its output; ask has_reduce_scatter_onto() first");
}

bool Collectives::has_reduce_scatter_onto(at::ScalarType) const { return false; }

WorkPtr Collectives::run_on_lane(Issue issue, std::function<void()> stage) {
  return launch_stage(stage, [&](const auto& launch) -> WorkPtr {
    if (issue.after) {
      issue.after->wait();
    }
    launch();
    if (device().is_cpu()) {
      return std::make_shared<EndedWork>();
    }
    return std::make_shared<OnCallersStream>(device());
  });
}

WorkPtr Collectives::mark(Issue) { return std::make_shared<EndedWork>(); }

AgreementPtr Collectives::agree(uint64_t, std::string) {
  return std::make_shared<Known>(size() == 1);
}

void Collectives::check_results(const std::string&) const {}

void Collectives::abort(const std::string&) {}

std::shared_ptr<Collectives> Collectives::split(int64_t) {
  TORCH_CHECK(false, "split: the group '", name(),
              "' cannot be divided; make it with init_process_group");
}

std::shared_ptr<Collectives> Collectives::shrink(const std::vector<int64_t>&,
                                                 std::chrono::milliseconds) {
  TORCH_CHECK(false, "shrink: the group '", name(),
              "' cannot be formed anew; make it with init_process_group");
}

RecordingCollectives::RecordingCollectives(std::shared_ptr<Collectives> inner)
    : inner_(std::move(inner)), records_(std::make_shared<std::vector<CollectiveRecord>>()) {
  TORCH_CHECK(inner_ != nullptr, "RecordingCollectives: inner is null");
}

int64_t RecordingCollectives::rank() const { return inner_->rank(); }
int64_t RecordingCollectives::size() const { return inner_->size(); }
std::vector<int64_t> RecordingCollectives::world_ranks() const { return inner_->world_ranks(); }
c10::Device RecordingCollectives::device() const { return inner_->device(); }
bool RecordingCollectives::is_stream_ordered() const { return inner_->is_stream_ordered(); }
std::string RecordingCollectives::name() const { return "recording(" + inner_->name() + ")"; }

WorkPtr RecordingCollectives::all_gather_into(at::Tensor output, at::Tensor input, Issue issue) {
  records_->push_back(
      {"all_gather", issue.lane, output.numel(), c10::toString(output.scalar_type())});
  return inner_->all_gather_into(std::move(output), std::move(input), std::move(issue));
}

WorkPtr RecordingCollectives::reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                                                  Issue issue) {
  records_->push_back(
      {"reduce_scatter", issue.lane, input.numel(), c10::toString(input.scalar_type())});
  return inner_->reduce_scatter_into(std::move(output), std::move(input), op, std::move(issue));
}

WorkPtr RecordingCollectives::reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                                                  Issue issue) {
  records_->push_back(
      {"reduce_scatter", issue.lane, input.numel(), c10::toString(input.scalar_type())});
  return inner_->reduce_scatter_onto(std::move(output), std::move(input), op, std::move(issue));
}

bool RecordingCollectives::has_reduce_scatter_onto(at::ScalarType dtype) const {
  return inner_->has_reduce_scatter_onto(dtype);
}

WorkPtr RecordingCollectives::all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) {
  records_->push_back(
      {"all_reduce", issue.lane, tensor.numel(), c10::toString(tensor.scalar_type())});
  return inner_->all_reduce(std::move(tensor), op, std::move(issue));
}

WorkPtr RecordingCollectives::broadcast(at::Tensor tensor, int64_t root, Issue issue) {
  records_->push_back(
      {"broadcast", issue.lane, tensor.numel(), c10::toString(tensor.scalar_type())});
  return inner_->broadcast(std::move(tensor), root, std::move(issue));
}

void RecordingCollectives::barrier() {
  records_->push_back({"barrier", Lane::kReduce, 0, ""});
  inner_->barrier();
}

WorkPtr RecordingCollectives::run_on_lane(Issue issue, std::function<void()> stage) {
  return inner_->run_on_lane(std::move(issue), std::move(stage));
}

void RecordingCollectives::check_results(const std::string& operation) const {
  inner_->check_results(operation);
}

WorkPtr RecordingCollectives::mark(Issue issue) { return inner_->mark(std::move(issue)); }

AgreementPtr RecordingCollectives::agree(uint64_t value, std::string purpose) {
  return inner_->agree(value, std::move(purpose));
}

std::shared_ptr<Collectives> RecordingCollectives::split(int64_t color) {
  return std::make_shared<RecordingCollectives>(inner_->split(color));
}

void RecordingCollectives::abort(const std::string& reason) { inner_->abort(reason); }

std::shared_ptr<Collectives> RecordingCollectives::shrink(
    const std::vector<int64_t>& ranks_to_exclude, std::chrono::milliseconds patience) {
  return std::make_shared<RecordingCollectives>(inner_->shrink(ranks_to_exclude, patience));
}

at::Tensor RecordingCollectives::empty_for_comm(int64_t numel, at::ScalarType dtype) {
  return inner_->empty_for_comm(numel, dtype);
}

std::shared_ptr<GatherWindow> RecordingCollectives::make_gather_window(int64_t numel,
                                                                       at::ScalarType dtype,
                                                                       std::string purpose) {
  std::shared_ptr<GatherWindow> window =
      inner_->make_gather_window(numel, dtype, std::move(purpose));
  if (window == nullptr) {
    return nullptr;
  }
  return std::make_shared<WatchedWindow>(
      std::move(window),
      [records = records_, record = CollectiveRecord{"all_gather", Lane::kGather,
                                                     inner_->size() * numel, c10::toString(dtype)}](
          GatherWindow& inner, Issue issue) {
        records->push_back(record);
        return inner.issue(std::move(issue));
      });
}

int64_t RecordingCollectives::window_alignment() const { return inner_->window_alignment(); }

}  // namespace fsdp
