#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdprun::doctor {

inline constexpr uint64_t kKib = 1024;
inline constexpr uint64_t kMib = 1024 * kKib;
inline constexpr uint64_t kGib = 1024 * kMib;

/// `512 KiB`, `64 MiB`, `23.5 GiB`.
std::string BytesText(uint64_t bytes);
/// `unlimited` if unset.
std::string CountText(std::optional<uint64_t> count);
/// As CountText(), of bytes.
std::string LimitText(std::optional<uint64_t> bytes);
/// `350 us`, `12.5 ms`, `2.3 s`.
std::string MicrosText(double microseconds);
/// `940 Mbit/s`, `23.4 Gbit/s`.
std::string RateText(double bits_per_second);

}  // namespace fsdprun::doctor
