#include "base/descriptor_limit.h"

#include <sys/resource.h>

#include <utility>

namespace fsdprun {

uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const uint64_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);  // Raising to the hard limit is always allowed.
  return before;
}

}  // namespace fsdprun
