#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace fsdprun::worker {

/// How far a tokenization is.
struct TokenizeState {
  /// Of the input, as it is on disk; 0 if nobody knows.
  int64_t total_bytes = 0;
  int64_t bytes_read = 0;
  int64_t tokens = 0;
  double seconds = 0;
};

/// "12,345,678 tokens", with commas between thousands. Pure.
std::string WithCommas(int64_t number);

/// "42 %, 12,345,678 tokens, 3,456,789 tokens/s", without the first if nobody knows. Pure.
std::string FormatTokenizeState(const TokenizeState& state);

/// Shows on a terminal, in one line that is written over, how far it is; elsewhere nothing. Thread:
/// one.
class TokenizeProgress {
 public:
  /// `out` outlives it.
  explicit TokenizeProgress(std::FILE* out);
  /// Clears the line.
  ~TokenizeProgress();
  TokenizeProgress(const TokenizeProgress&) = delete;
  TokenizeProgress& operator=(const TokenizeProgress&) = delete;

  /// Sets `state.seconds`. Shows at most five times a second.
  void Update(TokenizeState& state);

 private:
  std::FILE* out_;
  bool is_terminal_;
  bool is_shown_ = false;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace fsdprun::worker
