#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/tensors/tensor_source.h"

namespace fsdprun {

/// The adapter of a weight: the names of its two matrices, [rank, in_features] and [out_features,
/// rank].
struct AdapterNames {
  std::string a;
  std::string b;
};

/// What scales adapters, and what they are added to.
struct MergeOptions {
  double scale = 1;
  /// The weights are stored as [in_features, out_features].
  bool is_transposed = false;
};

/// A source with adapters added to some of its weights: W + scale * B A, computed in float32 and
/// cast to W's dtype. Thread: one. Memory: the two matrices of one weight, in float32.
class MergedTensors : public TensorSource {
 public:
  /// `adapters`: matrices in `adapter_source` by the names of weights in `base`. Both sources must
  /// outlive this. Errors: fsdp::archive::Error on matrices that are missing, or do not fit the
  /// weight, and on a dtype that cannot be cast.
  MergedTensors(TensorSource& base, TensorSource& adapter_source,
                std::map<std::string, AdapterNames> adapters, const MergeOptions& options);
  std::map<std::string, std::string> Weights() const override { return base_.Weights(); }
  void Read(const std::string& name, int64_t begin, int64_t count, void* out) override;

 private:
  void Check(const std::string& name, const AdapterNames& adapter) const;
  /// Makes `left_` and `right_` those of the weight.
  void Load(const std::string& name, const AdapterNames& adapter);
  /// Adds elements [begin, begin + count) of left_ * right_ to `values`.
  void AddProduct(int64_t begin, int64_t count, float* values) const;

  TensorSource& base_;
  TensorSource& adapter_source_;
  std::map<std::string, AdapterNames> adapters_;
  MergeOptions options_;

  /// Of the weight that was read last: [rows, rank], scaled, and [rank, columns].
  std::string loaded_;
  std::vector<float> left_, right_;
  int64_t rank_ = 0;
  int64_t columns_ = 0;
};

}  // namespace fsdprun
