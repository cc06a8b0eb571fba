#include "worker/metrics/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

namespace fsdprun::worker {
namespace {

constexpr size_t kLabelWidth = 10;

/// Dots in rows from the top, `across` by `down` of which are one character.
class Canvas {
 public:
  Canvas(size_t width, size_t height, bool is_unicode)
      : across_(is_unicode ? 2 : 1),
        down_(is_unicode ? 4 : 1),
        columns_(width * across_),
        rows_(height * down_),
        dots_(columns_ * rows_, false) {}

  size_t columns() const { return columns_; }
  size_t rows() const { return rows_; }

  /// A vertical stroke.
  void Draw(size_t column, size_t from_row, size_t to_row) {
    const auto [top, bottom] = std::minmax(from_row, to_row);
    for (size_t row = top; row <= bottom; ++row) {
      dots_[row * columns_ + column] = true;
    }
  }

  /// A line of characters, without spaces at its end.
  std::string Line(size_t line) const {
    std::string text;
    size_t inked = 0;
    for (size_t character = 0; character < columns_ / across_; ++character) {
      const int dots = DotsOf(line, character);
      text += dots == 0 ? " " : across_ == 1 ? "*" : Braille(dots);
      inked = dots == 0 ? inked : text.size();
    }
    return text.substr(0, inked);
  }

 private:
  /// A bit for each, as Unicode numbers the dots of a braille pattern.
  int DotsOf(size_t line, size_t character) const {
    static constexpr int kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int bits = 0;
    for (size_t down = 0; down < down_; ++down) {
      for (size_t across = 0; across < across_; ++across) {
        const size_t row = line * down_ + down;
        const size_t column = character * across_ + across;
        bits |= dots_[row * columns_ + column] ? kBits[down][across] : 0;
      }
    }
    return bits;
  }

  /// U+2800 + dots in UTF-8.
  static std::string Braille(int dots) {
    return {static_cast<char>(0xE2), static_cast<char>(0xA0 | dots >> 6),
            static_cast<char>(0x80 | (dots & 0x3F))};
  }

  size_t across_;
  size_t down_;
  size_t columns_;
  size_t rows_;
  std::vector<bool> dots_;
};

/// The mean of the finite values that fall into a column.
std::optional<double> ValueAt(const std::vector<double>& values, size_t column, size_t columns) {
  const size_t begin = column * values.size() / columns;
  const size_t end = std::max(begin + 1, (column + 1) * values.size() / columns);
  double sum = 0;
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) {
    sum += std::isfinite(values[i]) ? values[i] : 0;
    count += std::isfinite(values[i]) ? 1 : 0;
  }
  return count == 0 ? std::nullopt : std::optional(sum / static_cast<double>(count));
}

std::string LabelOf(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%*.4g", static_cast<int>(kLabelWidth) - 1, value);
  return text;
}

void DrawCurve(const std::vector<double>& values, double low, double high, Canvas& canvas) {
  std::optional<size_t> row_before;
  for (size_t column = 0; column < canvas.columns(); ++column) {
    const std::optional<double> value = ValueAt(values, column, canvas.columns());
    if (!value) {
      row_before.reset();
      continue;
    }
    const double part = high > low ? (high - *value) / (high - low) : 0.5;
    const auto row =
        static_cast<size_t>(std::lround(part * static_cast<double>(canvas.rows() - 1)));
    canvas.Draw(column, row_before.value_or(row), row);
    row_before = row;
  }
}

std::string AxisBelow(const PlotFrame& frame, size_t width) {
  std::string line = std::string(kLabelWidth, ' ') + (frame.is_unicode ? "└" : "+");
  for (size_t i = 0; i < width; ++i) {
    line += frame.is_unicode ? "─" : "-";
  }
  const std::string first = "step " + std::to_string(frame.first);
  const std::string last = std::to_string(frame.last);
  const size_t taken = first.size() + last.size();
  const std::string between(taken < width ? width - taken : 1, ' ');
  return line + "\n" + std::string(kLabelWidth + 1, ' ') + first + between + last + "\n";
}

}  // namespace

std::string PlotCurve(const std::vector<double>& values, const PlotFrame& frame) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  size_t finite = 0;
  for (const double value : values) {
    if (std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
      ++finite;
    }
  }
  if (finite < 2) {
    return "";
  }
  const size_t width = frame.width - kLabelWidth - 1;
  Canvas canvas(width, frame.height, frame.is_unicode);
  DrawCurve(values, low, high, canvas);
  std::string text;
  for (size_t line = 0; line < frame.height; ++line) {
    const bool is_labelled = line == 0 || line + 1 == frame.height;
    text += is_labelled ? LabelOf(line == 0 ? high : low) + " " : std::string(kLabelWidth, ' ');
    text += (frame.is_unicode ? "┤" : "|") + canvas.Line(line) + "\n";
  }
  return text + AxisBelow(frame, width);
}

}  // namespace fsdprun::worker
