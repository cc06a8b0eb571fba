#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fsdpctl/doctor/checks/finding.h"

namespace fsdprun::doctor {

/// The one finding of that check; fails the test, and is empty, if there is not exactly one.
inline Finding FindingOf(const std::vector<Finding>& findings, const std::string& check) {
  Finding found;
  int count = 0;
  for (const Finding& finding : findings) {
    if (finding.check == check) {
      found = finding;
      ++count;
    }
  }
  EXPECT_EQ(count, 1) << check;
  return found;
}

inline Severity SeverityOf(const std::vector<Finding>& findings, const std::string& check) {
  return FindingOf(findings, check).severity;
}

/// Who is told that something is wrong is told why, and almost always what to do.
inline void ExpectAdvice(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.found.empty()) << finding.check;
    if (finding.severity >= Severity::kWarning) {
      EXPECT_FALSE(finding.why.empty() && finding.what_to_do.empty()) << finding.check;
    }
  }
}

}  // namespace fsdprun::doctor
