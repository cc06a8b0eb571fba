#include <string_view>
#include <utility>

#include "worker/tokenizers/split_pattern.h"
#include "worker/tokenizers/tokenizer_json_parts.h"

namespace fsdprun::worker {
namespace {

// GPT-2's, which is part of the library.
constexpr char kByteLevelPattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Rust's char::is_numeric, which is of Unicode 17 (Note [Unicode versions]).
constexpr char kNumeric[] = R"([\p{N}\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6}])";
constexpr int kMaxRules = 16;

MatchBehavior ReadBehavior(const JsonField& field) {
  const std::pair<std::string_view, MatchBehavior> behaviors[] = {
      {"Isolated", MatchBehavior::kIsolated},
      {"Removed", MatchBehavior::kRemoved},
      {"MergedWithPrevious", MatchBehavior::kMergedWithPrevious},
      {"MergedWithNext", MatchBehavior::kMergedWithNext},
      {"Contiguous", MatchBehavior::kContiguous}};
  const std::string name = field.Text();
  for (const auto& [known, behavior] : behaviors) {
    if (known == name) {
      return behavior;
    }
  }
  field.Refuse(
      "\"Isolated\", \"Removed\", \"MergedWithPrevious\", \"MergedWithNext\" or "
      "\"Contiguous\"");
}

WordRule ReadSplit(const JsonField& field) {
  field.CheckKeys({"type", "pattern", "behavior", "invert"});
  const JsonField pattern = field.At("pattern");
  pattern.CheckKeys({"Regex", "String"});
  if (pattern.value().size() != 1) {
    pattern.Refuse("either Regex or String");
  }
  WordRule rule;
  const bool is_regex = pattern.Has("Regex");
  const JsonField text = pattern.At(is_regex ? "Regex" : "String");
  rule.pattern.emplace(is_regex ? text.Text() : QuoteForPattern(text.Text()), text.name());
  rule.behavior = ReadBehavior(field.At("behavior"));
  rule.is_inverted = field.At("invert").Truth();
  return rule;
}

WordRule ReadByteLevel(const JsonField& field) {
  field.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  WordRule rule;
  rule.adds_prefix_space = field.At("add_prefix_space").Truth();
  if (!field.Has("use_regex") || field.At("use_regex").Truth()) {
    rule.pattern.emplace(kByteLevelPattern, field.name());
  }
  return rule;
}

WordRule ReadDigits(const JsonField& field) {
  field.CheckKeys({"type", "individual_digits"});
  WordRule rule;
  const bool is_each_alone = field.At("individual_digits").Truth();
  rule.pattern.emplace(std::string(kNumeric) + (is_each_alone ? "" : "+"), field.name());
  return rule;
}

/// `depth`: 1 within a sequence.
bool ReadSteps(const JsonField& field, int depth, std::vector<WordRule>& rules) {
  const std::string type = field.At("type").Text();
  if (type == "Sequence" && depth == 0) {
    field.CheckKeys({"type", "pretokenizers"});
    const JsonField list = field.At("pretokenizers");
    bool is_of_bytes = false;
    for (size_t i = 0; i < list.size(); ++i) {
      if (is_of_bytes) {
        list.At(i).Refuse("nothing behind \"ByteLevel\"");
      }
      is_of_bytes = ReadSteps(list.At(i), depth + 1, rules);
    }
    return is_of_bytes;
  }
  if (rules.size() == kMaxRules) {
    field.Refuse("at most " + std::to_string(kMaxRules) + " steps");
  }
  if (type == "Split") {
    rules.push_back(ReadSplit(field));
  } else if (type == "Digits") {
    rules.push_back(ReadDigits(field));
  } else if (type == "ByteLevel") {
    rules.push_back(ReadByteLevel(field));
    return true;
  } else {
    RefuseType(field, depth == 0 ? "\"ByteLevel\", \"Split\", \"Digits\" or \"Sequence\""
                                 : "\"ByteLevel\", \"Split\" or \"Digits\"");
  }
  return false;
}

}  // namespace

bool ReadNormalizer(const JsonField& field) {
  if (field.is_null()) {
    return false;
  }
  if (field.At("type").Text() == "Sequence") {
    field.CheckKeys({"type", "normalizers"});
    const JsonField list = field.At("normalizers");
    const size_t count = list.size();
    for (size_t i = 0; i < count; ++i) {
      if (list.At(i).At("type").Text() != "NFC") {
        RefuseType(list.At(i), "\"NFC\"");
      }
      list.At(i).CheckKeys({"type"});
    }
    return count > 0;
  }
  if (field.At("type").Text() != "NFC") {
    RefuseType(field, "\"NFC\" or null");
  }
  field.CheckKeys({"type"});
  return true;
}

bool ReadPreTokenizer(const JsonField& field, std::vector<WordRule>& rules) {
  return ReadSteps(field, 0, rules);
}

}  // namespace fsdprun::worker
