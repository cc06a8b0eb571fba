#include <c10/util/Exception.h>
#include <fsdp/device_mesh.h>

#include <algorithm>
#include <set>

#include "fsdp_runtime/src/comm/worlds.h"

namespace fsdp {
namespace {

using Shape = std::vector<int64_t>;
using CollectivesPtr = std::shared_ptr<Collectives>;

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

/// Where `rank` stands on each axis.
Shape coordinates_of(int64_t rank, const Shape& shape) {
  Shape coordinates(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    coordinates[axis] = rank % shape[axis];
    rank /= shape[axis];
  }
  return coordinates;
}

/// The group of the ranks of `world` that differ from this one on the axes in `varied` only.
/// Collective. They are ranked in row-major order, which is that of the world.
CollectivesPtr group_along(const std::set<size_t>& varied, const Shape& shape,
                           const CollectivesPtr& world) {
  const Shape coordinates = coordinates_of(world->rank(), shape);
  int64_t ranks = 1;
  int64_t color = 0;  // the place on the other axes
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (varied.count(axis) != 0) {
      ranks *= shape[axis];
    } else {
      color = color * shape[axis] + coordinates[axis];
    }
  }
  return ranks == world->size() ? world : world->split(color);
}

}  // namespace

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

int64_t DeviceMesh::axis(const std::string& name) const {
  const auto found = std::find(axis_names_.begin(), axis_names_.end(), name);
  TORCH_CHECK(found != axis_names_.end(), "DeviceMesh: no axis '", name, "'; its axes are ",
              joined_names(axis_names_));
  return found - axis_names_.begin();
}

int64_t DeviceMesh::size(int64_t axis) const { return group(axis)->size(); }

int64_t DeviceMesh::local_rank(int64_t axis) const { return group(axis)->rank(); }

const std::shared_ptr<Collectives>& DeviceMesh::group(int64_t axis) const {
  TORCH_CHECK(axis >= 0 && axis < ndim(), "DeviceMesh: axis ", axis, " of a mesh with ", ndim(),
              " axes");
  return groups_[static_cast<size_t>(axis)];
}

std::shared_ptr<DeviceMesh> DeviceMesh::slice(const std::vector<std::string>& axis_names) const {
  Shape shape;
  std::vector<CollectivesPtr> groups;
  TORCH_CHECK(
      std::set<std::string>(axis_names.begin(), axis_names.end()).size() == axis_names.size(),
      "DeviceMesh: slice over ", joined_names(axis_names), " names an axis twice");
  for (const std::string& name : axis_names) {
    shape.push_back(shape_[static_cast<size_t>(axis(name))]);
    groups.push_back(group(axis(name)));
  }
  auto part =
      std::make_shared<DeviceMesh>(device_type_, std::move(shape), axis_names, std::move(groups));
  part->kept_world_ = world_ ? world_ : kept_world_;
  return part;
}

std::shared_ptr<DeviceMesh> DeviceMesh::flatten(const std::vector<std::string>& axis_names,
                                                const std::string& name) const {
  TORCH_CHECK(world_,
              "DeviceMesh: flatten of a slice; flatten the mesh that init_device_mesh made");
  std::set<size_t> varied;
  int64_t ranks = 1;
  for (const std::string& each : axis_names) {
    const size_t number = static_cast<size_t>(axis(each));
    TORCH_CHECK(varied.empty() || number > *varied.rbegin(), "DeviceMesh: flatten over ",
                joined_names(axis_names), "; expected each axis once and in the order of ",
                joined_names(axis_names_));
    varied.insert(number);
    ranks *= shape_[number];
  }
  auto line = std::make_shared<DeviceMesh>(
      device_type_, Shape{ranks}, std::vector<std::string>{name},
      std::vector<CollectivesPtr>{group_along(varied, shape_, world_)});
  line->kept_world_ = world_;
  return line;
}

std::shared_ptr<DeviceMesh> init_device_mesh(c10::DeviceType device_type,
                                             std::vector<int64_t> shape,
                                             std::vector<std::string> axis_names,
                                             std::shared_ptr<Collectives> world) {
  if (world == nullptr) {
    world = Worlds::get().only("init_device_mesh without a group");
  }
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
  TORCH_CHECK(ranks == world->size(), "init_device_mesh: the mesh holds ", ranks,
              " ranks but the process group has ", world->size());
  std::vector<CollectivesPtr> groups;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    groups.push_back(group_along({axis}, shape, world));
  }
  auto mesh = std::make_shared<DeviceMesh>(device_type, std::move(shape), std::move(axis_names),
                                           std::move(groups));
  mesh->world_ = std::move(world);
  return mesh;
}

}  // namespace fsdp
