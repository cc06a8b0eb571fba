#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/models/layers.h"

namespace fsdp::gpu {

/// What gpu_train does, as gpu_parity.py and bench_gpu.py write it; fsdp2_train_gpu.py reads the
/// same keys.
struct TrainCase {
  fsdprun::ModelConfig model;  ///< "model": of a Hugging Face config.json
  c10::Device device = c10::kCPU;
  /// "alone": units over a group of one rank. "mirrored": over one of two, whose peer is this
  /// rank. "none": the module as it is, without FSDP, with all parameters in the dtype in which it
  /// computes.
  std::string group;
  bool communicates = true;  ///< the group of one rank through its backend
  bool is_bfloat16 = false;  ///< computes in it, reduces in float32
  bool recomputes_blocks = false;
  bool is_graph = false;  ///< Steps behind the first few are replays of a graph.
  fsdprun::worker::Kernels kernels = fsdprun::worker::Kernels::kReference;
  /// "adamw": fsdp::AdamW. "sgd": torch::optim::SGD over the sharded parameters, with a decay that
  /// is added to their gradients.
  std::string optimizer;
  double lr = 0;
  double lr_factor = 1;      ///< By which the rate of each step is that of the one before.
  double max_grad_norm = 0;  ///< 0: gradients are not clipped.
  int64_t first_step = 0;
  int64_t steps = 0;
  int64_t micro_batches = 1;
  int64_t batch = 0;
  int64_t length = 0;
  /// "formula": of the index of parameter and element, the same in Python. "random": normal.
  std::string init;
  std::string read_from;  ///< Folder with model.pt and optimizer.pt to start from; empty: none.
  std::string write_to;   ///< Folder for those files at the end; empty: none.
  bool is_timed = false;  ///< Waits for the device at the end of each step.
  /// At most so many seconds; what is done by then is written. 0: all steps.
  double seconds = 0;
};

/// Errors: fsdprun::ConfigError on a key that is missing, or of the wrong type.
TrainCase read_case(const std::string& path);

}  // namespace fsdp::gpu
