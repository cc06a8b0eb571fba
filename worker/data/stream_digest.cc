#include "worker/data/stream_digest.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "fsdp_runtime/plan/fnv1a.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kBlockTokens = 64 * 1024;
constexpr int64_t kBlocks = 64;

/// The lowest `bytes` of the number, the lowest first.
void AddNumber(int64_t number, int bytes, fsdp::Fnv1a& hash) {
  for (int i = 0; i < bytes; ++i) {
    hash.mix(static_cast<uint8_t>(number >> (8 * i)));
  }
}

}  // namespace

std::string FormatDigest(uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

std::string SampledDigest(const TokenStream& stream, int64_t size) {
  // Of text the bytes, as checkpoints of all versions have it.
  const int token_bytes = stream.facts().is_text ? 1 : 4;
  fsdp::Fnv1a hash;
  AddNumber(size, 8, hash);
  std::vector<int64_t> block(static_cast<size_t>(std::min(kBlockTokens, size)));
  // The last block ends with the last token; of a short stream the blocks are next to each other.
  const int64_t last = std::max<int64_t>(0, size - kBlockTokens);
  const int64_t stride = std::max(kBlockTokens, last / (kBlocks - 1));
  for (int64_t i = 0; i < kBlocks; ++i) {
    const bool is_last = i == kBlocks - 1 && stride > kBlockTokens;
    const int64_t begin = is_last ? last : i * stride;
    const int64_t count = std::min(kBlockTokens, size - begin);
    if (count <= 0) {
      break;
    }
    stream.CopyTokens(begin, count, block.data());
    for (int64_t at = 0; at < count; ++at) {
      AddNumber(block[static_cast<size_t>(at)], token_bytes, hash);
    }
  }
  return FormatDigest(hash.digest());
}

}  // namespace fsdprun::worker
