#include "fsdp_runtime/src/comm/group_error.h"

#include <c10/util/Exception.h>
#include <fsdp/collectives.h>

#include "fsdp_runtime/shm/error.h"

namespace fsdp {

void throw_failure(const GroupFailure& failure, const std::string& operation, int64_t rank,
                   std::chrono::milliseconds waited) {
  const std::string what = operation + " on rank " + std::to_string(rank) + ", after " +
                           std::to_string(waited.count()) + " ms: " + failure.reason;
  TORCH_CHECK(failure.lost_rank.value_or(rank) != rank, what);
  PeerError error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, what);
  error.rank = failure.lost_rank;
  error.operation = operation;
  error.waited = waited;
  throw error;
}

GroupFailure failure_of_current_exception() {
  try {
    throw;
  } catch (const shm::PeerLost& error) {
    return {error.what(), error.rank};
  } catch (const PeerError& error) {
    return {error.what_without_backtrace(), error.rank};
  } catch (const c10::Error& error) {
    return {error.what_without_backtrace(), {}};
  } catch (const std::exception& error) {
    return {error.what(), {}};
  }
}

}  // namespace fsdp
