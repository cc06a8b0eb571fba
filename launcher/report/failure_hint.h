#pragma once

#include <string>

#include "proto/cluster/types.h"

namespace fsdprun {

/// What an operator should try next after this failure; empty when nothing better than the log is
/// known. `store` is that of the world that failed. Pure.
std::string FailureHint(const Failure& failure, const StoreEndpoint& store);

/// `SIGSEGV` for 11; `signal 77` for an unknown number.
std::string SignalName(int signal);

}  // namespace fsdprun
