#include "fsdp_runtime/src/comm/single_collectives.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "fsdp_runtime/src/comm/arguments.h"
#include "fsdp_runtime/src/comm/collective_board.h"
#include "fsdp_runtime/src/comm/worlds.h"

namespace fsdp {
namespace {

void copy(at::Tensor& output, const at::Tensor& input) {
  if (output.data_ptr() != input.data_ptr()) {
    c10::AutoGradMode no_grad(false);
    output.copy_(input.view_as(output));
  }
}

/// Everything is done at once, in the caller.
class SingleCollectives : public Collectives {
 public:
  SingleCollectives(std::string name, c10::Device device, GroupPlace place)
      : name_(std::move(name)),
        device_(device),
        place_(std::move(place)),
        group_text_(group_text(place_.world_ranks)) {}

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::vector<int64_t> world_ranks() const override { return {place_.world_rank(0)}; }
  std::string name() const override { return name_; }
  c10::Device device() const override { return device_; }

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    check_all_gather(output, input, 1, device_.type());
    const OpenCollective open({"all_gather", group_text_, issue.purpose, output.nbytes()});
    return run_on_lane(std::move(issue), [&] { copy(output, input); });
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    check_reduce_scatter(output, input, 1, device_.type());
    check_reduction(output, op);
    const OpenCollective open({"reduce_scatter", group_text_, issue.purpose, input.nbytes()});
    return run_on_lane(std::move(issue), [&] { copy(output, input); });
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
    check_tensor("all_reduce", tensor, device_.type());
    check_reduction(tensor, op);
    const OpenCollective open({"all_reduce", group_text_, issue.purpose, tensor.nbytes()});
    return run_on_lane(std::move(issue), [] {});
  }
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Issue issue) override {
    check_tensor("broadcast", tensor, device_.type());
    check_root(root, 1);
    const OpenCollective open({"broadcast", group_text_, issue.purpose, tensor.nbytes()});
    return run_on_lane(std::move(issue), [] {});
  }
  void barrier() override { const OpenCollective open({"barrier", group_text_}); }
  std::shared_ptr<Collectives> split(int64_t) override {
    return std::make_shared<SingleCollectives>(name_, device_, place_);
  }
  /// What there is here has ended already; but not what there is in the rest of the world.
  void abort(const std::string& reason) override {
    if (place_.membership) {
      place_.membership->revoke(
          {"rank " + std::to_string(place_.world_rank(0)) + " aborted all groups: " + reason, {}});
    }
  }
  /// Nobody is waited for.
  std::shared_ptr<Collectives> shrink(const std::vector<int64_t>& ranks_to_exclude,
                                      std::chrono::milliseconds) override {
    const int64_t own = place_.world_rank(0);
    TORCH_CHECK(
        std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), own) == ranks_to_exclude.end(),
        "shrink: rank ", own, " excludes itself");
    const auto membership = std::make_shared<Membership>(0);
    auto alone =
        std::make_shared<SingleCollectives>(name_, device_, GroupPlace{.membership = membership});
    Worlds::get().replace(place_.membership, alone, membership);
    return alone;
  }

 private:
  const std::string name_;
  const c10::Device device_;
  const GroupPlace place_;
  const std::string group_text_;
};

}  // namespace

std::shared_ptr<Collectives> make_single_collectives(std::string name, c10::Device device,
                                                     GroupPlace place) {
  return std::make_shared<SingleCollectives>(std::move(name), device, std::move(place));
}

}  // namespace fsdp
