#include "fsdp_runtime/src/comm/worlds.h"

#include <c10/util/Exception.h>
#include <fsdp/process_group.h>

#include <algorithm>

namespace fsdp {
namespace {

std::string listed(const std::vector<std::shared_ptr<Collectives>>& groups) {
  std::string text;
  for (const std::shared_ptr<Collectives>& group : groups) {
    text += (text.empty() ? "" : ", ") + group->name() + " of " + std::to_string(group->size()) +
            (group->size() == 1 ? " rank" : " ranks");
  }
  return text;
}

}  // namespace

Worlds& Worlds::get() {
  // Never destroyed: groups may be formed, and looked for, after the static objects of the process.
  static Worlds* worlds = new Worlds;
  return *worlds;
}

void Worlds::add(const std::shared_ptr<Collectives>& world,
                 const std::shared_ptr<Membership>& membership) {
  const std::lock_guard lock(mutex_);
  add_locked(world, membership);
}

void Worlds::replace(const std::shared_ptr<Membership>& before,
                     const std::shared_ptr<Collectives>& world,
                     const std::shared_ptr<Membership>& membership) {
  const std::lock_guard lock(mutex_);
  const auto replaced = std::find_if(worlds_.begin(), worlds_.end(), [&](const World& each) {
    return !each.membership.owner_before(before) && !before.owner_before(each.membership);
  });
  if (before != nullptr && replaced != worlds_.end()) {
    replaced->is_replaced = true;
    add_locked(world, membership);
  }
}

void Worlds::add_locked(const std::shared_ptr<Collectives>& world,
                        const std::shared_ptr<Membership>& membership) {
  std::erase_if(worlds_, [](const World& each) { return each.membership.expired(); });
  worlds_.push_back({world, membership});
  was_one_formed_ = true;
}

std::shared_ptr<Collectives> Worlds::only(const std::string& caller) const {
  std::vector<std::shared_ptr<Collectives>> alive;  // released after the lock
  const std::lock_guard lock(mutex_);
  for (const World& each : worlds_) {
    if (std::shared_ptr<Collectives> group = each.is_replaced ? nullptr : each.group.lock()) {
      alive.push_back(std::move(group));
    }
  }
  TORCH_CHECK(was_one_formed_, caller,
              ": this process has formed no process group; call fsdp::init_process_group() before, "
              "and keep what it returns");
  TORCH_CHECK(!alive.empty(), caller,
              ": the process group that was formed has been destroyed; keep what "
              "fsdp::init_process_group() returns for as long as it is used");
  TORCH_CHECK(alive.size() == 1, caller, ": this process has ", alive.size(), " process groups (",
              listed(alive),
              "); name the one that is meant: fsdp::init_device_mesh() takes it, and "
              "fsdp::fully_shard() the mesh. A group lives as long as the meshes and the sharded "
              "modules that are made with it");
  return alive.front();
}

std::shared_ptr<Collectives> default_process_group() {
  return Worlds::get().only("default_process_group");
}

}  // namespace fsdp
