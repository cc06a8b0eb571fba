// An encoder-decoder after T5, sharded block by block as in PyTorch's advanced FSDP tutorial. From
// a row of random tokens it learns to write the same tokens in ascending order.
//
//   fsdprun --standalone --nproc_per_node 2 --no-python ./t5 [--bfloat16] [--steps N]

#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <fsdp/sharded.h>
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <map>
#include <string>

using torch::Tensor;
constexpr int64_t kVocabulary = 64, kWidth = 64, kHeads = 4, kHidden = 128, kLayers = 2;
constexpr int64_t kFarthest = 8, kDistances = 2 * kFarthest + 1, kBatch = 16, kLength = 12;

struct NormImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return torch::rms_norm(x, {kWidth}, weight, 1e-6); }
  Tensor weight = register_parameter("weight", torch::ones(kWidth));
};
TORCH_MODULE(Norm);

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

struct AttentionImpl : torch::nn::Module {
  // x: [batch, queries, width], memory: [batch, keys, width], bias: added to the scores.
  Tensor forward(const Tensor& x, const Tensor& memory, const std::optional<Tensor>& bias) {
    const auto split = [](Tensor t) { return t.unflatten(-1, {kHeads, -1}).transpose(1, 2); };
    const auto queries = split(q(x)), keys = split(k(memory)), values = split(v(memory));
    const auto mixed =
        torch::scaled_dot_product_attention(queries, keys, values, bias, /*dropout_p=*/0,
                                            /*is_causal=*/false, /*scale=*/1.0);
    return o(mixed.transpose(1, 2).flatten(2));
  }
  torch::nn::Linear q = register_module("q", linear(kWidth, kWidth));
  torch::nn::Linear k = register_module("k", linear(kWidth, kWidth));
  torch::nn::Linear v = register_module("v", linear(kWidth, kWidth));
  torch::nn::Linear o = register_module("o", linear(kWidth, kWidth));
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool is_decoder) {
    if (is_decoder) {
      norm3 = register_module("norm3", Norm());
      cross = register_module("cross", Attention());
    }
  }
  // memory: what the encoder has made of the source; a decoder has one.
  Tensor forward(Tensor x, const Tensor& bias, const std::optional<Tensor>& memory) {
    const auto normed = norm1(x);
    x = x + attention(normed, normed, bias);
    x = memory ? x + cross(norm3(x), *memory, std::nullopt) : x;
    return x + wo(torch::relu(wi(norm2(x))));
  }
  Norm norm1 = register_module("norm1", Norm()), norm2 = register_module("norm2", Norm());
  Attention attention = register_module("attention", Attention());
  torch::nn::Linear wi = register_module("wi", linear(kWidth, kHidden));
  torch::nn::Linear wo = register_module("wo", linear(kHidden, kWidth));
  Norm norm3 = nullptr;
  Attention cross = nullptr;
};
using Block = fsdp::Sharded<BlockImpl>;  // will be a unit, and is called through FSDP

struct StackImpl : torch::nn::Module {
  explicit StackImpl(bool is_decoder) {
    for (int64_t i = 0; i < kLayers; ++i) {
      blocks->push_back(std::make_shared<Block>(is_decoder));
    }
  }
  Tensor forward(Tensor x, const std::optional<Tensor>& memory) {
    const auto position = torch::arange(x.size(1), x.device());
    const auto distance = position - position.unsqueeze(1);  // from query to key
    auto bias = biases(distance.clamp(-kFarthest, kFarthest) + kFarthest).permute({2, 0, 1});
    bias = memory ? bias.masked_fill(distance > 0, -INFINITY) : bias;
    for (const auto& block : *blocks) {
      x = block->as<Block>()->forward(x, bias, memory);
    }
    return norm(x);
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Embedding biases = register_module("biases", torch::nn::Embedding(kDistances, kHeads));
  Norm norm = register_module("norm", Norm());
};
TORCH_MODULE(Stack);

struct T5Impl : torch::nn::Module {
  // source, target: [batch, length] -> [batch, length, vocabulary]
  Tensor forward(const Tensor& source, const Tensor& target) {
    const Tensor memory = encoder(words(source), std::nullopt);
    const Tensor x = decoder(words(target), memory);
    return torch::linear(x * std::pow(kWidth, -0.5), words->weight);
  }
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(kVocabulary, kWidth));
  Stack encoder = register_module("encoder", Stack(/*is_decoder=*/false));
  Stack decoder = register_module("decoder", Stack(/*is_decoder=*/true));
};
using T5 = torch::nn::ModuleHolder<fsdp::Sharded<T5Impl>>;

int main(int argc, char** argv) {
  std::map<std::string, std::string> options{{"--steps", "200"}, {"--bfloat16", "no"}};
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
  T5 model;
  model->to(world->device());
  for (const auto& module : model->modules(/*include_self=*/false)) {
    if (module->as<Block>()) {  // the policy: each block is a unit, the root has the rest
      fsdp::fully_shard(module, sharding);
    }
  }
  const auto sharded = fsdp::fully_shard(model, sharding);
  fsdp::AdamW optimizer(sharded, {.lr = 2e-3});
  torch::manual_seed(1 + world->rank());  // other samples on every rank
  std::cout.precision(9);
  for (int64_t step = 1; step <= std::stoll(options["--steps"]); ++step) {
    const auto source = torch::randint(1, kVocabulary, {kBatch, kLength}).to(world->device());
    const auto sorted = std::get<0>(source.sort(1));
    const auto begun = torch::constant_pad_nd(sorted, {1, -1});  // 0, then all but the last
    const auto logits = model(source, begun).to(torch::kFloat);
    auto loss = torch::cross_entropy_loss(logits.flatten(0, 1), sorted.flatten());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    world->all_reduce(loss = loss.detach(), fsdp::ReduceOp::kAvg)->wait();
    if (world->rank() == 0) {
      std::cout << "step " << step << ": loss " << loss.item<float>() << std::endl;
    }
  }
}
