#pragma once

// Shared by the translation units of NodeMachine only.

#include "agent/node/node_machine.h"

namespace fsdprun {

/// What one Step collects.
struct NodeMachine::Out {
  node::Effects effects;
  MonoTime now;
};

}  // namespace fsdprun
