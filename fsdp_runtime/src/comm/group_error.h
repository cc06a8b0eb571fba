#pragma once

#include <fsdp/export.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// The error of `operation` on `rank`, `waited` after it began: PeerError if another rank is lost,
/// else c10::Error; a rank that is the cause is no victim.
[[noreturn]] FSDP_API void throw_failure(const GroupFailure& failure, const std::string& operation,
                                         int64_t rank, std::chrono::milliseconds waited);
/// What failed, told by the exception that is being handled.
FSDP_API GroupFailure failure_of_current_exception();

}  // namespace fsdp
