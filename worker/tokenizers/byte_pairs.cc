#include "worker/tokenizers/byte_pairs.h"

#include <algorithm>

namespace fsdprun::worker {
namespace {

constexpr size_t kCachedWords = size_t{1} << 15;
constexpr size_t kLongestCachedWord = 64;

/// Orders a heap so that the first merge is at its top.
struct IsLater {
  template <class Candidate>
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::pair(a.rank, a.position) > std::pair(b.rank, b.position);
  }
};

uint64_t PairKey(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

BytePairs::Scratch::Scratch() : words_(kCachedWords) {}

BytePairs::BytePairs(const BytePairVocabulary& vocabulary) {
  byte_tokens_.fill(kNoToken);
  for (const auto& [bytes, id] : vocabulary.tokens) {
    if (bytes.size() == 1) {
      byte_tokens_[static_cast<unsigned char>(bytes[0])] = id;
    }
    if (vocabulary.ignores_merges) {
      whole_words_.emplace(bytes, id);
    }
  }
  rules_.reserve(vocabulary.merges.size());
  uint32_t rank = 0;
  for (const BytePairVocabulary::Merge& merge : vocabulary.merges) {
    rules_.emplace(PairKey(merge.left, merge.right), Rule{rank++, merge.merged});
  }
}

size_t BytePairs::Encode(std::string_view word, Scratch& scratch,
                         std::vector<uint32_t>& ids) const {
  const bool is_cached = word.size() <= kLongestCachedWord;
  Scratch::Word& cached = scratch.words_[std::hash<std::string_view>()(word) & (kCachedWords - 1)];
  if (is_cached && cached.bytes == word) {
    ids.insert(ids.end(), cached.ids.begin(), cached.ids.end());
    return word.size();
  }
  const size_t begin = ids.size();
  const auto whole = whole_words_.find(word);
  if (whole != whole_words_.end()) {
    ids.push_back(whole->second);
  } else {
    for (size_t i = 0; i < word.size(); ++i) {
      if (byte_tokens_[static_cast<unsigned char>(word[i])] == kNoToken) {
        return i;
      }
    }
    Merge(word, scratch);
    for (int32_t at = 0; at >= 0; at = scratch.symbols_[static_cast<size_t>(at)].behind) {
      ids.push_back(scratch.symbols_[static_cast<size_t>(at)].id);
    }
  }
  if (is_cached) {
    cached.bytes = word;
    cached.ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
  }
  return word.size();
}

/// Puts the merge of a symbol with the one behind it on the heap, if there is one.
void BytePairs::Offer(int32_t left, Scratch& scratch) const {
  const Scratch::Symbol& symbol = scratch.symbols_[static_cast<size_t>(left)];
  if (symbol.behind < 0) {
    return;
  }
  const uint32_t right = scratch.symbols_[static_cast<size_t>(symbol.behind)].id;
  if (const auto rule = rules_.find(PairKey(symbol.id, right)); rule != rules_.end()) {
    scratch.heap_.push_back({rule->second.rank, left, rule->second.merged});
    std::push_heap(scratch.heap_.begin(), scratch.heap_.end(), IsLater());
  }
}

/// The symbols of `word`, as a list from the first on, after all merges, in the order of their
/// ranks and from left to right.
void BytePairs::Merge(std::string_view word, Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols_;
  symbols.clear();
  scratch.heap_.clear();
  const auto count = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<size_t>(i)]);
    symbols.push_back({byte_tokens_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i < count; ++i) {
    Offer(i, scratch);
  }
  while (!scratch.heap_.empty()) {
    std::pop_heap(scratch.heap_.begin(), scratch.heap_.end(), IsLater());
    const Scratch::Candidate top = scratch.heap_.back();
    scratch.heap_.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.id == kNoToken || left.behind < 0) {
      continue;
    }
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.behind)];
    // Since it was put there, one of both may have become another. As in tokenizers, what counts is
    // what they would become.
    const auto rule = rules_.find(PairKey(left.id, right.id));
    if (rule == rules_.end() || rule->second.merged != top.merged) {
      continue;
    }
    left.id = top.merged;
    left.behind = right.behind;
    right.id = kNoToken;
    if (left.behind >= 0) {
      symbols[static_cast<size_t>(left.behind)].before = top.position;
    }
    if (left.before >= 0) {
      Offer(left.before, scratch);
    }
    Offer(top.position, scratch);
  }
}

}  // namespace fsdprun::worker
