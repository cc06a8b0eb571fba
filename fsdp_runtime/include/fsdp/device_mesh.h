#pragma once

#include <c10/core/Device.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// An n-dimensional arrangement of ranks with named axes, row-major. Only one axis is supported
/// today.
class FSDP_API DeviceMesh {
 public:
  DeviceMesh(c10::DeviceType device_type, std::vector<int64_t> shape,
             std::vector<std::string> axis_names, std::vector<std::shared_ptr<Collectives>> groups);

  c10::DeviceType device_type() const { return device_type_; }
  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  /// Ranks along `axis`.
  int64_t size(int64_t axis = 0) const;
  int64_t local_rank(int64_t axis = 0) const;
  const std::vector<std::string>& axis_names() const { return axis_names_; }
  const std::shared_ptr<Collectives>& group(int64_t axis = 0) const;

 private:
  c10::DeviceType device_type_;
  std::vector<int64_t> shape_;
  std::vector<std::string> axis_names_;
  std::vector<std::shared_ptr<Collectives>> groups_;
};

/// Mesh over the whole process group. Errors: TORCH_CHECK if the product of `shape` is not the
/// group's size, if names are missing or repeated, or if `shape` has more than one axis.
FSDP_API std::shared_ptr<DeviceMesh> init_device_mesh(c10::DeviceType device_type,
                                                      std::vector<int64_t> shape,
                                                      std::vector<std::string> axis_names,
                                                      std::shared_ptr<Collectives> world);

}  // namespace fsdp
