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

/// Shows how far it is: on a terminal in one line that is written over five times a second,
/// elsewhere, as in a log, in a line a minute. Thread: one.
class TokenizeProgress {
 public:
  /// `out` outlives it. `log_every`: of what is no terminal.
  explicit TokenizeProgress(std::FILE* out,
                            std::chrono::milliseconds log_every = std::chrono::minutes(1));
  /// Clears the line.
  ~TokenizeProgress();
  TokenizeProgress(const TokenizeProgress&) = delete;
  TokenizeProgress& operator=(const TokenizeProgress&) = delete;

  /// Sets `state.seconds`. Shows it if it is time.
  void Update(TokenizeState& state);

 private:
  std::FILE* out_;
  bool is_terminal_;
  std::chrono::milliseconds show_every_;
  bool is_shown_ = false;  // on the terminal
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace fsdprun::worker
