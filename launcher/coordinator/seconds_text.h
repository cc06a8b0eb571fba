#pragma once

#include <chrono>
#include <string>

#include "base/mono_time.h"

namespace fsdprun {

/// To a tenth, for people.
inline std::string Seconds(Duration d) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(d).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace fsdprun
