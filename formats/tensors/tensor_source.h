#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsdprun {

struct TensorFacts {
  std::string dtype;  // torch's name, "float32"; or as the file spells one that torch does not have
  std::vector<int64_t> shape;
  int64_t pieces = 0;              // how many parts it is stored in
  std::vector<std::string> files;  // that they lie in
};

/// Tensors by name, read piece by piece. Thread: one. Errors: std::runtime_error that names file
/// and tensor.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  const std::map<std::string, TensorFacts>& tensors() const { return tensors_; }
  /// The weights of a model among them: the tensors' names here by their names in the model. Files
  /// of weights have no others, and the model's names.
  virtual std::map<std::string, std::string> Weights() const {
    std::map<std::string, std::string> names;
    for (const auto& [name, facts] : tensors_) {
      names[name] = name;
    }
    return names;
  }
  /// Elements [begin, begin + count) in row-major order.
  virtual void Read(const std::string& name, int64_t begin, int64_t count, void* out) = 0;

 protected:
  std::map<std::string, TensorFacts> tensors_;
};

}  // namespace fsdprun
