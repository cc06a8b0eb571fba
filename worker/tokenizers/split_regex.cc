#include "worker/tokenizers/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "formats/json/strict_json.h"
#include "worker/tokenizers/split_pattern.h"

namespace fsdprun::worker {
namespace {

// A match of a tokenizer's pattern looks at each character of a run a few times. A pattern that
// tries combinations reaches the limit soon.
constexpr size_t kLeastSteps = 1'000'000;
constexpr size_t kStepsPerByte = 16;
constexpr size_t kJitStackBytes = size_t{64} << 20;
constexpr uint32_t kHeapKibibytes = 256 * 1024;

std::string PcreMessage(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

pcre2_code* CompileOrThrow(const std::string& translated, const std::string& pattern,
                           const std::string& source) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) {
    throw std::bad_alloc();
  }
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE, &error,
                    &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    throw ConfigError(source + ": the pattern " + pattern +
                      " is no regular expression: " + PcreMessage(error));
  }
  return code;
}

}  // namespace

RegexScratch::RegexScratch()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)) {
  // Without a stack, as where nothing is compiled to machine code, that of the thread is used.
  if (data_ == nullptr || context_ == nullptr) {
    throw std::bad_alloc();
  }
  pcre2_jit_stack_assign(context_, nullptr, stack_);
  pcre2_set_heap_limit(context_, kHeapKibibytes);
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(stack_);
}

void RegexScratch::SetTextBytes(size_t text_bytes) {
  const size_t steps = std::max(kLeastSteps, kStepsPerByte * text_bytes);
  pcre2_set_match_limit(context_, static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX - 1)));
}

SplitRegex::SplitRegex(const std::string& pattern, const std::string& source)
    : pattern_(pattern), source_(source) {
  code_ = CompileOrThrow(TranslateSplitPattern(pattern, source), pattern, source);
  uint32_t may_be_empty = 0;
  pcre2_pattern_info(code_, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty != 0) {
    pcre2_code_free(code_);
    throw ConfigError(source + ": the pattern " + pattern +
                      " also matches no text at all, which is not supported");
  }
  // Where that fails, it is interpreted.
  pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
}

SplitRegex::~SplitRegex() { pcre2_code_free(code_); }

SplitRegex::SplitRegex(SplitRegex&& other) noexcept
    : pattern_(std::move(other.pattern_)),
      source_(std::move(other.source_)),
      code_(std::exchange(other.code_, nullptr)) {}

bool SplitRegex::Find(std::string_view text, size_t from, RegexScratch& scratch,
                      Match& match) const {
  const auto run = [&](uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, scratch.data_, scratch.context_);
  };
  int found = run(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = run(PCRE2_NO_JIT);
  }
  if (found == PCRE2_ERROR_NOMATCH) {
    return false;
  }
  if (found < 0) {
    throw ConfigError("cannot divide the text from its byte " + std::to_string(from) +
                      " by the pattern " + pattern_ + " of " + source_ + ": " + PcreMessage(found));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data_);
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace fsdprun::worker
