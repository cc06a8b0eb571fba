#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "worker/tokenizers/split_regex.h"

namespace fsdprun::worker {

/// What becomes of the matches of a pattern that divides a text. A part between two matches is what
/// a match is if the rule is inverted, and the other way round.
enum class MatchBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// One step of the way from text to words.
struct WordRule {
  /// Puts a space before each part that does not begin with one.
  bool adds_prefix_space = false;
  /// Without a pattern the parts stay whole.
  std::optional<SplitRegex> pattern;
  MatchBehavior behavior = MatchBehavior::kIsolated;
  bool is_inverted = false;
};

/// Joins the parts into which a pattern divides a text, in their order, and hands on what becomes
/// of them. Each part begins where the one before ends.
template <class Emit>
class PartJoiner {
 public:
  PartJoiner(MatchBehavior behavior, Emit& emit) : behavior_(behavior), emit_(emit) {}

  void Add(size_t begin, size_t end, bool is_match) {
    if (behavior_ == MatchBehavior::kIsolated ||
        (behavior_ == MatchBehavior::kRemoved && !is_match)) {
      emit_(begin, end);
    } else if (behavior_ != MatchBehavior::kRemoved) {
      if (has_held_ && !Joins(is_match)) {
        emit_(held_.begin, held_.end);
        has_held_ = false;
      }
      held_ = {has_held_ ? held_.begin : begin, end};
      has_held_ = true;
      is_held_match_ = is_match;
    }
  }
  void End() {
    if (has_held_) {
      emit_(held_.begin, held_.end);
    }
  }

 private:
  /// Whether the part that comes belongs to those that are held, of which the last is a match, or
  /// not.
  bool Joins(bool is_match) const {
    switch (behavior_) {
      case MatchBehavior::kContiguous:
        return is_match == is_held_match_;
      case MatchBehavior::kMergedWithPrevious:
        return is_match && !is_held_match_;
      default:
        return !is_match && is_held_match_;
    }
  }

  MatchBehavior behavior_;
  Emit& emit_;
  SplitRegex::Match held_;
  bool has_held_ = false;
  bool is_held_match_ = false;
};

/// Calls `emit(begin, end)` for the parts of `text`, which is not empty, that a rule with a pattern
/// makes, in their order. Errors: as SplitRegex::Find's.
template <class Emit>
void DivideByRule(const WordRule& rule, std::string_view text, RegexScratch& scratch, Emit&& emit) {
  PartJoiner joiner(rule.behavior, emit);
  size_t done = 0;
  SplitRegex::Match match;
  while (done < text.size() && rule.pattern->Find(text, done, scratch, match)) {
    if (done < match.begin) {
      joiner.Add(done, match.begin, rule.is_inverted);
    }
    joiner.Add(match.begin, match.end, !rule.is_inverted);
    done = match.end;
  }
  if (done < text.size()) {
    joiner.Add(done, text.size(), rule.is_inverted);
  }
  joiner.End();
}

}  // namespace fsdprun::worker
