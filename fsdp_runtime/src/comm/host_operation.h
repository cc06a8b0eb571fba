#pragma once

#include <fsdp/collectives.h>

#include <chrono>
#include <optional>
#include <string>

#include "fsdp_runtime/src/comm/group_error.h"
#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// "all_gather for unit layers.0".
std::string operation_name(const std::string& kind, const std::string& purpose);

/// Waits for what an operation of the group depends on. If that fails, so do all groups of the
/// world: a peer that waits for this rank loses it, whatever has happened here.
void wait_for_dependency(const GroupPlace& place, const Issue& issue);

/// Runs `body`, an operation of a CPU backend, on the calling thread. If it fails, so do all groups
/// of the world, and the error is that of the first failure among them, with `name()` as what the
/// operation was, which is composed only then.
template <class Name, class Body>
void run_operation(const GroupPlace& place, const Name& name, const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  std::optional<GroupFailure> failure = place.membership->failure();
  if (!failure) {
    try {
      body();
      return;
    } catch (...) {
      failure = place.membership->revoke(failure_of_current_exception());
    }
  }
  throw_failure(*failure, name(), place.world_rank(place.rank),
                std::chrono::duration_cast<std::chrono::milliseconds>(
                    std::chrono::steady_clock::now() - begin));
}

}  // namespace fsdp
