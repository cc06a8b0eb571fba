#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/device_mesh.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// The ranks that hold a model, in one call of a state dict's function: those of its mesh, of one
/// axis or two. All methods but is_first() and device() are collective, and block the host.
///
/// Thread: the rank's. Errors: as Work::wait().
class ModelRanks {
 public:
  /// `purpose`: the function's name, which peers compare.
  ModelRanks(const DeviceMesh& mesh, std::string purpose);

  /// The rank that is first on each axis.
  bool is_first() const;
  c10::Device device() const { return axes_.front()->device(); }
  const std::string& purpose() const { return purpose_; }

  /// Throws on all ranks if one of them has a `problem`, that is, not "", or if their digests
  /// differ. To be called before anything that ranks do together.
  void agree(const std::string& problem, uint64_t digest) const;
  /// Returns what `work` returns, in which ranks communicate. If it throws on this rank alone, as
  /// for lack of memory, the world ends with that as the reason, so that its peers do not wait.
  template <class F>
  auto together(F&& work) const {
    try {
      return work();
    } catch (const std::exception& error) {
      end_world(error);
      throw;
    }
  }
  /// Makes `bytes` what it is on the first rank.
  void send_from_first(at::Tensor bytes) const;
  /// Returns the `text` of the first rank.
  std::string text_of_first(const std::string& text) const;

 private:
  void end_world(const std::exception& error) const;

  std::vector<std::shared_ptr<Collectives>> axes_;  // the last axis of the mesh first
  const std::string purpose_;
};

}  // namespace fsdp
