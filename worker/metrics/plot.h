#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdprun::worker {

struct PlotFrame {
  /// What the first and the last value are of, written below.
  int64_t first = 0;
  int64_t last = 0;
  /// In characters, with the axes; at least 30 and 3.
  size_t width = 72;
  size_t height = 10;
  /// Dots of braille and lines, instead of ASCII.
  bool is_unicode = false;
};

/// `values` from left to right as a curve in text, in lines of at most `frame.width` characters.
/// Values that are not finite are gaps. Empty if fewer than two are finite. Pure.
std::string PlotCurve(const std::vector<double>& values, const PlotFrame& frame);

}  // namespace fsdprun::worker
