// Three processes that never name a group: the mesh is that of the group that they have formed, and
// when one of them is gone, that of the group which the others have formed of what is left.

#include <fsdp/process_group.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/engine/rank_processes.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kWorld = 3;

/// Trains a model whose mesh is `mesh`, or that of no name; the last loss.
double train_over(std::shared_ptr<DeviceMesh> mesh, const Collectives& group) {
  const Unit<ToyModel> model = make_sharded({}, {.mesh = std::move(mesh)});
  const FSDPModule root = fsdp_module(*model);
  root.init_parameters(initialise);
  AdamW optimizer(root, {});
  double last = 0;
  for (int64_t step = 0; step < 2; ++step) {
    const at::Tensor value = loss(model, step, group.rank());
    value.backward();
    optimizer.step();
    optimizer.zero_grad();
    last = value.item<double>();
  }
  return last;
}

void check_same(const std::shared_ptr<Collectives>& group) {
  TORCH_CHECK(default_process_group() == group, "the default is another group");
  const auto mesh = init_device_mesh(c10::kCPU, {group->size()}, {"dp"}, group);
  TORCH_CHECK(train_over(nullptr, *group) == train_over(mesh, *group),
              "another loss than with a mesh that is named");
  group->barrier();  // all have done all of it
}

void be_a_rank_without_names(int64_t rank, int port, const LinePipe& lines) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = kWorld;
  options.master_port = port;
  options.timeout = std::chrono::minutes(10);  // longer than a test may take
  const std::shared_ptr<Collectives> world = init_process_group(options);
  check_same(world);
  if (rank == 1) {
    lines.write("leaves");
    return;  // the process ends
  }
  try {
    world->barrier();
    TORCH_CHECK(false, "a rank is gone, and nobody has noticed");
  } catch (const PeerError& error) {
    const std::shared_ptr<Collectives> left = world->shrink({error.rank.value()});
    check_same(left);  // while the group that has failed is still there
    lines.write("goes on with " + std::to_string(left->size()));
  }
}

TEST(DefaultGroupTest, IsTheWorldAndThenWhatIsLeftOfIt) {
  std::vector<std::string> told = lines_of_child([] {
    RankProcesses ranks(kWorld, /*are_apart=*/false, be_a_rank_without_names);
    const auto store = serve_store();
    ranks.begin(store->getPort());
    std::vector<std::string> lines;
    while (const auto line = ranks.read(std::chrono::minutes(2))) {
      lines.push_back(*line);
    }
    return lines;
  });
  std::sort(told.begin(), told.end());
  EXPECT_EQ(told, (std::vector<std::string>{"goes on with 2", "goes on with 2", "leaves"}));
}

}  // namespace
}  // namespace fsdp::testing
