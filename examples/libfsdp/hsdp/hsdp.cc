// Hybrid sharding: the ranks of a row divide the weights, and the rows hold copies. Gathers and
// scatters stay in a row, which is a machine as a rule; the rows exchange a shard of gradients once
// in a step, though it has several micro batches.
//
//   fsdprun --standalone --nproc_per_node 4 --no-python ./hsdp --replicas 2

#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <fsdp/sharded.h>
#include <fsdp/unit.h>
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <string>

constexpr int64_t kIn = 16, kHidden = 64, kLayers = 3, kBatch = 32, kMicroBatches = 2;

int main(int argc, char** argv) {
  std::map<std::string, std::string> options{{"--steps", "100"}, {"--replicas", "2"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.contains(argv[i]), "unknown option: ", argv[i]);
    TORCH_CHECK(i + 1 < argc, "no value of ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  const auto world = fsdp::init_process_group();  // on GPUs, where there are any
  const int64_t replicas = std::stoll(options["--replicas"]);
  TORCH_CHECK(replicas > 0 && world->size() % replicas == 0, "--replicas ", replicas,
              " does not divide ", world->size(), " ranks");
  // Rank r is in row r / columns. Along dp_replicate are the copies, along dp_shard the parts.
  const auto mesh = fsdp::init_device_mesh(
      world->device().type(), {replicas, world->size() / replicas}, {"dp_replicate", "dp_shard"});

  // Where LibTorch itself calls forward(), as here, a unit is made as an fsdp::Sharded.
  torch::manual_seed(0);  // the same weights on every rank
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers->push_back(
        std::make_shared<fsdp::Sharded<torch::nn::LinearImpl>>(i == 0 ? kIn : kHidden, kHidden));
    layers->push_back(torch::nn::Tanh());
  }
  layers->push_back(torch::nn::Linear(kHidden, 1));
  layers->to(world->device());
  for (int64_t i = 0; i < kLayers; ++i) {
    fsdp::fully_shard(layers->ptr(2 * i), {.mesh = mesh});
  }
  const auto sharded = fsdp::fully_shard(layers, {.mesh = mesh});
  fsdp::Unit<torch::nn::SequentialImpl> model(layers.ptr());
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2));

  torch::manual_seed(1 + world->rank());  // other samples on every rank, also in another row
  std::cout.precision(9);
  for (int64_t step = 1; step <= std::stoll(options["--steps"]); ++step) {
    auto loss = torch::zeros({}, world->device());
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
      const auto x = torch::randn({kBatch, kIn}).to(world->device());
      const auto y = x.square().sum(1, /*keepdim=*/true).sqrt();
      sharded.set_requires_all_reduce(micro == kMicroBatches - 1);
      const auto part = torch::mse_loss(model(x), y) / kMicroBatches;
      part.backward();
      loss += part.detach();
    }
    optimizer.step();
    optimizer.zero_grad();
    world->all_reduce(loss, fsdp::ReduceOp::kAvg)->wait();
    if (world->rank() == 0) {
      std::cout << "step " << step << ": loss " << loss.item<float>() << std::endl;
    }
  }
}
