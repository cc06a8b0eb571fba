#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/tensors/tensor_source.h"

namespace fsdprun {

// Note [Rows of rotary embeddings]
// A rotary embedding turns pairs of a head's components. Hugging Face's models, and fsdp-train,
// pair component i with i + d/2 ("halves"); Meta's Llama and torchtitan's pair 2i with 2i + 1
// ("interleaved"). The same model has the rows of its query and key projections in another order
// then, within each head; nothing else differs, as queries and keys meet in inner products only.

enum class RotaryOrder { kHalves, kInterleaved };

/// A source with the rows of some tensors reordered, from the other order to `to`. What keeps one
/// number per weight, as an optimizer's moments, is reordered like the weight.
class RotaryRows : public TensorSource {
 public:
  /// `heads`: how many heads the rows of each such tensor are divided into. `source` must outlive
  /// this. Errors: fsdp::archive::Error if the rows do not divide into heads of an even size.
  RotaryRows(TensorSource& source, std::map<std::string, int64_t> heads, RotaryOrder to);
  void Read(const std::string& name, int64_t begin, int64_t count, void* out) override;

 private:
  TensorSource& source_;
  std::map<std::string, int64_t> heads_;
  RotaryOrder to_;
  std::vector<char> head_;  // the one that is being reordered
};

}  // namespace fsdprun
