#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <fsdp/memory.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "fsdp_runtime/plan/reshard_plan.h"
#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

void add_group(UnitMemory& memory, const ParamGroup& group) {
  const ShardStore& store = group.store();
  for (size_t i = 0; i < store.size(); ++i) {
    memory.whole += c10::multiply_integers(store.shape(i)) * store.shard().element_size();
  }
  memory.shard += bytes_of(store.shard()) + bytes_of(store.copy_for_peers());
  memory.gathered += group.unsharded().bytes_in_use();
  memory.unreduced += group.unreduced_bytes();
  memory.gradient += bytes_of(group.gradient());
}

/// In the dtype in which they compute; nothing where that takes no memory.
plan::UnitToGather unit_to_gather(const ModuleState& unit) {
  plan::UnitToGather all;
  for (const std::shared_ptr<ParamGroup>& group : unit.groups()) {
    const GatherBuffer& gathered = group->unsharded();
    if (gathered.takes_no_memory()) {
      continue;
    }
    const plan::GroupLayout& layout = group->store().layout();
    const auto element = static_cast<int64_t>(c10::elementSize(gathered.dtype()));
    all.bytes += layout.whole_numel() * element;
    if (layout.copies_out()) {
      all.copied += layout.whole_numel() * element;
      all.copied_from += gathered.gathers_in_window() ? 0 : layout.numel() * element;
    }
  }
  return all;
}

/// In registration order, in which each comes behind the unit around it.
std::vector<plan::UnitToGather> units_to_gather(
    const std::vector<std::shared_ptr<ModuleState>>& units) {
  std::unordered_map<const ModuleState*, size_t> index;  // looked up only, never iterated
  std::vector<plan::UnitToGather> all;
  for (size_t i = 0; i < units.size(); ++i) {
    index[units[i].get()] = i;
    all.push_back(unit_to_gather(*units[i]));
  }
  for (size_t i = 0; i < units.size(); ++i) {  // the innermost comes last
    for (const std::shared_ptr<ModuleState>& inner : units[i]->units()) {
      if (const auto found = index.find(inner.get()); found != index.end() && found->second > i) {
        all[found->second].around = i;
      }
    }
  }
  return all;
}

std::string line_of(const std::string& unit, const UnitMemory& memory) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  char numbers[128];
  std::snprintf(numbers, sizeof(numbers), "%10.2f %10.2f %10.2f %10.2f %10.2f %10.2f",
                mib(memory.whole), mib(memory.shard), mib(memory.gathered), mib(memory.unreduced),
                mib(memory.gradient), mib(memory.total()));
  return std::string(numbers) + "  " + unit + "\n";
}

}  // namespace

std::vector<UnitMemory> memory_by_unit(const FSDPModule& root) {
  TORCH_CHECK(root, "memory_by_unit: the handle is empty");
  std::vector<UnitMemory> all;
  for (const std::shared_ptr<ModuleState>& unit : root.state()->units()) {
    UnitMemory memory;
    memory.unit = unit->name();
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      add_group(memory, *group);
    }
    all.push_back(std::move(memory));
  }
  return all;
}

std::vector<std::string> reshard_within(const FSDPModule& root, int64_t budget) {
  TORCH_CHECK(root, "reshard_within: the handle is empty");
  const std::vector<std::shared_ptr<ModuleState>> units = root.state()->units();
  const std::vector<plan::UnitToGather> all = units_to_gather(units);
  const int64_t least = plan::most_gathered(all, std::vector<bool>(all.size(), false));
  TORCH_CHECK(least <= budget,
              "reshard_within: a unit, the next one and the units around them take ", least,
              " bytes when they are gathered, and ", budget,
              " were given; shard smaller modules, or give more");
  const std::vector<bool> kept = plan::units_to_keep(all, budget);
  std::vector<std::string> names;
  for (size_t i = 0; i < units.size(); ++i) {
    FSDPModule(units[i]).set_reshard_after_forward(!kept[i], /*recurse=*/false);
    if (kept[i]) {
      names.push_back(units[i]->name());
    }
  }
  return names;
}

std::string memory_table(const std::vector<UnitMemory>& units) {
  std::string text =
      "     whole      shard   gathered  unreduced   gradient      total  MiB of unit\n";
  UnitMemory sum;
  for (const UnitMemory& unit : units) {
    text += line_of(unit.unit.empty() ? "(root)" : unit.unit, unit);
    sum.whole += unit.whole;
    sum.shard += unit.shard;
    sum.gathered += unit.gathered;
    sum.unreduced += unit.unreduced;
    sum.gradient += unit.gradient;
  }
  return text + line_of("(all)", sum);
}

}  // namespace fsdp
