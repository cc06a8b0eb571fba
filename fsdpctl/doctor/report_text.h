#pragma once

#include <string>

#include "fsdpctl/doctor/report.h"

namespace fsdprun::doctor {

/// For people, with a newline at its end. Without `shows_all` a group that has no warning and no
/// problem is one line. Pure.
std::string ReportText(const DoctorReport& report, bool shows_all);

}  // namespace fsdprun::doctor
