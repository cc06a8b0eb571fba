#pragma once

// Amounts in few columns, for people.

#include <cstdint>
#include <optional>
#include <string>

namespace fsdprun::top {

/// Of what nobody has said.
inline constexpr char kUnknown[] = "-";

/// `312ms`, `4.1s`, `2m05s`, `3h12m`, `4d03h`: at most 6 columns below 100 days.
std::string TimeText(int64_t ns);
/// `512K`, `12.3G`: at most 5 columns.
std::string BytesText(int64_t bytes);
/// `930`, `12.3k`, `4.5M`: at most 5 columns.
std::string CountText(double count);
/// `63%` of the whole; kUnknown of none.
std::string ShareText(int64_t part, int64_t whole);
/// `2.531`, `12346`, `1.23e-4`, `nan`: four significant digits, or as many as 7 columns have room
/// for, which are never exceeded.
std::string NumberText(double number);
/// A sum of amounts that others say, which stays within its type.
int64_t AddUp(int64_t a, int64_t b);

}  // namespace fsdprun::top
