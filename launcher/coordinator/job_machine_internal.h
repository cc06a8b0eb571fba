#pragma once

// Shared by the translation units of JobMachine only.

#include <chrono>
#include <string>

#include "launcher/coordinator/job_machine.h"

namespace fsdprun {

/// The effects that one Step collects.
struct JobMachine::Out {
  job::Effects& effects;
  MonoTime now;
  /// More than a lease changed.
  bool changed = true;
};

/// To a tenth, for people.
inline std::string Seconds(Duration d) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(d).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace fsdprun
