#include "fsdp_runtime/src/comm/device_operation.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "fsdp_runtime/src/comm/group_error.h"

namespace fsdp {
namespace {

std::chrono::milliseconds passed_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               begin);
}

}  // namespace

void check_groups(const GroupPlace& place, const std::string& operation) {
  if (const std::optional<GroupFailure> failure = place.membership->failure()) {
    throw_failure(*failure, operation, place.world_rank(place.rank), {});
  }
}

void launch_operation(const GroupPlace& place, const std::string& operation,
                      const std::function<void()>& call) {
  check_groups(place, operation);
  const auto begin = std::chrono::steady_clock::now();
  try {
    call();
  } catch (...) {
    const GroupFailure failure =
        place.membership->revoke_unless_told(failure_of_current_exception());
    throw_failure(failure, operation, place.world_rank(place.rank), passed_since(begin));
  }
}

void wait_for_launched(const GroupPlace& place, DeviceWatch& watch, const std::string& operation) {
  const auto begin = std::chrono::steady_clock::now();
  if (const std::optional<GroupFailure> failure = watch.wait()) {
    throw_failure(*failure, operation, place.world_rank(place.rank), passed_since(begin));
  }
}

void form_within(const GroupPlace& place, std::function<void()> call) {
  const std::shared_ptr<Membership> members = place.membership;
  const int64_t rank = place.world_rank(place.rank);
  const auto begin = std::chrono::steady_clock::now();
  const auto error = std::make_shared<std::exception_ptr>();
  const bool has_ended = call_within(
      place.timeout,
      [error, call = std::move(call)] {
        try {
          call();
        } catch (...) {
          *error = std::current_exception();
        }
      },
      [members] { return members->failure().has_value(); });
  if (has_ended && *error == nullptr) {
    return;
  }
  try {
    if (has_ended) {
      std::rethrow_exception(*error);
    }
    TORCH_CHECK(false, "rank ", rank, " has waited for its peers for ", place.timeout.count(),
                " ms; look at the logs of the ranks that have not come, or raise the group's "
                "timeout");
  } catch (...) {
    throw_failure(members->revoke_unless_told(failure_of_current_exception()), "forming the group",
                  rank, passed_since(begin));
  }
}

}  // namespace fsdp
