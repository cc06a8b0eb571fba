#include "formats/tensors/weights_digest.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <vector>

#include "formats/tensors/cast.h"
#include "formats/tensors/compare.h"
#include "formats/tensors/dtype_names.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/plan/fnv1a.h"

namespace fsdprun {
namespace {

WeightSums SumsOf(TensorSource& source, const std::string& key) {
  const TensorFacts& facts = source.tensors().at(key);
  if (!IsCastable(facts.dtype)) {
    throw fsdp::archive::Error("cannot compare " + key + ": its dtype is " + facts.dtype +
                               "; expected float32, float64, float16 or bfloat16");
  }
  const int64_t total = ElementCount(facts, key);
  const int64_t piece = std::min(total, PieceElements(sizeof(double)));
  const int64_t stored_bytes = ElementBytes(facts.dtype, key);
  std::vector<char> stored(static_cast<size_t>(piece * stored_bytes));
  std::vector<float> values(static_cast<size_t>(piece));
  WeightSums sums;
  for (int64_t begin = 0; begin < total; begin += piece) {
    const int64_t count = std::min(piece, total - begin);
    source.Read(key, begin, count, stored.data());
    CastElements(facts.dtype, stored.data(), "float32", values.data(), count);
    sums.Add(begin, values.data(), count);
  }
  return sums;
}

}  // namespace

void WeightSums::Add(int64_t begin, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t value = std::bit_cast<uint32_t>(values[i]);
    bits += value;
    bits_by_place += value * static_cast<uint64_t>(begin + i + 1);
  }
}

std::string DigestOfSums(const std::map<std::string, WeightSums>& sums) {
  fsdp::Fnv1a digest;
  for (const auto& [name, of_weight] : sums) {
    for (const char letter : name) {
      digest.mix(static_cast<unsigned char>(letter));
    }
    digest.mix(of_weight.bits);
    digest.mix(of_weight.bits_by_place);
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest.digest()));
  return text;
}

std::string DigestOfWeights(TensorSource& source,
                            const std::map<std::string, std::string>& weights) {
  std::map<std::string, WeightSums> sums;
  for (const auto& [name, key] : weights) {
    sums[name] = SumsOf(source, key);
  }
  return DigestOfSums(sums);
}

}  // namespace fsdprun
