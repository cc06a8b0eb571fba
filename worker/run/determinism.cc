#include "worker/run/determinism.h"

#include <ATen/Context.h>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

void UseDeterministicAlgorithms(c10::Device device, const std::string& cublas_workspace) {
  if (device.is_cuda() && cublas_workspace != ":4096:8" && cublas_workspace != ":16:8") {
    throw ConfigError(
        "configuration: train.deterministic = true: expected the environment variable "
        "CUBLAS_WORKSPACE_CONFIG to be \":4096:8\" or \":16:8\", with which cuBLAS is "
        "deterministic; it is " +
        Excerpt(Json(cublas_workspace)));
  }
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace fsdprun::worker
