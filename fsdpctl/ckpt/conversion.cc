#include "fsdpctl/ckpt/conversion.h"

#include "formats/tensors/checkpoint_tensors.h"

namespace fsdprun::ckpt {

void TakeStep(const TensorSource& source, CheckpointToWrite& output) {
  const auto* dcp = dynamic_cast<const CheckpointTensors*>(&source);
  if (dcp == nullptr || !dcp->opened().manifest) {
    return;
  }
  output.step = dcp->opened().manifest->step;
  output.tokens = dcp->opened().manifest->tokens;
  output.run = dcp->opened().manifest->run;
}

}  // namespace fsdprun::ckpt
