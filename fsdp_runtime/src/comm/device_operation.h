#pragma once

#include <fsdp/export.h>

#include <functional>
#include <string>

#include "fsdp_runtime/src/comm/device_watch.h"
#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

// What a backend on a device does under Membership, as run_operation() is for the CPU's. Errors
// name `operation`, and are those of throw_failure().

/// Throws if the groups have failed.
FSDP_API void check_groups(const GroupPlace& place, const std::string& operation);

/// Runs `call`, which launches `operation`. Throws if the groups have failed. If `call` throws,
/// they fail: peers that have launched theirs would wait for this rank.
FSDP_API void launch_operation(const GroupPlace& place, const std::string& operation,
                               const std::function<void()>& call);

/// Blocks the host until what has been launched is done. Throws if the groups fail before.
FSDP_API void wait_for_launched(const GroupPlace& place, DeviceWatch& watch,
                                const std::string& operation);

/// Runs `call`, which forms what the library has for a group at `place`, and may wait for ranks
/// that do not come, for ever at worst. If it throws, does not end within the group's timeout, or
/// the groups of the world fail before, they all fail: throws the first failure. `call` holds what
/// it uses: it may go on behind that, on a thread that is left behind.
FSDP_API void form_within(const GroupPlace& place, std::function<void()> call);

}  // namespace fsdp
