#include "base/descriptor_limit.h"

#include <sys/resource.h>

#include <utility>

namespace fsdprun {
namespace {

/// For listeners, logs, the keeper and threads.
constexpr uint64_t kOthers = 256;

}  // namespace

uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const uint64_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);  // Raising to the hard limit is always allowed.
  return before;
}

std::string DescriptorShortage(uint64_t count, const std::string& what) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= count + kOthers) {
    return "";
  }
  return "this process may have " + std::to_string(limit.rlim_cur) + " descriptors, and " +
         std::to_string(count) + " " + what + " need one each; raise the limit to " +
         std::to_string(count + kOthers) + " (ulimit -Hn, LimitNOFILE=) or some will be refused";
}

}  // namespace fsdprun
