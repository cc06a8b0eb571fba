#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdprun::worker {

/// A vocabulary of byte-pair encoding, over bytes.
struct BytePairVocabulary {
  /// Tokens that a word can become, by their bytes. Not every token of a vocabulary is one.
  std::vector<std::pair<std::string, uint32_t>> tokens;
  struct Merge {
    uint32_t left;
    uint32_t right;
    uint32_t merged;
  };
  /// The first is done first. No two have the same left and right.
  std::vector<Merge> merges;
  /// A word that is a token becomes that token, whatever merges say.
  bool ignores_merges = false;
};

/// Byte-pair encoding of words. Thread: any, with a scratch for each.
class BytePairs {
 public:
  static constexpr uint32_t kNoToken = UINT32_MAX;

  /// What one thread keeps: words that it has seen lately, and buffers. Memory: some MiB at most.
  class Scratch {
   public:
    Scratch();

   private:
    friend class BytePairs;
    struct Word {
      std::string bytes;
      std::vector<uint32_t> ids;
    };
    struct Symbol {
      uint32_t id;
      int32_t before;
      int32_t behind;
    };
    struct Candidate {
      uint32_t rank;
      int32_t position;
      uint32_t merged;
    };
    std::vector<Word> words_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

  explicit BytePairs(const BytePairVocabulary& vocabulary);

  /// Appends the ids of a word of at least one and fewer than 2^31 bytes. Returns the first byte of
  /// it of which the vocabulary has no token (nothing is appended then), word.size() if all have
  /// one.
  size_t Encode(std::string_view word, Scratch& scratch, std::vector<uint32_t>& ids) const;

 private:
  struct Rule {
    uint32_t rank;
    uint32_t merged;
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const {
      pair *= 0x9e3779b97f4a7c15;
      return pair ^ (pair >> 32);
    }
  };
  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  void Merge(std::string_view word, Scratch& scratch) const;
  void Offer(int32_t left, Scratch& scratch) const;

  std::array<uint32_t, 256> byte_tokens_;
  std::unordered_map<uint64_t, Rule, PairHash> rules_;
  /// Only if merges are ignored for words that are in it.
  std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>> whole_words_;
};

}  // namespace fsdprun::worker
