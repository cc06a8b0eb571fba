#include "tests/parity/rows/models.h"

#include <ATen/ATen.h>
#include <fsdp/activation_checkpoint.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace parity_rows {
namespace {

using nlohmann::json;

struct Linear : torch::nn::Module {
  Linear(int64_t in, int64_t out, bool has_bias = true)
      : weight(register_parameter("weight", at::empty({out, in}))) {
    if (has_bias) {
      bias = register_parameter("bias", at::empty({out}));
    }
  }
  /// With a weight that is another module's, too.
  explicit Linear(const at::Tensor& tied) : weight(register_parameter("weight", tied)) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
  at::Tensor weight, bias;
};

struct LayerNorm : torch::nn::Module {
  explicit LayerNorm(int64_t width)
      : weight(register_parameter("weight", at::empty({width}))),
        bias(register_parameter("bias", at::empty({width}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::layer_norm(x, weight.sizes(), weight, bias);
  }
  at::Tensor weight, bias;
};

struct Embedding : torch::nn::Module {
  Embedding(int64_t count, int64_t width)
      : weight(register_parameter("weight", at::empty({count, width}))) {}
  at::Tensor forward(const at::Tensor& index) { return at::embedding(weight, index); }
  at::Tensor weight;
};

template <class M, class... Args>
fsdp::Unit<M> add_unit(torch::nn::Module& parent, const std::string& name, Args... args) {
  fsdp::Unit<M> unit(std::make_shared<M>(args...));
  parent.register_module(name, unit.ptr());
  return unit;
}

/// Calls a unit by no checkpoint (false), or by one of a kind; true: by libfsdp's default kind.
class Checkpoint {
 public:
  explicit Checkpoint(const json& spec) : how_(spec.value("checkpointed", json(false))) {}
  template <class M>
  at::Tensor call(const fsdp::Unit<M>& unit, const at::Tensor& x) const {
    const auto body = [unit](const at::Tensor& h) { return unit(h); };
    if (how_ == false) {
      return unit(x);
    }
    if (how_ == true) {
      return fsdp::activation_checkpoint(body, x);
    }
    fsdp::CheckpointOptions options{.use_reentrant = how_ == "reentrant"};
    if (how_ == "selective") {
      options.keeps_results_of = fsdp::keep_results_of({"aten::addmm", "aten::relu"});
    }
    return fsdp::activation_checkpoint(options, body, x);
  }

 private:
  const json how_;
};

/// Linear layers of any shapes with relu between them, "layers.0", "layers.1", ...
class Mlp : public RowModel {
 public:
  explicit Mlp(const json& spec) {
    auto list = std::make_shared<torch::nn::Module>();
    register_module("layers", list);
    for (const json& shape : spec.at("shapes")) {
      layers_.push_back(add_unit<Linear>(*list, std::to_string(layers_.size()),
                                         shape.at(0).get<int64_t>(), shape.at(1).get<int64_t>()));
    }
  }
  at::Tensor draw_input(int64_t batch) const override {
    return at::randn({batch, layers_.front()->weight.size(1)});
  }
  at::Tensor forward(at::Tensor x) override {
    for (size_t i = 0; i < layers_.size(); ++i) {
      x = layers_[i](i == 0 ? x : at::relu(x));
    }
    return x;
  }

 private:
  std::vector<fsdp::Unit<Linear>> layers_;
};

/// What is not a tensor, with one inside.
struct Activation {
  at::Tensor x;
  int64_t uses = 0;
};
using Dict = std::map<std::string, at::Tensor>;
using Pair = std::tuple<at::Tensor, at::Tensor>;

struct Block : torch::nn::Module {
  Block(std::string label, int64_t width, bool has_norm, std::vector<std::string>* seen)
      : label(std::move(label)), seen(seen) {
    if (has_norm) {
      norm = add_unit<LayerNorm>(*this, "norm", width);
    }
    in_proj = add_unit<Linear>(*this, "in_proj", width, 4 * width);
    out_proj = add_unit<Linear>(*this, "out_proj", 4 * width, width);
  }
  at::Tensor forward(at::Tensor x) {
    seen->push_back(label + ' ' + c10::toString(x.scalar_type()) + ' ' +
                    c10::toString(in_proj->weight.scalar_type()));
    const at::Tensor inner = at::relu(in_proj(norm.ptr() ? norm(x) : x));
    return x + out_proj(inner);
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& shift) { return forward(x + shift); }
  Dict forward(Dict values) { return {{"x", forward(values.at("x"))}}; }
  Pair forward(Pair values) {
    const at::Tensor y = forward(std::get<0>(values));
    return {y, y * 2};
  }
  Activation forward(Activation value) { return {forward(value.x), value.uses + 1}; }

  const std::string label;
  std::vector<std::string>* const seen;
  fsdp::Unit<LayerNorm> norm;
  fsdp::Unit<Linear> in_proj, out_proj;
};

/// Residual blocks "blocks.0", ... in any order of calls, and a head.
class Stack : public RowModel {
 public:
  explicit Stack(const json& spec)
      : width_(spec.at("width").get<int64_t>()),
        order_(spec.at("order").get<std::vector<size_t>>()),
        carried_(spec.value("carried", "tensor")),
        unused_block_(spec.value("unused_block", -1)),
        checkpoint_(spec),
        has_shift_(spec.value("external_input", false)),
        makes_input_(spec.value("makes_input", false)),
        gathers_ahead_(spec.value("gathers_ahead", false)) {
    auto list = std::make_shared<torch::nn::Module>();
    register_module("blocks", list);
    for (int64_t i = 0; i < spec.at("blocks").get<int64_t>(); ++i) {
      const std::string number = std::to_string(i);
      blocks_.push_back(add_unit<Block>(*list, number, "blocks." + number, width_,
                                        spec.value("has_norm", false), &seen));
    }
    head_ = add_unit<Linear>(*this, "head", width_, spec.value("head", int64_t{4}));
  }
  at::Tensor draw_input(int64_t batch) const override { return at::randn({batch, width_}); }
  at::Tensor call_child(const std::string& name, at::Tensor input) override {
    const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                    [&name](const auto& block) { return block->label == name; });
    TORCH_CHECK(found != blocks_.end(), "no block ", name);
    return (*found)(input);
  }
  at::Tensor encode(at::Tensor x) override {
    for (size_t i = 0; i < order_.size(); ++i) {
      std::optional<fsdp::UnshardHandle> next;
      if (gathers_ahead_ && i + 1 < order_.size()) {
        next = fsdp::fsdp_module(*blocks_.at(order_[i + 1])).unshard_async();
      }
      x = run(blocks_.at(order_[i]), x);
      if (next) {
        next->wait();
      }
    }
    return x;
  }
  at::Tensor forward(at::Tensor x) override {
    if (makes_input_) {
      x = at::ones({3, width_});
    }
    x = encode(x);
    if (unused_block_ >= 0) {
      blocks_.at(static_cast<size_t>(unused_block_))(x);  // what it returns has no use
    }
    return head_(x);
  }

 private:
  at::Tensor run(const fsdp::Unit<Block>& block, const at::Tensor& x) const {
    if (carried_ == "dict") {
      return block(Dict{{"x", x}}).at("x");
    }
    if (carried_ == "tuple") {
      return std::get<0>(block(Pair{x, x * 2}));  // the second result is unused
    }
    if (carried_ == "struct") {
      return block(Activation{x, 1}).x;
    }
    if (has_shift_) {
      return block(x, at::full({width_}, 0.25));
    }
    return checkpoint_.call(block, x);
  }

  const int64_t width_;
  const std::vector<size_t> order_;
  const std::string carried_;
  const int64_t unused_block_;
  const Checkpoint checkpoint_;
  const bool has_shift_, makes_input_, gathers_ahead_;
  std::vector<fsdp::Unit<Block>> blocks_;
  fsdp::Unit<Linear> head_;
};

constexpr int64_t kHeads = 4, kVocabulary = 8, kPositions = 16, kWidth = 16;

struct Attention : torch::nn::Module {
  Attention()
      : wq(add_unit<Linear>(*this, "wq", kWidth, kWidth, false)),
        wk(add_unit<Linear>(*this, "wk", kWidth, kWidth, false)),
        wv(add_unit<Linear>(*this, "wv", kWidth, kWidth, false)),
        wo(add_unit<Linear>(*this, "wo", kWidth, kWidth, false)) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&x](const at::Tensor& t) {
      return t.view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    // One after the other: the order in which gradients of x are added is the reverse of this.
    const at::Tensor q = heads(wq(x));
    const at::Tensor k = heads(wk(x));
    const at::Tensor v = heads(wv(x));
    const at::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    return wo(y.transpose(1, 2).contiguous().view({x.size(0), x.size(1), -1}));
  }
  fsdp::Unit<Linear> wq, wk, wv, wo;
};

struct FeedForward : torch::nn::Module {
  FeedForward()
      : w1(add_unit<Linear>(*this, "w1", kWidth, 4 * kWidth)),
        w2(add_unit<Linear>(*this, "w2", 4 * kWidth, kWidth)) {}
  at::Tensor forward(const at::Tensor& x) { return w2(at::gelu(w1(x))); }
  fsdp::Unit<Linear> w1, w2;
};

struct Layer : torch::nn::Module {
  Layer()
      : attention_norm(add_unit<LayerNorm>(*this, "attention_norm", kWidth)),
        attention(add_unit<Attention>(*this, "attention")),
        ffn_norm(add_unit<LayerNorm>(*this, "ffn_norm", kWidth)),
        feed_forward(add_unit<FeedForward>(*this, "feed_forward")) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = x + attention(attention_norm(x));
    return h + feed_forward(ffn_norm(h));
  }
  fsdp::Unit<LayerNorm> attention_norm;
  fsdp::Unit<Attention> attention;
  fsdp::Unit<LayerNorm> ffn_norm;
  fsdp::Unit<FeedForward> feed_forward;
};

