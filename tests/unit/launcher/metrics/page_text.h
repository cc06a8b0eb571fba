#pragma once

#include <string>

#include "base/mono_time.h"
#include "launcher/metrics/metric_page.h"

namespace fsdprun {

inline MonoTime At(int s) { return MonoTime(std::chrono::seconds(s)); }

/// The value of a row as it is shown, such as `fsdprun_agents{state="member"}`; empty if there is
/// none.
inline std::string ValueOf(const MetricPage& page, const std::string& row) {
  const std::string text = "\n" + page.Text();
  const size_t begin = text.find("\n" + row + " ");
  if (begin == std::string::npos) {
    return "";
  }
  const size_t value = begin + row.size() + 2;
  return text.substr(value, text.find('\n', value) - value);
}

}  // namespace fsdprun
