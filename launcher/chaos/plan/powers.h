#pragma once

#include <string>

#include "launcher/chaos/plan/fault.h"

namespace fsdprun::chaos {

/// Where the job comes from, which decides what can be done to it.
enum class Form {
  kAttached,     ///< It runs already.
  kOneLauncher,  ///< One command is started, which is the job.
  kNodes,        ///< A coordinator and the launcher of each node are started, and again if killed.
};

/// What can be done.
struct Powers {
  Form form = Form::kAttached;
  /// The user has named targets: whoever names an agent of an attached job has it started again.
  bool names_targets = false;
  bool has_fill = false;
  bool has_corrupt = false;
};

/// Why a fault cannot be done, and what to do about it; empty if it can. Pure.
std::string WhyNot(FaultKind kind, FaultTarget target, const Powers& powers);

}  // namespace fsdprun::chaos
