#pragma once

// Shared by the translation units of JobMachine only.

#include "launcher/coordinator/job_machine.h"
#include "launcher/coordinator/seconds_text.h"

namespace fsdprun {

/// The effects that one Step collects.
struct JobMachine::Out {
  job::Effects& effects;
  MonoTime now;
  /// More than a lease changed.
  bool changed = true;
};

}  // namespace fsdprun
