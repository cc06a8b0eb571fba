#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace fsdprun {

// How the commands print JSON; see docs/CONTROL.md.

inline constexpr int kJsonVersion = 1;

inline double JsonSeconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

/// In one line, without its end. What is not UTF-8 is replaced.
inline std::string JsonText(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace fsdprun
