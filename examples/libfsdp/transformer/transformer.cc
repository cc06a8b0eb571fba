// The transformer of PyTorch's FSDP2 tutorial: mixed precision, explicit prefetching, activation
// checkpointing, gradient clipping, and checkpoints from which the next run goes on. It learns to
// continue rows of numbers that differ by a constant.
//
//   fsdprun --standalone --nproc_per_node 2 --no-python ./transformer --bfloat16 --prefetch

#include <fsdp/activation_checkpoint.h>
#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <fsdp/sharded.h>
#include <fsdp/state_dict.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

using torch::Tensor;
constexpr int64_t kVocabulary = 64, kWidth = 32, kHeads = 4, kLayers = 4, kLength = 16, kBatch = 16;
constexpr double kDropout = 0.1;

struct BlockImpl : torch::nn::Module {
  // [batch, length, width], as its result
  Tensor forward(Tensor x) {
    const auto qkv =
        wqkv(norm1(x)).unflatten(-1, {3, kHeads, -1}).permute({2, 0, 3, 1, 4}).unbind();
    const auto mixed = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*mask=*/{},
                                                           /*dropout_p=*/0, /*is_causal=*/true);
    x = x + dropout(wo(mixed.transpose(1, 2).flatten(2)));
    return x + dropout(w2(torch::gelu(w1(norm2(x)))));
  }
  torch::nn::LayerNorm norm1 = register_module("norm1", torch::nn::LayerNorm(std::vector{kWidth}));
  torch::nn::Linear wqkv = register_module("wqkv", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear wo = register_module("wo", torch::nn::Linear(kWidth, kWidth));
  torch::nn::LayerNorm norm2 = register_module("norm2", torch::nn::LayerNorm(std::vector{kWidth}));
  torch::nn::Linear w1 = register_module("w1", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear w2 = register_module("w2", torch::nn::Linear(4 * kWidth, kWidth));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(kDropout));
};
using Block = fsdp::Sharded<BlockImpl>;  // will be a unit, and is called through FSDP

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(bool recompute) : recompute(recompute) {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers->push_back(std::make_shared<Block>());
    }
  }
  // tokens: [batch, length] -> [batch, length, vocabulary]
  Tensor forward(const Tensor& tokens) {
    Tensor x = tok(tokens) + pos->weight;
    for (const auto& layer : *layers) {
      const auto block = [&layer = *layer->as<Block>()](Tensor h) { return layer.forward(h); };
      x = recompute ? fsdp::activation_checkpoint(block, x) : block(x);
    }
    return output(norm(x));
  }
  bool recompute;
  torch::nn::Embedding tok = register_module("tok", torch::nn::Embedding(kVocabulary, kWidth));
  torch::nn::Embedding pos = register_module("pos", torch::nn::Embedding(kLength, kWidth));
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(std::vector{kWidth}));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(kWidth, kVocabulary));
};
using Transformer = torch::nn::ModuleHolder<fsdp::Sharded<TransformerImpl>>;

int main(int argc, char** argv) {
  std::map<std::string, std::string> options{{"--steps", "200"}, {"--checkpoint", ""}};
  options.insert({{"--bfloat16", "no"}, {"--prefetch", "no"}, {"--recompute", "no"}});
  for (int i = 1; i < argc; ++i) {
    TORCH_CHECK(options.contains(argv[i]), "unknown option: ", argv[i]);
    std::string& value = options[argv[i]];
    TORCH_CHECK(value == "no" || ++i < argc, "no value of ", argv[argc - 1]);
    value = value == "no" ? "yes" : argv[i];
  }
  const auto world = fsdp::init_process_group();  // on GPUs, where there are any
  fsdp::FullyShardOptions sharding;               // over all ranks
  if (options["--bfloat16"] == "yes") {
    sharding.mp_policy = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32};
  }
  torch::manual_seed(0);  // the same weights on every rank
  Transformer model(/*recompute=*/options["--recompute"] == "yes");
  model->to(world->device());
  std::vector<fsdp::FSDPModule> layers;
  for (const auto& layer : *model->layers) {
    layers.push_back(fsdp::fully_shard(layer, sharding));
  }
  const auto sharded = fsdp::fully_shard(model, sharding);
  for (size_t i = 0; i + 2 < layers.size() && options["--prefetch"] == "yes"; ++i) {
    layers[i].set_modules_to_forward_prefetch({layers[i + 1], layers[i + 2]});
    layers[i + 2].set_modules_to_backward_prefetch({layers[i + 1], layers[i]});
  }
  fsdp::AdamW optimizer(sharded, {.lr = 3e-3});

  const std::string& folder = options["--checkpoint"];  // one that all ranks see
  const fsdp::StateDictOptions whole{.full_state_dict = true, .cpu_offload = true};
  if (!folder.empty() && std::filesystem::exists(folder + "/last")) {
    fsdp::set_state_dict(sharded, optimizer, fsdp::load(folder + "/last/model.pt"),
                         fsdp::load_optimizer(folder + "/last/optimizer.pt"), whole);
  }
  std::cout.precision(9);
  for (int64_t step = optimizer.step_count() + 1; step <= std::stoll(options["--steps"]); ++step) {
    torch::manual_seed(step * world->size() + world->rank());  // of samples and dropout
    const auto first = torch::randint(kVocabulary, {kBatch, 1});
    const auto difference = torch::randint(1, 5, {kBatch, 1});
    const auto rows = (first + difference * torch::arange(kLength + 1)) % kVocabulary;
    const auto tokens = rows.to(world->device());
    const auto logits = model(tokens.slice(1, 0, kLength)).to(torch::kFloat);
    auto loss = torch::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
    loss.backward();
    fsdp::clip_grad_norm_(sharded, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    world->all_reduce(loss = loss.detach(), fsdp::ReduceOp::kAvg)->wait();
    if (world->rank() == 0) {
      std::cout << "step " << step << ": loss " << loss.item<float>() << std::endl;
    }
  }
  if (!folder.empty()) {
    const auto [weights, moments] = fsdp::get_state_dict(sharded, optimizer, whole);
    if (world->rank() == 0) {
      std::filesystem::create_directories(folder + "/new");
      fsdp::save(weights, folder + "/new/model.pt");
      fsdp::save(moments, folder + "/new/optimizer.pt");
      std::filesystem::remove_all(folder + "/last");
      std::filesystem::rename(folder + "/new", folder + "/last");  // both files at once
    }
  }
}
