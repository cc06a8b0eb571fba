#include "fsdp_runtime/src/comm/single_collectives.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "fsdp_runtime/src/comm/arguments.h"

namespace fsdp {
namespace {

class FinishedWork : public Work {
 public:
  void wait() override {}
};

WorkPtr finished() {
  static const WorkPtr work = std::make_shared<FinishedWork>();
  return work;
}

void copy(at::Tensor& output, const at::Tensor& input) {
  if (output.data_ptr() != input.data_ptr()) {
    c10::AutoGradMode no_grad(false);
    output.copy_(input.view_as(output));
  }
}

class SingleCollectives : public Collectives {
 public:
  SingleCollectives(std::string name, c10::Device device)
      : name_(std::move(name)), device_(device) {}

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::string name() const override { return name_; }
  c10::Device device() const override { return device_; }

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Lane) override {
    check_all_gather(output, input, 1, device_.type());
    copy(output, input);
    return finished();
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op, Lane) override {
    check_reduce_scatter(output, input, 1, device_.type());
    check_reduction(output, op);
    copy(output, input);
    return finished();
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Lane) override {
    check_tensor("all_reduce", tensor, device_.type());
    check_reduction(tensor, op);
    return finished();
  }
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Lane) override {
    check_tensor("broadcast", tensor, device_.type());
    check_root(root, 1);
    return finished();
  }
  void barrier() override {}

 private:
  const std::string name_;
  const c10::Device device_;
};

}  // namespace

std::shared_ptr<Collectives> make_single_collectives(std::string name, c10::Device device) {
  return std::make_shared<SingleCollectives>(std::move(name), device);
}

}  // namespace fsdp
