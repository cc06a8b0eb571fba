#include "worker/data/stream_digest.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "fsdp_runtime/plan/fnv1a.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kBlockBytes = 64 * 1024;
constexpr int64_t kBlocks = 64;

void AddBytes(const uint8_t* bytes, size_t count, fsdp::Fnv1a& hash) {
  for (size_t i = 0; i < count; ++i) {
    hash.mix(bytes[i]);
  }
}

}  // namespace

std::string SampledDigest(const TokenStream& stream, int64_t size) {
  fsdp::Fnv1a hash;
  uint8_t size_bytes[8];
  for (int i = 0; i < 8; ++i) {
    size_bytes[i] = static_cast<uint8_t>(size >> (8 * i));
  }
  AddBytes(size_bytes, sizeof size_bytes, hash);
  std::vector<uint8_t> block(static_cast<size_t>(kBlockBytes));
  // The last block ends with the last token; of a short stream the blocks are next to each other.
  const int64_t last = std::max<int64_t>(0, size - kBlockBytes);
  const int64_t stride = std::max(kBlockBytes, last / (kBlocks - 1));
  for (int64_t i = 0; i < kBlocks; ++i) {
    const bool is_last = i == kBlocks - 1 && stride > kBlockBytes;
    const int64_t begin = is_last ? last : i * stride;
    const int64_t count = std::min(kBlockBytes, size - begin);
    if (count <= 0) {
      break;
    }
    stream.CopyBytes(begin, count, block.data());
    AddBytes(block.data(), static_cast<size_t>(count), hash);
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash.digest()));
  return text;
}

}  // namespace fsdprun::worker
