// The training of before.cc, by several processes that divide the weights.
#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <fsdp/sharded.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("in", in);
    register_module("out", out);
  }
  torch::Tensor forward(torch::Tensor x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in{8, 64}, out{64, 1};
};

int main() {
  auto world = fsdp::init_process_group(fsdp::ProcessGroupOptions::from_environment(torch::kCPU));
  torch::manual_seed(0);
  auto net = std::make_shared<fsdp::Sharded<NetImpl>>();
  torch::optim::AdamW optimizer(fsdp::fully_shard(net).parameters(), 0.01);
  std::cout.precision(9);
  for (int step = 0; step < 20; ++step) {
    auto x = torch::randn({32, 8});
    auto loss = (net->forward(x) - x.sum(1, /*keepdim=*/true)).square().mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    std::cout << "step " << step << " loss " << loss.item<float>() << std::endl;
  }
}
