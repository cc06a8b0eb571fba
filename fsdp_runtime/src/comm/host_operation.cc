#include "fsdp_runtime/src/comm/host_operation.h"

#include "fsdp_runtime/src/comm/group_error.h"

namespace fsdp {

std::string operation_name(const std::string& kind, const std::string& purpose) {
  return kind + (purpose.empty() ? "" : " for " + purpose);
}

void wait_for_dependency(const GroupPlace& place, const Issue& issue) {
  try {
    if (issue.after) {
      issue.after->wait();
    }
  } catch (...) {
    const int64_t rank = place.world_rank(place.rank);
    place.membership->revoke({"rank " + std::to_string(rank) + " cannot take part in " +
                                  operation_name("an operation", issue.purpose) +
                                  ", because one that it depends on has failed there: " +
                                  failure_of_current_exception().reason,
                              rank});
    throw;
  }
}

}  // namespace fsdp
