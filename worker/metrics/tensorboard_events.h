#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::worker::tensorboard {

// Records of TensorBoard's event files. Source: tensorflow/core/lib/io/record_writer.h for the
// frame, tensorflow/core/util/event.proto and summary.proto for what is in it. All pure. Wall times
// are seconds since 1970.

/// A number to be drawn as a point of the curve `tag`.
struct Scalar {
  std::string_view tag;
  /// Drawn with 24 bits of precision.
  double value = 0;
};

/// One record of the file: length, checksum of the length, `event`, checksum of the event.
std::string Frame(std::string_view event);

/// The first of each file.
std::string VersionEvent(double wall_time);
/// Readers forget what earlier files say of `step` and later ones: they will be done again.
std::string StartEvent(double wall_time, int64_t step);
std::string ScalarsEvent(double wall_time, int64_t step, const std::vector<Scalar>& scalars);
/// Shown on the page "Text"; UTF-8.
std::string MarkdownEvent(double wall_time, std::string_view tag, std::string_view markdown);

/// CRC-32C (Castagnoli), and what the format makes of it, because checksums of data that contain
/// checksums are weak.
uint32_t Crc32c(std::string_view data);
uint32_t MaskedCrc32c(std::string_view data);

}  // namespace fsdprun::worker::tensorboard