/// The Transformer with which PyTorch tests FSDP2 (common_dtensor.py), without dropout.
class Transformer : public RowModel {
 public:
  explicit Transformer(const json& spec)
      : checkpoint_(spec),
        tokens_(add_unit<Embedding>(*this, "tok_embeddings", kVocabulary, kWidth)),
        positions_(add_unit<Embedding>(*this, "pos_embeddings", kPositions, kWidth)) {
    auto list = std::make_shared<torch::nn::Module>();
    register_module("layers", list);
    for (int64_t i = 0; i < spec.value("layers", int64_t{2}); ++i) {
      layers_.push_back(add_unit<Layer>(*list, std::to_string(i)));
    }
    norm_ = add_unit<LayerNorm>(*this, "norm", kWidth);
    output_ = spec.value("is_tied", true)
                  ? add_unit<Linear>(*this, "output", tokens_->weight)
                  : add_unit<Linear>(*this, "output", kWidth, kVocabulary, false);
  }
  at::Tensor draw_input(int64_t batch) const override {
    return at::randint(kVocabulary, {batch, kPositions}, at::kLong);
  }
  at::Tensor forward(at::Tensor input) override {
    at::Tensor h = tokens_(input) + positions_(at::arange(input.size(1)));
    for (const fsdp::Unit<Layer>& layer : layers_) {
      h = checkpoint_.call(layer, h);
    }
    return output_(norm_(h)).to(at::kFloat);
  }

