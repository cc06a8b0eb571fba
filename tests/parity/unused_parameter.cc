// Trains a model in which some blocks leave a parameter unused in some steps, in two param groups,
// and writes what has become of the parameters: the other side of unused_parameter_test.py, step by
// step alike.
//
//   unused_parameter <output>   (one process per rank, started by a launcher)

#include <ATen/ATen.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <vector>

namespace {

constexpr int64_t kBlocks = 3;
constexpr int64_t kSteps = 5;
constexpr int64_t kWidth = 6;

at::Tensor values(at::IntArrayRef sizes, double seed) {
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kDouble) + seed;
  return ((index * 12.9898).sin() * 0.3).to(at::kFloat).view(sizes);
}

struct Block : torch::nn::Module {
  explicit Block(double seed) {
    weight = register_parameter("weight", values({kWidth, kWidth}, seed));
    spare = register_parameter("spare", values({5, kWidth}, seed + 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + at::linear(x, weight).tanh();
    return uses_spare ? y + at::linear(y, spare).sum(1, true) : y;
  }
  bool uses_spare = false;
  at::Tensor weight, spare;
};

struct Model : torch::nn::Module {
  Model() {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.emplace_back(std::make_shared<Block>(10.0 * static_cast<double>(i)));
      register_module("block" + std::to_string(i), blocks.back().ptr());
    }
    head = register_parameter("head", values({4, kWidth}, 100));
  }
  at::Tensor forward(at::Tensor x) {
    for (const fsdp::Unit<Block>& block : blocks) {
      x = block(x);
    }
    return at::linear(x, head);
  }
  std::vector<fsdp::Unit<Block>> blocks;
  at::Tensor head;
};

// Block 0 never, block 1 in every second step, block 2 from the third on.
void choose_spares(const Model& model, int64_t step) {
  model.blocks[0]->uses_spare = false;
  model.blocks[1]->uses_spare = step % 2 == 0;
  model.blocks[2]->uses_spare = step >= 2;
}

/// The blocks' weights with options of their own, and the rest.
std::vector<fsdp::AdamWParamGroup> param_groups(const fsdp::FSDPModule& root) {
  std::vector<fsdp::AdamWParamGroup> groups = {
      {.params = {}, .lr = 2e-2, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1},
      {.params = {}, .eps = 1e-6}};
  for (const fsdp::LocalShard& shard : root.sharded_parameters()) {
    groups[shard.fqn.ends_with("weight") ? 0 : 1].params.push_back(shard.fqn);
  }
  return groups;
}

void write(const fsdp::FSDPModule& root, const fsdp::AdamW& optimizer, std::ostream* out) {
  const std::vector<int64_t> steps = optimizer.parameter_steps();
  size_t index = 0;
  fsdp::FSDPModule handle = root;
  for (const fsdp::LocalShard& slice : root.sharded_parameters()) {
    const at::Tensor full = handle.full_parameter(slice.fqn).contiguous().flatten();
    if (out != nullptr) {
      *out << slice.fqn << ' ' << steps[index];
      for (int64_t i = 0; i < full.numel(); ++i) {
        char text[32];
        std::snprintf(text, sizeof text, " %a", static_cast<double>(full[i].item<float>()));
        *out << text;
      }
      *out << '\n';
    }
    ++index;
  }
}

void train(const char* path) {
  const auto group =
      fsdp::init_process_group(fsdp::ProcessGroupOptions::from_environment(at::kCPU));
  const auto mesh = fsdp::init_device_mesh(c10::kCPU, {group->size()}, {"dp_shard"}, group);
  const fsdp::FullyShardOptions options{
      .mesh = mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}};
  fsdp::Unit<Model> model(std::make_shared<Model>());
  for (const fsdp::Unit<Block>& block : model->blocks) {
    fsdp::fully_shard(block.ptr(), options);
  }
  const fsdp::FSDPModule root = fsdp::fully_shard(model.ptr(), options);
  fsdp::AdamW optimizer(root, param_groups(root), {.lr = 1e-2, .weight_decay = 0});
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step == 3) {
      optimizer.set_lr(1, 5e-3);
    }
    choose_spares(*model, step);
    const auto seed = static_cast<double>(1000 * group->rank() + 100 * step);
    model(values({8, kWidth}, seed)).square().mean().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  std::ofstream file;
  if (group->rank() == 0) {
    file.open(path);
  }
  write(root, optimizer, group->rank() == 0 ? &file : nullptr);
  TORCH_CHECK(group->rank() != 0 || file.flush(), "cannot write ", path);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    TORCH_CHECK(argc == 2, "usage: unused_parameter <output>");
    train(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
