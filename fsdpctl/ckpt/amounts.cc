#include "fsdpctl/ckpt/amounts.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>

namespace fsdprun::ckpt {
namespace {

struct Unit {
  std::string_view name;
  int64_t bytes;
};
constexpr Unit kUnits[] = {{"", 1},
                           {"B", 1},
                           {"KB", 1000},
                           {"MB", 1'000'000},
                           {"GB", 1'000'000'000},
                           {"TB", 1'000'000'000'000},
                           {"KiB", int64_t{1} << 10},
                           {"MiB", int64_t{1} << 20},
                           {"GiB", int64_t{1} << 30},
                           {"TiB", int64_t{1} << 40}};

std::string Scaled(int64_t amount, int64_t unit, const char* name) {
  return std::to_string(amount / unit) + " " + name;
}

}  // namespace

std::string BytesText(int64_t bytes) {
  constexpr const char* kNames[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1000) {
    return std::to_string(bytes) + " B";
  }
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kNames)) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", value, kNames[unit]);
  return text;
}

std::string AgeText(int64_t seconds) {
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 3600;
  constexpr int64_t kDay = 86400;
  if (seconds < 2 * kMinute) {
    return Scaled(std::max<int64_t>(seconds, 0), 1, "s");
  }
  if (seconds < 2 * kHour) {
    return Scaled(seconds, kMinute, "min");
  }
  return seconds < 2 * kDay ? Scaled(seconds, kHour, "h") : Scaled(seconds, kDay, "days");
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::optional<int64_t> ParseBytes(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number <= 0) {
    return std::nullopt;
  }
  const std::string_view name = text.substr(static_cast<size_t>(end - text.data()));
  for (const Unit& unit : kUnits) {
    int64_t bytes = 0;
    if (unit.name == name && !__builtin_mul_overflow(number, unit.bytes, &bytes)) {
      return bytes;
    }
  }
  return std::nullopt;
}

std::string TableText(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) {
        text.append(widths[i] - row[i].size() + 2, ' ');
      }
    }
    text += '\n';
  }
  return text;
}

std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }, '?');
  return text;
}

}  // namespace fsdprun::ckpt
