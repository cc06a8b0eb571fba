// What libfsdp's templates become in a program, for headers_test.py: it includes all public headers
// before this, and compiles it as strictly as it does them.
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

namespace stranger {

struct Batch {
  at::Tensor x;
  std::optional<at::Tensor> mask;
  std::map<std::string, at::Tensor> named;
  int64_t count = 0;
};

class Hidden {
 public:
  explicit Hidden(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  friend void visit_tensors(Hidden& hidden, std::vector<at::Tensor*>& out) {
    if (hidden.tensor_.defined()) {
      out.push_back(&hidden.tensor_);
    }
  }

 private:
  at::Tensor tensor_;
};

struct ByValueImpl : torch::nn::Module {
  std::tuple<at::Tensor, Hidden> forward(Batch batch, const std::variant<int64_t, double>& factor,
                                         at::IntArrayRef sizes, bool is_last) {
    const double by = std::visit([](auto held) { return static_cast<double>(held); }, factor);
    at::Tensor y = (batch.x * weight * by).view(sizes);
    return {y, Hidden(is_last ? y : batch.x)};
  }
  at::Tensor weight = register_parameter("weight", at::ones({2}));
};
TORCH_MODULE(ByValue);

struct InPlaceImpl : torch::nn::Module {
  void forward(const at::Tensor& x, std::vector<at::Tensor>& out) const noexcept {
    out.push_back(x * weight);
  }
  at::Tensor weight = register_parameter("weight", at::ones({2}));
};

using Linear = torch::nn::ModuleHolder<fsdp::Sharded<torch::nn::LinearImpl>>;

at::Tensor use(const at::Tensor& x) {
  fsdp::Unit<ByValueImpl> by_value(std::make_shared<ByValueImpl>());
  fsdp::Unit<fsdp::Sharded<InPlaceImpl>> in_place(std::make_shared<fsdp::Sharded<InPlaceImpl>>());
  const std::tuple<at::Tensor, Hidden> both =
      by_value(Batch{x, std::nullopt, {{"x", x}}, 2}, int64_t{3}, std::vector<int64_t>{2}, true);
  std::vector<at::Tensor> made;
  in_place(std::get<0>(both), made);
  const at::Tensor called = fsdp::call(
      *in_place, [](const at::Tensor& a, float by) { return a * by; }, made.front(), 2.0F);
  fsdp::call(
      *by_value, [](const at::Tensor& a, at::Tensor& out) { out = a; }, called, made.front());
  Linear linear(2, 2);
  return fsdp::activation_checkpoint(
      [&linear](at::Tensor a, const std::string& name, int times) {
        return linear(a) * static_cast<double>(times) + static_cast<double>(name.size());
      },
      made.front(), std::string("two"), 2);
}

}  // namespace stranger
