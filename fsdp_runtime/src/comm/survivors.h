#pragma once

#include <fsdp/export.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// Of `members`, those that call this, without `excluded` and whom others exclude: the same on all
/// of them. Waits for each until `deadline`, or until it is among those that are `gone()`.
/// `prefix`: of the keys in the store, not used before. Errors: StoreError, StoreSilence only if
/// the store is silent at the deadline.
FSDP_API std::vector<int64_t> agree_on_survivors(StoreClient& store, const std::string& prefix,
                                                 int64_t own, const std::vector<int64_t>& members,
                                                 std::set<int64_t> excluded,
                                                 const std::function<std::set<int64_t>()>& gone,
                                                 StoreClient::TimePoint deadline);

}  // namespace fsdp
