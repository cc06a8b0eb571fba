#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace fsdprun::worker {

/// Keys and values of one layer for the tokens so far, so that the next ones need no others
/// computed again. Memory: 2 * batch * heads * capacity * head_dim numbers, from the first tokens
/// on.
class LayerCache {
 public:
  explicit LayerCache(int64_t capacity) : capacity_(capacity) {}

  int64_t length() const { return length_; }
  /// Appends keys and values, each [batch, heads, new tokens, head_dim]; returns those of all
  /// tokens, as views. Precondition: they fit into the capacity.
  std::pair<at::Tensor, at::Tensor> Append(const at::Tensor& keys, const at::Tensor& values);

 private:
  int64_t capacity_;
  int64_t length_ = 0;
  at::Tensor keys_, values_;  // [batch, heads, capacity, head_dim]
};

/// Those of all layers.
class KeyValueCache {
 public:
  /// For sequences of up to `capacity` tokens.
  KeyValueCache(int64_t layers, int64_t capacity)
      : layers_(static_cast<size_t>(layers), LayerCache(capacity)), capacity_(capacity) {}

  int64_t capacity() const { return capacity_; }
  /// How many tokens there are.
  int64_t length() const { return layers_.empty() ? 0 : layers_.front().length(); }
  LayerCache& layer(size_t i) { return layers_[i]; }

 private:
  std::vector<LayerCache> layers_;
  int64_t capacity_;
};

}  // namespace fsdprun::worker
