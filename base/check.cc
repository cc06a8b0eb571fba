#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace fsdprun::internal {

void CheckFailed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr,
               "fsdprun: broken invariant at %s:%d: %s (%s); this is a bug, please report it\n",
               file, line, condition, why);
  std::abort();
}

}  // namespace fsdprun::internal
