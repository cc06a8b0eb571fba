#include "worker/estimate/base_dtype.h"

#include <memory>
#include <stdexcept>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/tensors/open_tensors.h"
#include "formats/tensors/stored_dtype.h"

namespace fsdprun::worker {

std::string DtypeOfStoredBase(const TrainConfig& config, const ModelConfig& model) {
  if (!config.lora.is_on() || config.model.weights == "none") {
    return "float32";
  }
  try {
    const std::unique_ptr<TensorSource> files = OpenTensors(config.model.weights);
    const bool is_bfloat16 = AreWeightsStoredIn(*files, "bfloat16", model.names.ignored_suffixes);
    return is_bfloat16 ? "bfloat16" : "float32";
  } catch (const checkpoint::CheckpointError& error) {
    if (checkpoint::MayPass(error.error_number())) {
      throw;
    }
    return "float32";
  } catch (const std::runtime_error&) {
    return "float32";
  }
}

std::string DtypeOfBase(const TrainConfig& config, const std::string& stored) {
  return config.lora.is_on() && config.precision.param == stored ? stored : "float32";
}

}  // namespace fsdprun::worker
