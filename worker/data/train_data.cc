#include "worker/data/train_data.h"

#include <algorithm>
#include <utility>

#include "fsdp_runtime/plan/fnv1a.h"
#include "worker/data/mixture.h"
#include "worker/data/stream_digest.h"

namespace fsdprun::worker {

TrainData::TrainData(Windows windows) {
  sources_.push_back(std::move(windows));
  digest_ = SampledDigest(sources_.front().stream(), size());
}

TrainData::TrainData(std::vector<Windows> sources, std::vector<double> weights)
    : sources_(std::move(sources)), weights_(std::move(weights)) {
  fsdp::Fnv1a hash;
  const std::vector<int64_t> whole_weights = WholeWeights(weights_);
  for (size_t i = 0; i < sources_.size(); ++i) {
    const TokenStream& stream = sources_[i].stream();
    for (const char digit : SampledDigest(stream, stream.size())) {
      hash.mix(static_cast<uint8_t>(digit));
    }
    hash.mix(static_cast<uint64_t>(whole_weights[i]));
  }
  digest_ = FormatDigest(hash.digest());
}

int64_t TrainData::size() const {
  int64_t size = 0;
  for (const Windows& source : sources_) {
    size += source.stream().size();
  }
  return size;
}

int64_t TrainData::window_count() const {
  int64_t count = 0;
  for (const Windows& source : sources_) {
    count += source.count();
  }
  return count;
}

bool TrainData::is_text() const {
  return std::all_of(sources_.begin(), sources_.end(),
                     [](const Windows& source) { return source.stream().facts().is_text; });
}

std::optional<TokenizerIdentity> TrainData::tokenizer() const {
  for (const Windows& source : sources_) {
    if (source.stream().facts().tokenizer) {
      return source.stream().facts().tokenizer;
    }
  }
  return std::nullopt;
}

std::string TrainData::Digest(int64_t tokens) const {
  if (tokens == size()) {
    return digest_;
  }
  return is_mixture() ? std::string() : SampledDigest(sources_.front().stream(), tokens);
}

}  // namespace fsdprun::worker
