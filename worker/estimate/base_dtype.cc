#include "worker/estimate/base_dtype.h"

#include <memory>
#include <stdexcept>

#include "formats/tensors/open_tensors.h"
#include "formats/tensors/stored_dtype.h"

namespace fsdprun::worker {

std::string BaseDtypeOf(const TrainConfig& config, const ModelConfig& model) {
  const std::string& computed = config.precision.param;
  if (!config.lora.is_on() || computed == "float32" || config.model.weights == "none") {
    return "float32";
  }
  try {
    const std::unique_ptr<TensorSource> files = OpenTensors(config.model.weights);
    return AreWeightsStoredIn(*files, computed, model.names.ignored_suffixes) ? computed
                                                                              : "float32";
  } catch (const std::runtime_error&) {
    return "float32";
  }
}

}  // namespace fsdprun::worker
