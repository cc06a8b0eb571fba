// The convolution net of PyTorch's first FSDP tutorial, trained on MNIST by several processes.
//
//   fsdprun --standalone --nproc_per_node 2 --no-python ./mnist --data FOLDER
//
// FOLDER has the four unzipped files of MNIST (train-images-idx3-ubyte, ...). Without --data the
// net learns a data set that is made up, see load().

#include <ATen/CPUGeneratorImpl.h>
#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <fsdp/sharded.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>

// What is to be a unit of its own is made as an fsdp::Sharded: the layer with 98 % of the weights,
// and the model, which has the rest. All else is plain torch::nn.
using ShardedLinear = torch::nn::ModuleHolder<fsdp::Sharded<torch::nn::LinearImpl>>;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("dropout1", dropout1);
    register_module("dropout2", dropout2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    x = torch::relu(fc1(dropout1(x).flatten(1)));
    return torch::log_softmax(fc2(dropout2(x)), 1);
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 32, 3)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(32, 64, 3)};
  torch::nn::Dropout dropout1{0.25}, dropout2{0.5};
  ShardedLinear fc1{9216, 128};
  torch::nn::Linear fc2{128, 10};
};
using Net = torch::nn::ModuleHolder<fsdp::Sharded<NetImpl>>;

struct Digits {
  torch::Tensor images;  // [n, 1, 28, 28]
  torch::Tensor labels;  // [n]
};

torch::Generator seeded(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

// At most `limit` digits. Without a folder at most 6000, the same in every run: each label has a
// pattern of random numbers, and each image is the pattern of its label under twice as much noise.
Digits load(const std::string& folder, bool is_train, int64_t limit) {
  if (folder.empty()) {
    const auto patterns = torch::randn({10, 1, 28, 28}, seeded(0));
    const auto labels = torch::arange(std::min<int64_t>(limit, 6000)) % 10;
    const auto noise = torch::randn({labels.size(0), 1, 28, 28}, seeded(is_train ? 1 : 2));
    return {patterns.index_select(0, labels) + 2 * noise, labels};
  }
  using torch::data::datasets::MNIST;
  const MNIST set(folder, is_train ? MNIST::Mode::kTrain : MNIST::Mode::kTest);
  return {(set.images().slice(0, 0, limit) - 0.1307) / 0.3081, set.targets().slice(0, 0, limit)};
}

// Mean loss and accuracy on a test set. All ranks gather the weights for each call of the model, so
// each of them makes as many: the ranks take turns at parts of at most 500 images.
void test(Net& model, const Digits& digits, fsdp::Collectives& world) {
  const torch::NoGradGuard no_grad;
  model->eval();
  auto sums = torch::zeros({2}, world.device());
  const int64_t parts = world.size() * (1 + digits.labels.size(0) / (500 * world.size()));
  for (int64_t part = world.rank(); part < parts; part += world.size()) {
    const auto expected = digits.labels.tensor_split(parts)[part].to(world.device());
    const auto output = model(digits.images.tensor_split(parts)[part].to(world.device()));
    sums[0] += torch::nll_loss(output, expected, {}, at::Reduction::Sum);
    sums[1] += (output.argmax(1) == expected).sum();
  }
  world.all_reduce(sums, fsdp::ReduceOp::kSum)->wait();
  sums /= digits.labels.size(0);
  if (world.rank() == 0) {
    std::cout << "test: loss " << sums[0].item<float>() << ", accuracy " << sums[1].item<float>()
              << std::endl;
  }
  model->train();
}

int main(int argc, char** argv) {
  std::map<std::string, std::string> options{{"--data", ""},
                                             {"--limit", "60000"},
                                             {"--epochs", "1"},
                                             {"--batch-size", "64"},
                                             {"--lr", "0.01"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.contains(argv[i]), "unknown option: ", argv[i]);
    TORCH_CHECK(i + 1 < argc, "no value of ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  const auto world = fsdp::init_process_group();  // on GPUs, where there are any

  torch::manual_seed(0);  // the same weights on every rank
  Net model;
  model->to(world->device());
  fsdp::fully_shard(model->fc1);
  const auto sharded = fsdp::fully_shard(model);
  const double lr = std::stod(options["--lr"]);
  torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.7);

  torch::manual_seed(1 + world->rank());  // each rank drops others
  const int64_t limit = std::stoll(options["--limit"]);
  const int64_t batch = std::stoll(options["--batch-size"]);
  const auto [images, labels] = load(options["--data"], /*is_train=*/true, limit);
  const auto test_set = load(options["--data"], /*is_train=*/false, limit);
  const int64_t steps = labels.size(0) / (batch * world->size());
  TORCH_CHECK(steps > 0, labels.size(0), " images are no batch of ", batch, " for each rank");
  std::cout.precision(9);
  for (int64_t epoch = 0; epoch < std::stoll(options["--epochs"]); ++epoch) {
    scheduler.step();  // before each epoch: Python's does the first step in its constructor
    const auto order = torch::randperm(labels.size(0), seeded(epoch));
    for (int64_t step = 0; step < steps; ++step) {
      const auto rows = order.narrow(0, (step * world->size() + world->rank()) * batch, batch);
      const auto output = model(images.index_select(0, rows).to(world->device()));
      auto loss = torch::nll_loss(output, labels.index_select(0, rows).to(world->device()));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      world->all_reduce(loss = loss.detach(), fsdp::ReduceOp::kAvg)->wait();
      if (world->rank() == 0) {
        std::cout << "step " << epoch * steps + step + 1 << ": loss " << loss.item<float>()
                  << std::endl;
      }
    }
    test(model, test_set, *world);
  }
}
