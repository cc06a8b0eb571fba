#include "fsdp_runtime/src/optim/param_groups.h"

#include <c10/util/Exception.h>

#include <map>
#include <string_view>

namespace fsdp {
namespace {

AdamWOptions options_of(const AdamWParamGroup& group, const AdamWOptions& defaults) {
  return {group.lr.value_or(defaults.lr), group.beta1.value_or(defaults.beta1),
          group.beta2.value_or(defaults.beta2), group.eps.value_or(defaults.eps),
          group.weight_decay.value_or(defaults.weight_decay)};
}

}  // namespace

void check_options(size_t group, const AdamWOptions& options) {
  const auto check = [group](const char* name, double value, bool is_in_range, const char* range) {
    TORCH_CHECK(is_in_range, "AdamW: ", name, " of param group ", group, " is ", value,
                "; expected ", range);
  };
  // A NaN is in no range.
  check("lr", options.lr, options.lr >= 0, "at least 0");
  check("beta1", options.beta1, options.beta1 >= 0 && options.beta1 < 1, "one in [0, 1)");
  check("beta2", options.beta2, options.beta2 >= 0 && options.beta2 < 1, "one in [0, 1)");
  check("eps", options.eps, options.eps >= 0, "at least 0");
  check("weight_decay", options.weight_decay, options.weight_decay >= 0, "at least 0");
}

ResolvedParamGroups resolve_param_groups(const std::vector<AdamWParamGroup>& groups,
                                         const AdamWOptions& defaults,
                                         const std::vector<std::string>& fqns) {
  TORCH_CHECK(!fqns.empty(), "AdamW: no parameters below the given module");
  TORCH_CHECK(!groups.empty(), "AdamW: no param groups; give one, or options alone for one with ",
              "all parameters");
  std::map<std::string_view, size_t> index_of;
  for (size_t i = 0; i < fqns.size(); ++i) {
    index_of[fqns[i]] = i;
  }
  ResolvedParamGroups resolved;
  resolved.group_of.resize(fqns.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    TORCH_CHECK(!groups[g].params.empty(), "AdamW: param group ", g,
                " names no parameter; leave it out");
    for (const std::string& name : groups[g].params) {
      const auto found = index_of.find(name);
      TORCH_CHECK(found != index_of.end(), "AdamW: param group ", g, " names \"", name,
                  "\", which is no parameter below the given module; take the names of ",
                  "sharded_parameters(), e.g. \"", fqns.front(), "\"");
      std::optional<size_t>& group_of = resolved.group_of[found->second];
      TORCH_CHECK(group_of != g, "AdamW: param group ", g, " names \"", name, "\" twice");
      TORCH_CHECK(!group_of, "AdamW: param groups ", *group_of, " and ", g, " both name \"", name,
                  "\"; a parameter can be in one only");
      group_of = g;
    }
    resolved.options.push_back(options_of(groups[g], defaults));
    check_options(g, resolved.options.back());
  }
  return resolved;
}

}  // namespace fsdp
