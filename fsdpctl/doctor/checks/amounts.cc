#include "fsdpctl/doctor/checks/amounts.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fsdprun::doctor {
namespace {

/// With one digit after the point where that says something.
std::string Scaled(double value, const char* unit) {
  const bool is_round = value >= 100 || std::abs(value - std::round(value)) < 0.05;
  return is_round ? absl::StrFormat("%.0f %s", value, unit)
                  : absl::StrFormat("%.1f %s", value, unit);
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= kGib) {
    return Scaled(value / kGib, "GiB");
  }
  if (bytes >= kMib) {
    return Scaled(value / kMib, "MiB");
  }
  return bytes >= kKib ? Scaled(value / kKib, "KiB") : absl::StrCat(bytes, " bytes");
}

std::string CountText(std::optional<uint64_t> count) {
  return count.has_value() ? absl::StrCat(*count) : "unlimited";
}

std::string LimitText(std::optional<uint64_t> bytes) {
  return bytes.has_value() ? BytesText(*bytes) : "unlimited";
}

std::string MicrosText(double microseconds) {
  if (microseconds >= 1e6) {
    return Scaled(microseconds / 1e6, "s");
  }
  return microseconds >= 1e3 ? Scaled(microseconds / 1e3, "ms") : Scaled(microseconds, "us");
}

std::string RateText(double bits_per_second) {
  if (bits_per_second >= 1e9) {
    return Scaled(bits_per_second / 1e9, "Gbit/s");
  }
  return bits_per_second >= 1e6 ? Scaled(bits_per_second / 1e6, "Mbit/s")
                                : Scaled(bits_per_second / 1e3, "kbit/s");
}

}  // namespace fsdprun::doctor
