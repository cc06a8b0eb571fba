#pragma once

#include <fsdp/export.h>
#include <fsdp/muon.h>
#include <fsdp/optim.h>
#include <fsdp/sgd.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// In which of the groups each of `fqns` is; none if no group names it. `fqns`: of all parameters
/// there are, in their order. `groups`: the names of each. Errors: TORCH_CHECK that begins with the
/// name of the `optimizer`; see AdamW::AdamW. Pure.
FSDP_API std::vector<std::optional<size_t>> group_of_params(
    const std::string& optimizer, const std::vector<std::vector<std::string>>& groups,
    const std::vector<std::string>& fqns);

/// The parameters of each.
template <class Group>
std::vector<std::vector<std::string>> names_of(const std::vector<Group>& groups) {
  std::vector<std::vector<std::string>> names;
  for (const Group& group : groups) {
    names.push_back(group.params);
  }
  return names;
}

/// Errors: TORCH_CHECK, with the param group's number, on an option out of its range.
FSDP_API void check_options(size_t group, const AdamWOptions& options);
FSDP_API void check_options(size_t group, const SGDOptions& options);
FSDP_API void check_options(size_t group, const MuonOptions& options);

struct ResolvedParamGroups {
  std::vector<AdamWOptions> options;            // by param group
  std::vector<std::optional<size_t>> group_of;  // by parameter, none if no group names it
};

/// `fqns`: of all parameters there are, in their order. Errors: see AdamW::AdamW. Pure.
FSDP_API ResolvedParamGroups resolve_param_groups(const std::vector<AdamWParamGroup>& groups,
                                                  const AdamWOptions& defaults,
                                                  const std::vector<std::string>& fqns);

}  // namespace fsdp
