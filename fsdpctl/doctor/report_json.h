#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "fsdpctl/doctor/report.h"

namespace fsdprun::doctor {

/// One line, as docs/DOCTOR.md has it, without the newline. Pure.
std::string ReportJson(const DoctorReport& report);

// For the way between nodes; what is read may be anything. Pure.

std::string NodeReportText(const NodeReport& report);
/// Unset for what is no such text. Long texts are cut, and bytes that steer a terminal replaced.
std::optional<NodeReport> ParseNodeReport(absl::string_view text);
std::string PairFactsText(const PairFacts& facts);
std::optional<PairFacts> ParsePairFacts(absl::string_view text);

}  // namespace fsdprun::doctor
