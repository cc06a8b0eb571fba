#include "fsdpctl/doctor/report.h"

#include <algorithm>

namespace fsdprun::doctor {

Severity WorstOf(const DoctorReport& report) {
  Severity worst = std::max(WorstOf(report.own.findings), WorstOf(report.meeting));
  for (const PairReport& pair : report.pairs) {
    worst = std::max({worst, WorstOf(pair.findings), WorstOf(pair.other.findings)});
  }
  return worst;
}

}  // namespace fsdprun::doctor