 private:
  const Checkpoint checkpoint_;
  fsdp::Unit<Embedding> tokens_, positions_;
  std::vector<fsdp::Unit<Layer>> layers_;
  fsdp::Unit<LayerNorm> norm_;
  fsdp::Unit<Linear> output_;
};

/// Parameters of any shapes, "weights.0", ..., whose gradients are the input times a number.
class Parameters : public RowModel {
 public:
  explicit Parameters(const json& spec) {
    auto list = std::make_shared<torch::nn::Module>();
    register_module("weights", list);
    for (const json& shape : spec.at("shapes")) {
      weights_.push_back(list->register_parameter(std::to_string(weights_.size()),
                                                  at::empty(shape.get<std::vector<int64_t>>())));
      numel_ += weights_.back().numel();
    }
  }
  at::Tensor draw_input(int64_t /*batch*/) const override { return at::randn({numel_}); }
  at::Tensor forward(at::Tensor input) override {
    std::vector<at::Tensor> sums;
    int64_t begin = 0;
    for (const at::Tensor& weight : weights_) {
      const at::Tensor piece = input.narrow(0, begin, weight.numel()).view(weight.sizes());
      sums.push_back((weight * piece).sum());
      begin += weight.numel();
    }
    return at::stack(sums);
  }

 private:
  std::vector<at::Tensor> weights_;
  int64_t numel_ = 0;
};

}  // namespace

at::Tensor RowModel::call_child(const std::string& name, at::Tensor /*input*/) {
  TORCH_CHECK(false, "this model has no unit ", name, " that can be called alone");
}

at::Tensor RowModel::encode(at::Tensor /*input*/) {
  TORCH_CHECK(false, "this model has no other method than forward");
}

std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const RowModel& model) {
  std::vector<std::pair<std::string, at::Tensor>> unique;
  std::set<const void*> known;
  for (const auto& item : model.named_parameters()) {
    if (known.insert(item.value().unsafeGetTensorImpl()).second) {
      unique.emplace_back(item.key(), item.value());
    }
  }
  return unique;
}

void set_requires_grad(const RowModel& model, const std::string& prefix, bool value) {
  for (auto& [name, parameter] : unique_parameters(model)) {
    if (name.starts_with(prefix)) {
      parameter.set_requires_grad(value);
    }
  }
}

void draw_parameters(RowModel& model, uint64_t seed) {
  at::NoGradGuard no_grad;
  at::manual_seed(seed);
  auto parameters = unique_parameters(model);
  std::sort(parameters.begin(), parameters.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [name, parameter] : parameters) {
    const double scale = 1 / std::sqrt(static_cast<double>(parameter.size(-1)));
    parameter.copy_(at::randn(parameter.sizes()) * scale);
  }
}

std::shared_ptr<RowModel> make_model(const json& spec) {
  const std::string kind = spec.at("kind").get<std::string>();
  std::shared_ptr<RowModel> model;
  if (kind == "mlp") {
    model = std::make_shared<Mlp>(spec);
  } else if (kind == "stack") {
    model = std::make_shared<Stack>(spec);
  } else if (kind == "transformer") {
    model = std::make_shared<Transformer>(spec);
  } else if (kind == "parameters") {
    model = std::make_shared<Parameters>(spec);
  }
  TORCH_CHECK(model, "no model ", kind);
  for (const json& prefix : spec.value("frozen", json::array())) {
    set_requires_grad(*model, prefix.get<std::string>(), false);
  }
  return model;
}

}  // namespace parity_rows
