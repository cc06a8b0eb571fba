#include "tests/parity/rows/observed_collectives.h"

#include <ATen/ATen.h>

#include <utility>

namespace parity_rows {
namespace {

class ObservedWindow : public fsdp::GatherWindow {
 public:
  ObservedWindow(std::shared_ptr<fsdp::GatherWindow> inner, std::shared_ptr<EventLog> log)
      : inner_(std::move(inner)), log_(std::move(log)) {}
  at::Tensor own() override { return inner_->own(); }
  at::Tensor whole() override { return inner_->whole(); }
  fsdp::WorkPtr issue(fsdp::Issue issue) override {
    log_->add("gather", issue.purpose, inner_->whole());
    return inner_->issue(std::move(issue));
  }
  void release() override { inner_->release(); }
  void wait_for_readers() override { inner_->wait_for_readers(); }

 private:
  std::shared_ptr<fsdp::GatherWindow> inner_;
  std::shared_ptr<EventLog> log_;
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

fsdp::WorkPtr ObservedCollectives::all_gather_into(at::Tensor output, at::Tensor input,
                                                   fsdp::Issue issue) {
  log_->add("gather", issue.purpose, output);
  return RecordingCollectives::all_gather_into(std::move(output), std::move(input),
                                               std::move(issue));
}

fsdp::WorkPtr ObservedCollectives::reduce_scatter_into(at::Tensor output, at::Tensor input,
                                                       fsdp::ReduceOp op, fsdp::Issue issue) {
  log_->add("reduce", issue.purpose, input);
  return RecordingCollectives::reduce_scatter_into(std::move(output), std::move(input), op,
                                                   std::move(issue));
}

fsdp::WorkPtr ObservedCollectives::reduce_scatter_onto(at::Tensor output, at::Tensor input,
                                                       fsdp::ReduceOp op, fsdp::Issue issue) {
  log_->add("reduce", issue.purpose, input);
  return RecordingCollectives::reduce_scatter_onto(std::move(output), std::move(input), op,
                                                   std::move(issue));
}

fsdp::WorkPtr ObservedCollectives::all_reduce(at::Tensor tensor, fsdp::ReduceOp op,
                                              fsdp::Issue issue) {
  log_->add("all_reduce", issue.purpose, tensor);
  return RecordingCollectives::all_reduce(std::move(tensor), op, std::move(issue));
}

std::shared_ptr<fsdp::Collectives> ObservedCollectives::split(int64_t color) {
  return std::make_shared<ObservedCollectives>(RecordingCollectives::split(color), log_);
}

std::shared_ptr<fsdp::GatherWindow> ObservedCollectives::make_gather_window(int64_t numel,
                                                                            at::ScalarType dtype,
                                                                            std::string purpose) {
  auto inner = RecordingCollectives::make_gather_window(numel, dtype, std::move(purpose));
  return inner ? std::make_shared<ObservedWindow>(std::move(inner), log_) : nullptr;
}

}  // namespace parity_rows
