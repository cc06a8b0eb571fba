#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

#include "formats/checkpoint/file_system.h"
#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/config/config.h"

namespace fsdprun::worker {

/// A rank had no memory for a step.
class MemoryError : public std::runtime_error {
 public:
  /// `is_final`: a restart cannot help.
  MemoryError(const std::string& what, bool is_final)
      : std::runtime_error(what), is_final_(is_final) {}
  bool is_final() const { return is_final_; }

 private:
  bool is_final_;
};

/// Whether an allocation of this process has failed: on a device or on the host, as LibTorch and
/// its libraries tell it. Not of a peer, whose words a PeerError may have. Pure.
bool IsOutOfMemory(const std::exception& error);

/// Of the step that has failed, and of its run.
struct StepWithoutMemory {
  /// With the micro batch as it was, of the device that there is; and as the user gave it.
  const TrainConfig& config;
  const Json& resolved;
  const ModelConfig& model;
  /// The one that it was in, or behind which it evaluated.
  int64_t step = 0;
  int64_t rank = 0;
  int64_t ranks = 1;
  std::string run;
  std::string launch;
  /// A launcher will start the ranks again.
  bool is_restarted = false;
  bool is_evaluation = false;
  /// Another launch has the folder of the checkpoints now.
  bool is_replaced = false;
  /// A graph holds memory of its own.
  bool has_graph = false;
};

/// Note [Out of memory]. Writes how many windows are the most, if train.on_out_of_memory says so,
/// and throws a MemoryError with what has been done, and with what would help. No collective.
[[noreturn]] void EndForMemory(checkpoint::FileSystem& file_system, const StepWithoutMemory& failed,
                               const std::exception& error);

}  // namespace fsdprun::worker
