#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/tokens/token_file_info.h"
#include "worker/data/windows.h"

namespace fsdprun::worker {

/// What is trained on: a stream, or several of which each gives a share of the samples.
class TrainData {
 public:
  /// Both read a few MiB of the data, for the digest. Errors: as TokenStream's.
  explicit TrainData(Windows windows);
  /// A mixture: `weights` has one for each. Precondition: not empty. Errors: as above and as
  /// WholeWeights's.
  TrainData(std::vector<Windows> sources, std::vector<double> weights);

  const std::vector<Windows>& sources() const { return sources_; }
  /// Empty unless it is a mixture.
  const std::vector<double>& weights() const { return weights_; }
  bool is_mixture() const { return !weights_.empty(); }

  // Of all sources together.
  /// In tokens.
  int64_t size() const;
  int64_t window_count() const;
  bool is_text() const;
  bool may_ignore_targets() const { return sources_.front().may_ignore_targets(); }
  /// What is said of it; none: nothing is.
  std::optional<TokenizerIdentity> tokenizer() const;
  /// SampledDigest of the first `tokens` tokens; of a mixture, which has no order of its tokens, of
  /// all sources and weights, and empty for another size than its own. Errors: as TokenStream's.
  std::string Digest(int64_t tokens) const;

 private:
  std::vector<Windows> sources_;
  std::vector<double> weights_;
  /// Of all.
  std::string digest_;
};

}  // namespace fsdprun::worker
