#pragma once

#include <c10/core/Device.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// An n-dimensional arrangement of ranks with named axes, row-major, as PyTorch's DeviceMesh. Along
/// each axis a rank has a group: of the ranks that differ from it in their place on that axis only,
/// in the order of those places.
class FSDP_API DeviceMesh {
 public:
  /// `groups`: this rank's, one for each axis, of the size that `shape` says.
  DeviceMesh(c10::DeviceType device_type, std::vector<int64_t> shape,
             std::vector<std::string> axis_names, std::vector<std::shared_ptr<Collectives>> groups);

  c10::DeviceType device_type() const { return device_type_; }
  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<std::string>& axis_names() const { return axis_names_; }
  /// Number of the axis of this name. TORCH_CHECK if there is none.
  int64_t axis(const std::string& name) const;
  /// Ranks along `axis`.
  int64_t size(int64_t axis = 0) const;
  /// This rank's place on `axis`.
  int64_t local_rank(int64_t axis = 0) const;
  const std::shared_ptr<Collectives>& group(int64_t axis = 0) const;

  /// The mesh of these axes alone, in this order, through this rank (PyTorch: mesh["a", "b"]).
  /// Local. Errors: TORCH_CHECK on a name that is unknown or given twice.
  std::shared_ptr<DeviceMesh> slice(const std::vector<std::string>& axis_names) const;
  /// A mesh with one axis, `name`, of all ranks that differ from this one on `axis_names` only, in
  /// row-major order (PyTorch: mesh["a", "b"]._flatten("ab")). Collective over the whole mesh.
  /// Errors: TORCH_CHECK if the names are not in the order of the axes, or on a mesh that is not
  /// from init_device_mesh.
  std::shared_ptr<DeviceMesh> flatten(const std::vector<std::string>& axis_names,
                                      const std::string& name) const;

 private:
  friend std::shared_ptr<DeviceMesh> init_device_mesh(c10::DeviceType, std::vector<int64_t>,
                                                      std::vector<std::string>,
                                                      std::shared_ptr<Collectives>);

  c10::DeviceType device_type_;
  std::vector<int64_t> shape_;
  std::vector<std::string> axis_names_;
  std::vector<std::shared_ptr<Collectives>> groups_;
  std::shared_ptr<Collectives> world_;  // of all ranks of the mesh; null if that is not known
};

/// Arranges the ranks of `world` row-major in `shape`. Collective over `world` if there is more
/// than one axis: divides it into the groups of each axis, except for an axis that has all ranks,
/// whose group is `world` itself. Errors: TORCH_CHECK if the product of `shape` is not the world's
/// size, if names are missing or repeated, or if the world is on another type of device.
FSDP_API std::shared_ptr<DeviceMesh> init_device_mesh(c10::DeviceType device_type,
                                                      std::vector<int64_t> shape,
                                                      std::vector<std::string> axis_names,
                                                      std::shared_ptr<Collectives> world);

}  // namespace fsdp
