#include "formats/tensors/joined_tensors.h"

#include <utility>

#include "fsdp_runtime/archive/error.h"

namespace fsdprun {

JoinedTensors::JoinedTensors(std::vector<std::unique_ptr<TensorSource>> sources)
    : sources_(std::move(sources)) {
  for (const std::unique_ptr<TensorSource>& source : sources_) {
    for (const auto& [name, facts] : source->tensors()) {
      if (!owners_.try_emplace(name, source.get()).second) {
        throw fsdp::archive::Error("two of the checkpoints have a tensor " + name);
      }
      tensors_[name] = facts;
    }
  }
}

void JoinedTensors::Read(const std::string& name, int64_t begin, int64_t count, void* out) {
  owners_.at(name)->Read(name, begin, count, out);
}

}  // namespace fsdprun
