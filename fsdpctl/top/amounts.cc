#include "fsdpctl/top/amounts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fsdprun::top {
namespace {

constexpr size_t kNumberColumns = 7;
/// Digits behind the point would tell nothing.
constexpr double kWholeFrom = 1000;

/// With a digit behind the point where there are fewer than three before it.
std::string Scaled(double number, double factor, const char* units) {
  while (number >= 999.5 && units[1] != '\0') {
    number /= factor;
    ++units;
  }
  const std::string unit = *units == ' ' ? "" : std::string(1, *units);
  const bool is_whole = unit.empty() ? number == std::floor(number) : number >= 99.95;
  return absl::StrCat(is_whole || number >= 99.95 ? absl::StrFormat("%.0f", number)
                                                  : absl::StrFormat("%.1f", number),
                      unit);
}

/// With an exponent that has no more letters than it needs.
std::string Exponential(double number, int digits) {
  const std::string text = absl::StrFormat("%.*e", digits - 1, number);
  const size_t e = text.find('e');
  std::string mantissa = text.substr(0, e);
  if (mantissa.find('.') != std::string::npos) {
    mantissa.erase(mantissa.find_last_not_of('0') + 1);
    mantissa.erase(mantissa.find_last_not_of('.') + 1);
  }
  int exponent = 0;
  return absl::SimpleAtoi(text.substr(e + 1), &exponent) ? absl::StrCat(mantissa, "e", exponent)
                                                         : text;
}

}  // namespace

std::string TimeText(int64_t ns) {
  ns = std::max<int64_t>(0, ns);
  const int64_t seconds = ns / 1'000'000'000;
  if (ns < 999'500'000) {
    return absl::StrFormat("%.0fms", static_cast<double>(ns) / 1e6);
  }
  if (seconds < 60) {
    const int64_t tenths = ns / 100'000'000;
    return absl::StrFormat("%d.%ds", tenths / 10, tenths % 10);
  }
  if (seconds < 3600) {
    return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  }
  if (seconds < 86400) {
    return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
  }
  return absl::StrFormat("%dd%02dh", seconds / 86400, seconds / 3600 % 24);
}

std::string BytesText(int64_t bytes) {
  return Scaled(static_cast<double>(std::max<int64_t>(0, bytes)), 1024, " KMGTP");
}

std::string CountText(double count) { return Scaled(std::max(0.0, count), 1000, " kMGTP"); }

std::string ShareText(int64_t part, int64_t whole) {
  if (whole <= 0) {
    return kUnknown;
  }
  const double share = static_cast<double>(part) / static_cast<double>(whole);
  return absl::StrFormat("%.0f%%", 100 * std::clamp(share, 0.0, 1.0));
}

std::string NumberText(double number) {
  if (!std::isfinite(number)) {
    return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  }
  std::vector<std::string> ways;
  if (std::abs(number) >= kWholeFrom) {
    ways.push_back(absl::StrFormat("%.0f", number));
  }
  for (const int digits : {4, 3}) {
    ways.push_back(absl::StrFormat("%.*g", digits, number));
  }
  for (const int digits : {4, 3, 2, 1}) {
    ways.push_back(Exponential(number, digits));
  }
  const auto has_room = [](const std::string& way) {
    return way.size() <= kNumberColumns && way.find("e+") == std::string::npos &&
           way.find("e-0") == std::string::npos;
  };
  const auto first = std::find_if(ways.begin(), ways.end(), has_room);
  return first == ways.end() ? ways.back() : *first;
}

int64_t AddUp(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

}  // namespace fsdprun::top
