#pragma once

#include <memory>
#include <vector>

#include "formats/tensors/tensor_source.h"

namespace fsdprun {

/// The tensors of several sources as one.
class JoinedTensors : public TensorSource {
 public:
  /// Errors: fsdp::archive::Error if two sources have a tensor of one name.
  explicit JoinedTensors(std::vector<std::unique_ptr<TensorSource>> sources);
  void Read(const std::string& name, int64_t begin, int64_t count, void* out) override;

 private:
  std::vector<std::unique_ptr<TensorSource>> sources_;
  std::map<std::string, TensorSource*> owners_;
};

}  // namespace fsdprun
