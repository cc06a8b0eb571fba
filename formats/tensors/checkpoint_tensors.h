#pragma once

#include <map>
#include <string>

#include "formats/checkpoint/checkpoint_reader.h"
#include "formats/tensors/tensor_source.h"

namespace fsdprun {

/// The tensors of a DCP checkpoint, whoever wrote it. What is read is compared with its checksum.
class CheckpointTensors : public TensorSource {
 public:
  /// Errors: CheckpointError.
  explicit CheckpointTensors(const std::string& path);

  const checkpoint::OpenedCheckpoint& opened() const { return opened_; }
  /// As WeightKeys.
  std::map<std::string, std::string> Weights() const override;
  void Read(const std::string& name, int64_t begin, int64_t count, void* out) override;

 private:
  checkpoint::OpenedCheckpoint opened_;
  checkpoint::CheckpointReader reader_;
};

}  // namespace fsdprun
