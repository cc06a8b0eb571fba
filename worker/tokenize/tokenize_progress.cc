#include "worker/tokenize/tokenize_progress.h"

#include <unistd.h>

#include <algorithm>

namespace fsdprun::worker {
namespace {

constexpr auto kShowEvery = std::chrono::milliseconds(200);

}  // namespace

std::string WithCommas(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string FormatTokenizeState(const TokenizeState& state) {
  std::string text;
  if (state.total_bytes > 0) {
    // What a file has grown by since is not counted.
    const double part = static_cast<double>(std::min(state.bytes_read, state.total_bytes)) /
                        static_cast<double>(state.total_bytes);
    text = std::to_string(static_cast<int64_t>(100 * part)) + " %, ";
  }
  text += WithCommas(state.tokens) + " tokens";
  if (state.seconds > 0) {
    text += ", " +
            WithCommas(static_cast<int64_t>(static_cast<double>(state.tokens) / state.seconds)) +
            " tokens/s";
  }
  return text;
}

TokenizeProgress::TokenizeProgress(std::FILE* out, std::chrono::milliseconds log_every)
    : out_(out),
      is_terminal_(isatty(fileno(out)) == 1),
      show_every_(is_terminal_ ? kShowEvery : log_every),
      begin_(std::chrono::steady_clock::now()),
      next_(begin_ + show_every_) {}

TokenizeProgress::~TokenizeProgress() {
  if (is_shown_) {
    std::fputs("\r\x1b[K", out_);
    std::fflush(out_);
  }
}

void TokenizeProgress::Update(TokenizeState& state) {
  const auto now = std::chrono::steady_clock::now();
  state.seconds = std::chrono::duration<double>(now - begin_).count();
  if (now < next_) {
    return;
  }
  const std::string text = FormatTokenizeState(state);
  if (is_terminal_) {
    std::fprintf(out_, "\r\x1b[K%s", text.c_str());
    is_shown_ = true;
  } else {
    std::fprintf(out_, "fsdp-train: %s\n", text.c_str());
  }
  std::fflush(out_);
  next_ = now + show_every_;
}

}  // namespace fsdprun::worker
