#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;
struct pcre2_real_jit_stack_8;

namespace fsdprun::worker {

/// What one thread needs to match. Thread: one.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

  /// Limits the work of each match in a text of this size.
  void SetTextBytes(size_t text_bytes);

 private:
  friend class SplitRegex;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

/// A regular expression that divides text. Thread: any.
class SplitRegex {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// `pattern`: as a tokenizer.json has it (Note [Dialects of regular expressions]). `source` names
  /// file and field. Errors: ConfigError naming them, also for one that matches nothing at all.
  SplitRegex(const std::string& pattern, const std::string& source);
  ~SplitRegex();
  SplitRegex(SplitRegex&& other) noexcept;
  SplitRegex& operator=(SplitRegex&&) = delete;
  SplitRegex(const SplitRegex&) = delete;
  SplitRegex& operator=(const SplitRegex&) = delete;

  /// The first match of at least one byte at or behind `from`; false without one. Precondition:
  /// `text` is UTF-8, `from` the first byte of a character. Errors: ConfigError naming pattern and
  /// byte where a match takes too many steps or too much memory.
  bool Find(std::string_view text, size_t from, RegexScratch& scratch, Match& match) const;

 private:
  std::string pattern_;
  std::string source_;
  pcre2_real_code_8* code_ = nullptr;
};

}  // namespace fsdprun::worker
