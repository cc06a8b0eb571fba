// A training of plain LibTorch, in one process.
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
  torch::manual_seed(0);
  auto net = std::make_shared<NetImpl>();
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
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
