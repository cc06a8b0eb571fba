#include <c10/util/Exception.h>
#include <fsdp/device_mesh.h>

#include <set>

namespace fsdp {

DeviceMesh::DeviceMesh(c10::DeviceType device_type, std::vector<int64_t> shape,
                       std::vector<std::string> axis_names,
                       std::vector<std::shared_ptr<Collectives>> groups)
    : device_type_(device_type),
      shape_(std::move(shape)),
      axis_names_(std::move(axis_names)),
      groups_(std::move(groups)) {
  TORCH_CHECK(shape_.size() == axis_names_.size() && shape_.size() == groups_.size(),
              "DeviceMesh: one axis name and one group per axis expected; got ", shape_.size(),
              " axes, ", axis_names_.size(), " names, ", groups_.size(), " groups");
}

int64_t DeviceMesh::size(int64_t axis) const { return group(axis)->size(); }

int64_t DeviceMesh::local_rank(int64_t axis) const { return group(axis)->rank(); }

const std::shared_ptr<Collectives>& DeviceMesh::group(int64_t axis) const {
  TORCH_CHECK(axis >= 0 && axis < ndim(), "DeviceMesh: axis ", axis, " of a mesh with ", ndim(),
              " axes");
  return groups_[static_cast<size_t>(axis)];
}

std::shared_ptr<DeviceMesh> init_device_mesh(c10::DeviceType device_type,
                                             std::vector<int64_t> shape,
                                             std::vector<std::string> axis_names,
                                             std::shared_ptr<Collectives> world) {
  TORCH_CHECK(world != nullptr, "init_device_mesh: world is null; call init_process_group first");
  TORCH_CHECK(world->device().type() == device_type, "init_device_mesh: a mesh of ", device_type,
              " over the group '", world->name(), "', whose tensors are on ", world->device(),
              "; set ProcessGroupOptions::device_type to the mesh's");
  TORCH_CHECK(shape.size() == axis_names.size(), "init_device_mesh: ", shape.size(), " axes but ",
              axis_names.size(), " names; every axis needs a name");
  std::set<std::string> seen;
  int64_t ranks = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    TORCH_CHECK(!axis_names[axis].empty(), "init_device_mesh: axis ", axis, " has an empty name");
    TORCH_CHECK(seen.insert(axis_names[axis]).second, "init_device_mesh: axis name '",
                axis_names[axis], "' is used twice");
    TORCH_CHECK(shape[axis] >= 1, "init_device_mesh: axis '", axis_names[axis], "' has size ",
                shape[axis], "; at least 1 expected");
    ranks *= shape[axis];
  }
  TORCH_CHECK(shape.size() == 1, "init_device_mesh: ", shape.size(),
              " axes given; only meshes with one axis are supported");
  TORCH_CHECK(ranks == world->size(), "init_device_mesh: the mesh holds ", ranks,
              " ranks but the process group has ", world->size());
  return std::make_shared<DeviceMesh>(device_type, std::move(shape), std::move(axis_names),
                                      std::vector<std::shared_ptr<Collectives>>{std::move(world)});
}

}  // namespace fsdp
