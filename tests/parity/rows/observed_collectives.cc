#include "tests/parity/rows/observed_collectives.h"

#include <ATen/ATen.h>

#include <chrono>
#include <thread>
#include <utility>

namespace parity_rows {
namespace {

constexpr std::chrono::milliseconds kDelay(1);

class ObservedWindow : public fsdp::GatherWindow {
 public:
  /// Gathers while the group is there.
  ObservedWindow(std::shared_ptr<fsdp::GatherWindow> inner, ObservedCollectives& group)
      : inner_(std::move(inner)), group_(group) {}
  at::Tensor own() override { return inner_->own(); }
  at::Tensor whole() override { return inner_->whole(); }
  fsdp::WorkPtr issue(fsdp::Issue issue) override {
    group_.observe("gather", issue, inner_->whole());
    return inner_->issue(std::move(issue));
  }
  void release() override { inner_->release(); }
  void wait_for_readers() override { inner_->wait_for_readers(); }

 private:
  std::shared_ptr<fsdp::GatherWindow> inner_;
  ObservedCollectives& group_;
};

/// "root", "blocks.0", or "-" if it is for no unit.
std::string unit_of(const std::string& purpose) {
  if (purpose == "the root unit") {
    return "root";
  }
  return purpose.starts_with("unit ") ? purpose.substr(5) : "-";
}

}  // namespace

void EventLog::add(const std::string& kind, const std::string& purpose, const at::Tensor& larger) {
  if (is_noting) {
    events.push_back(kind + ' ' + unit_of(purpose) + ' ' + std::to_string(larger.numel()) + ' ' +
                     c10::toString(larger.scalar_type()));
  }
}

void ObservedCollectives::observe(const std::string& kind, const fsdp::Issue& issue,
                                  const at::Tensor& larger) {
  log_->add(kind, issue.purpose, larger);
  if (log_->late == issue.lane) {
    run_on_lane(issue.lane, [] { std::this_thread::sleep_for(kDelay); });
  }
}

fsdp::WorkPtr ObservedCollectives::all_gather_into(at::Tensor output, at::Tensor input,
                                                   fsdp::Issue issue) {
  observe("gather", issue, output);
  return RecordingCollectives::all_gather_into(std::move(output), std::move(input),
                                               std::move(issue));
}

fsdp::WorkPtr ObservedCollectives::reduce_scatter_into(at::Tensor output, at::Tensor input,
                                                       fsdp::ReduceOp op, fsdp::Issue issue) {
  observe("reduce", issue, input);
  return RecordingCollectives::reduce_scatter_into(std::move(output), std::move(input), op,
                                                   std::move(issue));
}

fsdp::WorkPtr ObservedCollectives::reduce_scatter_onto(at::Tensor output, at::Tensor input,
                                                       fsdp::ReduceOp op, fsdp::Issue issue) {
  observe("reduce", issue, input);
  return RecordingCollectives::reduce_scatter_onto(std::move(output), std::move(input), op,
                                                   std::move(issue));
}

fsdp::WorkPtr ObservedCollectives::all_reduce(at::Tensor tensor, fsdp::ReduceOp op,
                                              fsdp::Issue issue) {
  observe("all_reduce", issue, tensor);
  return RecordingCollectives::all_reduce(std::move(tensor), op, std::move(issue));
}

std::shared_ptr<fsdp::Collectives> ObservedCollectives::split(int64_t color) {
  return std::make_shared<ObservedCollectives>(RecordingCollectives::split(color), log_);
}

std::shared_ptr<fsdp::GatherWindow> ObservedCollectives::make_gather_window(int64_t numel,
                                                                            at::ScalarType dtype,
                                                                            std::string purpose) {
  auto inner = RecordingCollectives::make_gather_window(numel, dtype, std::move(purpose));
  return inner ? std::make_shared<ObservedWindow>(std::move(inner), *this) : nullptr;
}

}  // namespace parity_rows
