// Writes and reads the files of state dicts: the other side of state_dict_files_test.py.
//
//   state_dict_files train <folder>    trains, and writes model.pt and optimizer.pt
//   state_dict_files copy <folder>     rank 0 reads python_model.pt and python_optimizer.pt; all
//                                      ranks load them, train one step more, and write model.pt and
//                                      optimizer.pt
//
// One process per rank, started by a launcher.

#include <ATen/ATen.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <fsdp/state_dict.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

constexpr int64_t kBlocks = 2;
constexpr int64_t kWidth = 6;

at::Tensor values(at::IntArrayRef sizes, double seed) {
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kDouble) + seed;
  return ((index * 12.9898).sin() * 0.3).to(at::kFloat).view(sizes);
}

struct Block : torch::nn::Module {
  explicit Block(double seed) {
    scale = register_buffer("scale", at::full({kWidth}, 0.5));
    weight = register_parameter("weight", values({kWidth, kWidth}, seed));
    spare = register_parameter("spare", values({5, kWidth}, seed + 1));  // no step uses it
    frozen = register_parameter("frozen", values({3}, seed + 2), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) { return x + at::linear(x, weight).tanh() * scale; }
  at::Tensor scale, weight, spare, frozen;
};

struct Model : torch::nn::Module {
  Model() {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.emplace_back(std::make_shared<Block>(10.0 * static_cast<double>(i)));
      register_module("block" + std::to_string(i), blocks.back().ptr());
    }
    head = register_parameter("head", values({kWidth, kWidth}, 100));
    tied = register_parameter("tied", head);
    seen = register_buffer("seen", at::full({}, 3, at::kLong));
  }
  at::Tensor forward(at::Tensor x) {
    x = at::linear(x, head);
    for (const fsdp::Unit<Block>& block : blocks) {
      x = block(x);
    }
    return at::linear(x, tied);
  }
  std::vector<fsdp::Unit<Block>> blocks;
  at::Tensor head, tied, seen;
};

struct Training {
  explicit Training(const std::shared_ptr<fsdp::Collectives>& group) : rank(group->rank()) {
    const fsdp::FullyShardOptions options{
        .mesh = fsdp::init_device_mesh(c10::kCPU, {group->size()}, {"dp_shard"}, group),
        .reshard_after_forward = std::nullopt,
        .mp_policy = {}};
    for (const fsdp::Unit<Block>& block : model->blocks) {
      fsdp::fully_shard(block.ptr(), options);
    }
    root = fsdp::fully_shard(model.ptr(), options);
    optimizer.emplace(root, fsdp::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
  }
  void step(int64_t number) {
    const auto seed = static_cast<double>(1000 * rank + 100 * number);
    model(values({8, kWidth}, seed)).square().mean().backward();
    optimizer->step();
    optimizer->zero_grad();
  }
  void write(const std::string& folder) {
    const auto [model_state, optimizer_state] =
        fsdp::get_state_dict(root, *optimizer, {.full_state_dict = true, .cpu_offload = true});
    if (rank == 0) {
      fsdp::save(model_state, folder + "/model.pt");
      fsdp::save(optimizer_state, folder + "/optimizer.pt");
    }
  }
  void read(const std::string& folder) {
    fsdp::ModelStateDict model_state;
    fsdp::OptimizerStateDict optimizer_state;
    if (rank == 0) {
      model_state = fsdp::load(folder + "/python_model.pt");
      optimizer_state = fsdp::load_optimizer(folder + "/python_optimizer.pt");
    }
    fsdp::set_state_dict(root, *optimizer, model_state, optimizer_state,
                         {.full_state_dict = true, .broadcast_from_rank0 = true});
  }

  const int64_t rank;
  fsdp::Unit<Model> model{std::make_shared<Model>()};
  fsdp::FSDPModule root;
  std::optional<fsdp::AdamW> optimizer;
};

void run(const std::string& what, const std::string& folder) {
  Training training(
      fsdp::init_process_group(fsdp::ProcessGroupOptions::from_environment(at::kCPU)));
  if (what == "train") {
    training.step(0);
    training.step(1);
  } else {
    training.read(folder);
    training.step(3);
  }
  training.write(folder);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    TORCH_CHECK(argc == 3, "usage: state_dict_files train|copy <folder>");
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
