#pragma once

#include <string>
#include <string_view>

namespace fsdprun::worker {

// Note [Dialects of regular expressions]
// The patterns of a tokenizer.json are in the dialect of Oniguruma (Ruby's), and are matched by
// PCRE2 here. Much of what both accept does not mean the same in both: \s, \w, \h, $, a{1}?, a
// class within a class. So a pattern is read by the grammar below, of which the meaning in both is
// known, and written anew; whatever else it has is an error:
//
//   a b | (?: ) ( ) (?= ) (?! ) (?<= ) (?<! ) (?> ) (?i: )   the last around letters without a
//   class ? * + {n} {n,} {n,m} {,m}, lazy with ?, and but for {} possessive with + . \s \S \d \D
//   \p{..} \P{..} [..] [^..]   a class of characters, ranges, \s, \d and \p{..} \t \n \v \f \r \a
//   \e \xHH \x{H..} \uHHHH, and \ before punctuation
//
// Properties: as AppendProperty's.

/// The pattern for PCRE2, with UTF and UCP. It has no captures. `source` names file and field.
/// Errors: ConfigError naming them, the byte of the pattern and what is not supported there. Pure.
std::string TranslateSplitPattern(std::string_view pattern, const std::string& source);

/// A pattern that matches `text` and nothing else. Pure.
std::string QuoteForPattern(std::string_view text);

}  // namespace fsdprun::worker
