#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp {

/// How often each of several parameters has been updated, counted where the parameters are: on a
/// device the host does not wait for an update that is left out there.
class FSDP_API UpdateCounts {
 public:
  /// All 0.
  UpdateCounts(size_t params, c10::Device device);
  /// One more of those of which `takes_part` is 1, by parameter. `kept`: 0-dim, 0 if the update is
  /// left out, else 1; undefined: it is not.
  void add(const std::vector<uint8_t>& takes_part, const at::Tensor& kept);
  /// Blocks the host until the device has counted.
  std::vector<int64_t> read() const;
  /// As many as there are parameters.
  void set(const std::vector<int64_t>& counts);

 private:
  at::Tensor counts_;  // int64, [params]
  // Of the last call of add(), so that steps alike move nothing to the device.
  std::vector<uint8_t> takes_part_;
  at::Tensor mask_;  // the same there, int64
};

}  // namespace fsdp
