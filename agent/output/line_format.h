#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/output/output_options.h"

namespace fsdprun {

/// Makes whole lines of one worker's stream. Plain lines are the worker's bytes; a carriage return
/// ends a line too, so that its progress bars keep updating. Prefixed lines are text, as with
/// torchrun: bytes that are no UTF-8 become U+FFFD, and a carriage return is a line end like any
/// other, except that an empty piece before one is left out. Memory: one line, up to kMaxLineBytes;
/// a longer one is passed on in pieces. Pure.
class LineFormat {
 public:
  static constexpr size_t kMaxLineBytes = 4u << 20;

  static LineFormat Plain() { return LineFormat(false, "", {}); }
  /// `texts`: only lines that contain one of them; empty: all.
  static LineFormat Prefixed(std::string prefix, std::vector<std::string> texts = {}) {
    return LineFormat(true, std::move(prefix), std::move(texts));
  }

  /// The lines that end in `bytes`; maybe none.
  std::string Take(absl::string_view bytes);
  /// The last line, which has no end; empty if there is none. A prefixed one gets an end.
  std::string TakeRest();
  /// Of it, so many bytes were taken.
  size_t held_bytes() const { return partial_.size(); }

 private:
  enum class LastEnd { kNone, kReturn, kReturnOfNothing };

  LineFormat(bool is_prefixed, std::string prefix, std::vector<std::string> texts)
      : is_prefixed_(is_prefixed), prefix_(std::move(prefix)), texts_(std::move(texts)) {}

  void TakePlain(absl::string_view bytes, std::string* lines);
  void TakePrefixed(absl::string_view bytes, std::string* lines);
  void EndLine(char end, std::string* lines);
  void AppendLine(absl::string_view text, std::string* lines) const;

  bool is_prefixed_;
  std::string prefix_;
  std::vector<std::string> texts_;
  std::string partial_;
  /// What came immediately before, if it was a carriage return.
  LastEnd last_end_ = LastEnd::kNone;
};

/// What the lines of a tee'd stream begin with. Pure.
std::string LinePrefix(const OutputOptions& options, const std::string& role, int rank,
                       int local_rank);

/// `bytes` with U+FFFD for each part that is no UTF-8, as Python's errors="replace". Pure.
std::string ReplaceInvalidUtf8(absl::string_view bytes);

}  // namespace fsdprun
