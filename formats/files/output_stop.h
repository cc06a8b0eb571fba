#pragma once

#include <string>

namespace fsdprun {

/// Makes every write to an output that is begun fail from now on, so that it is removed. Returns
/// whether one is begun; there is nothing to remove otherwise. May be called in a handler of
/// signals.
bool StopOutputs();

/// Whether that has been called.
bool OutputsAreStopped();

/// Throws fsdp::archive::Error "cannot `action` `path`: interrupted; ..." after StopOutputs().
/// Thread: any.
void CheckOutputsGoOn(const std::string& action, const std::string& path);

/// An output that is begun. Thread: any.
class BegunOutput {
 public:
  BegunOutput();
  ~BegunOutput();
  BegunOutput(const BegunOutput&) = delete;
  BegunOutput& operator=(const BegunOutput&) = delete;

  /// Errors: fsdp::archive::Error naming `path` after StopOutputs().
  void CheckGoesOn(const std::string& path) const { CheckOutputsGoOn("write", path); }
};

}  // namespace fsdprun
