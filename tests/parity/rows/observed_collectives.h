#pragma once

// What the units of a row communicate, in the order in which they issue it.

#include <fsdp/collectives.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace parity_rows {

/// Lines "kind unit numel dtype". Of one rank, whose thread issues what is noted.
struct EventLog {
  std::vector<std::string> events;
  bool is_noting = true;
  std::optional<fsdp::Lane> late;  // the lane that is held up before each operation
  void add(const std::string& kind, const std::string& purpose, const at::Tensor& larger);
};

/// Notes what is issued, for which unit. Its parts write to the same log.
class ObservedCollectives : public fsdp::RecordingCollectives {
 public:
  ObservedCollectives(std::shared_ptr<fsdp::Collectives> inner, std::shared_ptr<EventLog> log)
      : RecordingCollectives(std::move(inner)), log_(std::move(log)) {}

  fsdp::WorkPtr all_gather_into(at::Tensor output, at::Tensor input, fsdp::Issue issue) override;
  fsdp::WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, fsdp::ReduceOp op,
                                    fsdp::Issue issue) override;
  fsdp::WorkPtr reduce_scatter_onto(at::Tensor output, at::Tensor input, fsdp::ReduceOp op,
                                    fsdp::Issue issue) override;
  fsdp::WorkPtr all_reduce(at::Tensor tensor, fsdp::ReduceOp op, fsdp::Issue issue) override;
  std::shared_ptr<fsdp::Collectives> split(int64_t color) override;
  std::shared_ptr<fsdp::GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                         std::string purpose) override;

  /// Notes what is about to be issued, and holds its lane up if it is to be late.
  void observe(const std::string& kind, const fsdp::Issue& issue, const at::Tensor& larger);

 private:
  std::shared_ptr<EventLog> log_;
};

}  // namespace parity_rows
