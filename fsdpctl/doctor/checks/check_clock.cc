#include "absl/strings/str_cat.h"
#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

constexpr double kGreatErrorMs = 1000;
/// 2024-01-01: no earlier time is right.
constexpr int64_t kEarliest = 1'704'067'200;

}  // namespace

std::vector<Finding> CheckClock(const ClockFacts& facts) {
  Findings findings(CheckGroup::kClock);
  const char* todo =
      "`timedatectl set-ntp true`, or install chrony; in a container this is the host's business";
  if (facts.unix_seconds < kEarliest) {
    findings.Problem(
        "time", {"the clock is years behind", "certificates and credentials are refused", todo});
  } else if (!facts.is_known) {
    findings.Ok("synchronised", "the kernel does not tell whether the clock is synchronised");
  } else if (!facts.is_synchronised) {
    findings.Warn("synchronised",
                  {"the clock is not synchronised",
                   "times in logs of several nodes cannot be compared, and certificates may be "
                   "refused; fsdprun itself does not compare clocks of nodes",
                   todo});
  } else if (facts.max_error_ms > kGreatErrorMs) {
    findings.Warn("synchronised",
                  {absl::StrCat("the clock may be wrong by ", MicrosText(facts.max_error_ms * 1e3)),
                   "times in logs of several nodes cannot be compared", todo});
  } else {
    findings.Ok("synchronised", absl::StrCat("the clock is synchronised, within ",
                                             MicrosText(facts.max_error_ms * 1e3)));
  }
  if (facts.source == "hpet" || facts.source == "acpi_pm" || facts.source == "jiffies") {
    findings.Warn("clock_source",
                  {absl::StrCat("the kernel's clock source is ", facts.source),
                   "each look at the clock is a slow system call, and profilers look often",
                   "`echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource`, "
                   "unless the kernel log says why the TSC was given up"});
  } else if (!facts.source.empty()) {
    findings.Ok("clock_source", absl::StrCat("clock source ", facts.source));
  }
  return findings.Take();
}

}  // namespace fsdprun::doctor
