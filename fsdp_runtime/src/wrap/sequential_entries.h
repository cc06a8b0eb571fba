#pragma once

#include <memory>
#include <unordered_set>

namespace torch::nn {
class Module;
class SequentialImpl;
}  // namespace torch::nn

namespace fsdp {

/// Makes `container` call those of its entries that are in `units` as units. What is registered
/// stays, and so do names; Sequential::ptr() and at() of these entries return the caller of the
/// module instead.
void call_as_units(torch::nn::SequentialImpl& container,
                   const std::unordered_set<const torch::nn::Module*>& units);

/// Whether `module`'s own forward() runs the hooks: it is an fsdp::Sharded.
bool is_sharded_type(const torch::nn::Module& module);

}  // namespace fsdp
