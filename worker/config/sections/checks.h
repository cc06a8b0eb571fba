#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

// Checks of ConfigKey::is_valid that several sections share. They see values of the key's kind.

/// Far above any use; keeps sums and products of counts inside int64.
inline constexpr int64_t kMaxCount = int64_t{1} << 40;

template <int64_t kLow>
bool IsCount(const Json& value) {
  // A number beyond int64 becomes negative here.
  return value.get<int64_t>() >= kLow && value.get<int64_t>() <= kMaxCount;
}

inline bool IsSeed(const Json& value) { return value.get<int64_t>() >= 0; }

/// At most what a float32 can hold, because the kernels use float32.
inline bool IsNotNegative(const Json& value) {
  return value.get<double>() >= 0 && value.get<double>() <= std::numeric_limits<float>::max();
}

inline bool IsPositive(const Json& value) { return value.get<double>() > 0; }

inline bool IsFraction(const Json& value) {
  return value.get<double>() >= 0 && value.get<double>() <= 1;
}

/// Of a string or a list.
inline bool IsNotEmpty(const Json& value) { return !value.empty() && value != ""; }

/// Of a string.
inline bool IsOneOf(const Json& value, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), value.get_ref<const std::string&>()) != words.end();
}

}  // namespace fsdprun::worker
