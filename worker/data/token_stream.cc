#include "worker/data/token_stream.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <utility>

#include "formats/tokens/token_decode.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kPieceBytes = 32 * 1024;

std::vector<TokenPart> TextParts(const std::vector<std::string>& paths) {
  std::vector<TokenPart> parts;
  for (const std::string& path : paths) {
    auto file = std::make_shared<const DataFile>(path);
    const int64_t size = file->size();
    parts.push_back({std::move(file), TokenDtype::kUint8, 0, size});
  }
  return parts;
}

/// `tokens`: from token `at` of the part.
void CheckIds(const TokenPart& part, int64_t at, int64_t count, const int64_t* tokens,
              int64_t limit) {
  // As unsigned numbers, negative ones are the largest.
  uint64_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<uint64_t>(tokens[i]));
  }
  if (largest < static_cast<uint64_t>(limit)) {
    return;
  }
  const int64_t* bad = std::find_if(tokens, tokens + count,
                                    [limit](int64_t token) { return token < 0 || token >= limit; });
  const int64_t index = at + (bad - tokens);
  throw TokenIdError(
      "data file " + part.file->path() + ": token " + std::to_string(index) + ", " +
      std::string(TokenDtypeName(part.dtype)) + " at offset " +
      std::to_string(part.offset + index * TokenBytes(part.dtype)) + ", is " +
      std::to_string(*bad) + ": expected an id below the model's vocab_size, " +
      std::to_string(limit) +
      "; train on tokens of the model's tokenizer, or correct data.dtype if it was given");
}

}  // namespace

TokenStream::TokenStream(const std::vector<std::string>& paths)
    : TokenStream(TextParts(paths), TokenFacts{}) {}

TokenStream::TokenStream(const std::vector<TokenPart>& parts, TokenFacts facts)
    : facts_(std::move(facts)) {
  for (const TokenPart& part : parts) {
    if (part.tokens > std::numeric_limits<int64_t>::max() - size_) {
      throw ConfigError("data file " + part.file->path() +
                        ": with the files before it, more than 2^63 tokens");
    }
    parts_.push_back({part, size_});
    size_ += part.tokens;
  }
}

void TokenStream::Read(const TokenPart& part, int64_t at, int64_t count, int64_t* out) const {
  std::array<uint8_t, kPieceBytes> bytes;
  const int64_t token_bytes = TokenBytes(part.dtype);
  const int64_t most = kPieceBytes / token_bytes;
  for (int64_t done = 0; done < count; done += most) {
    const int64_t piece = std::min(most, count - done);
    part.file->read(part.offset + (at + done) * token_bytes, bytes.data(), piece * token_bytes);
    DecodeTokens(part.dtype, bytes.data(), piece, out + done);
  }
  if (facts_.id_limit > 0) {
    CheckIds(part, at, count, out, facts_.id_limit);
  }
}

void TokenStream::CopyTokens(int64_t begin, int64_t count, int64_t* out) const {
  if (begin < 0 || count < 0 || begin > size_ - count) {
    throw std::out_of_range("tokens [" + std::to_string(begin) + ", +" + std::to_string(count) +
                            ") of a stream of " + std::to_string(size_));
  }
  if (count == 0) {
    return;
  }
  auto part =
      std::upper_bound(parts_.begin(), parts_.end(), begin,
                       [](int64_t position, const Part& other) { return position < other.begin; });
  for (--part; count > 0; ++part) {
    const int64_t at = begin - part->begin;
    const int64_t length = std::max<int64_t>(0, std::min(count, part->tokens.tokens - at));
    Read(part->tokens, at, length, out);
    out += length;
    begin += length;
    count -= length;
  }
}

std::vector<int64_t> TokenStream::FileEnds() const {
  std::vector<int64_t> ends;
  for (const Part& part : parts_) {
    if (part.tokens.tokens > 0) {
      ends.push_back(part.begin + part.tokens.tokens);
    }
  }
  return ends;
}

}  // namespace fsdprun::worker
