#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/param_group.h"

namespace fsdp {

/// Gradients of one dtype: lists of them are worked on by a few kernels in all, not by one each.
using GradientsByType = std::map<at::ScalarType, std::vector<at::Tensor>>;

/// Calls `use` with a list of gradients, or with parts of it, one after the other: those on disk
/// are by themselves, and their pages are given back behind that.
template <class Use>
void use_in_portions(const std::vector<at::Tensor>& gradients, Use use) {
  std::vector<at::Tensor> in_memory;
  for (const at::Tensor& gradient : gradients) {
    if (!is_on_disk(gradient)) {
      in_memory.push_back(gradient);
      continue;
    }
    use(std::vector<at::Tensor>{gradient});
    release_pages(gradient);
  }
  if (!in_memory.empty()) {
    use(in_memory);
  }
}

/// Adds this rank's part of the group's gradients, flat: whole, or in parts if an optimizer has
/// dropped some of them. Waits until they have arrived; throws like ParamGroup::settle_gradient().
/// Errors: TORCH_CHECK if others in `to` are on another device.
void add_gradients(ParamGroup& group, GradientsByType& to);
/// The same of these parameters, each by itself: empty ones too, so that all ranks add as many.
void add_gradients_of(ParamGroup& group, const std::vector<size_t>& indices, GradientsByType& to);

}  // namespace fsdp
