#pragma once

/// @file
/// Meshes of ranks, over which parameters are divided.

#include <c10/core/Device.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// @addtogroup mesh
/// @{

/// An n-dimensional arrangement of ranks with named axes, row-major, as PyTorch's DeviceMesh. Along
/// each axis a rank has a group: of the ranks that differ from it in their place on that axis only,
/// in the order of those places. Immutable; shared by the modules that are sharded over it. Thread:
/// any, but for what is collective.
class FSDP_API DeviceMesh {
 public:
  /// For groups that were made by other means; init_device_mesh() is the usual way. `groups`: this
  /// rank's, one for each axis, of the size that `shape` says, which is not checked. Such a mesh
  /// can be sliced, but not flattened. Local. Errors: TORCH_CHECK unless there are as many names
  /// and groups as axes.
  DeviceMesh(c10::DeviceType device_type, std::vector<int64_t> shape,
             std::vector<std::string> axis_names, std::vector<std::shared_ptr<Collectives>> groups);

  /// Of the tensors of its groups.
  c10::DeviceType device_type() const { return device_type_; }
  /// Number of axes.
  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  /// Ranks along each axis.
  const std::vector<int64_t>& shape() const { return shape_; }
  /// By axis.
  const std::vector<std::string>& axis_names() const { return axis_names_; }
  /// Number of the axis of this name. TORCH_CHECK if there is none.
  int64_t axis(const std::string& name) const;
  /// Ranks along `axis`. Errors: TORCH_CHECK if there is no such axis, here and below.
  int64_t size(int64_t axis = 0) const;
  /// This rank's place on `axis`.
  int64_t local_rank(int64_t axis = 0) const;
  /// This rank's group along `axis`.
  const std::shared_ptr<Collectives>& group(int64_t axis = 0) const;

  /// The mesh of these axes alone, in this order, through this rank (PyTorch: `mesh["a", "b"]`).
  /// Local. Errors: TORCH_CHECK on a name that is unknown or given twice.
  std::shared_ptr<DeviceMesh> slice(const std::vector<std::string>& axis_names) const;
  /// A mesh with one axis, `name`, of all ranks that differ from this one on `axis_names` only, in
  /// row-major order (PyTorch: `mesh["a", "b"]._flatten("ab")`). Collective over the whole mesh,
  /// and blocks the host. Errors: TORCH_CHECK if the names are not in the order of the axes, or on
  /// a mesh that is not from init_device_mesh(); those of Collectives::split().
  std::shared_ptr<DeviceMesh> flatten(const std::vector<std::string>& axis_names,
                                      const std::string& name) const;

 private:
  /// @cond
  friend std::shared_ptr<DeviceMesh> init_device_mesh(c10::DeviceType, std::vector<int64_t>,
                                                      std::vector<std::string>,
                                                      std::shared_ptr<Collectives>);
  /// @endcond

  c10::DeviceType device_type_;
  std::vector<int64_t> shape_;
  std::vector<std::string> axis_names_;
  std::vector<std::shared_ptr<Collectives>> groups_;
  std::shared_ptr<Collectives> world_;  // of all ranks of the mesh; null if that is not known
  /// Of the mesh that this one is a part of: it lives as long as its parts are used.
  std::shared_ptr<Collectives> kept_world_;
};

/// Arranges the ranks of `world`, or without one those of default_process_group(), row-major in
/// `shape`:
///
/// ```cpp
/// // one axis: all ranks divide the parameters
/// auto mesh = fsdp::init_device_mesh(torch::kCPU, {world->size()}, {"dp_shard"});
/// // hybrid sharding: 2 rows with a copy each, which the ranks of a row divide
/// auto grid = fsdp::init_device_mesh(torch::kCPU, {2, world->size() / 2},
///                                    {"dp_replicate", "dp_shard"});
/// ```
///
/// Collective over `world`, and blocks the host, if there is more than one axis: divides it into
/// the groups of each axis, except for an axis that has all ranks, whose group is `world` itself.
/// Errors: those of default_process_group(); TORCH_CHECK if the product of `shape` is not its size,
/// if names are missing or repeated, or if it is on another type of device; those of
/// Collectives::split().
FSDP_API std::shared_ptr<DeviceMesh> init_device_mesh(c10::DeviceType device_type,
                                                      std::vector<int64_t> shape,
                                                      std::vector<std::string> axis_names,
                                                      std::shared_ptr<Collectives> world = nullptr);

/// @}

}  // namespace fsdp
