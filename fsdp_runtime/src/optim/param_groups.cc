#include "fsdp_runtime/src/optim/param_groups.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <map>
#include <string_view>

namespace fsdp {
namespace {

AdamWOptions options_of(const AdamWParamGroup& group, const AdamWOptions& defaults) {
  return {group.lr.value_or(defaults.lr),
          group.beta1.value_or(defaults.beta1),
          group.beta2.value_or(defaults.beta2),
          group.eps.value_or(defaults.eps),
          group.weight_decay.value_or(defaults.weight_decay),
          defaults.fused};
}

void check_option(const char* optimizer, size_t group, const char* name, double value,
                  bool is_in_range, const char* range) {
  // A NaN is in no range.
  TORCH_CHECK(is_in_range, optimizer, ": ", name, " of param group ", group, " is ", value,
              "; expected ", range);
}

constexpr const char* kNotNegative = "at least 0";

}  // namespace

void check_options(size_t group, const AdamWOptions& options) {
  const auto check = [group](const char* name, double value, bool is_in_range, const char* range) {
    check_option("AdamW", group, name, value, is_in_range, range);
  };
  check("lr", options.lr, options.lr >= 0, kNotNegative);
  check("beta1", options.beta1, options.beta1 >= 0 && options.beta1 < 1, "one in [0, 1)");
  check("beta2", options.beta2, options.beta2 >= 0 && options.beta2 < 1, "one in [0, 1)");
  check("eps", options.eps, options.eps >= 0, kNotNegative);
  check("weight_decay", options.weight_decay, options.weight_decay >= 0, kNotNegative);
}

void check_options(size_t group, const SGDOptions& options) {
  const auto check = [group](const char* name, double value, bool is_in_range, const char* range) {
    check_option("SGD", group, name, value, is_in_range, range);
  };
  check("lr", options.lr, options.lr >= 0, kNotNegative);
  check("momentum", options.momentum, options.momentum >= 0, kNotNegative);
  check("dampening", options.dampening, std::isfinite(options.dampening), "a number");
  check("weight_decay", options.weight_decay, options.weight_decay >= 0, kNotNegative);
  TORCH_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
              "SGD: nesterov of param group ", group, " with momentum ", options.momentum,
              " and dampening ", options.dampening,
              "; expected a momentum above 0 and no dampening");
}

void check_options(size_t group, const MuonOptions& options) {
  const auto check = [group](const char* name, double value, bool is_in_range, const char* range) {
    check_option("Muon", group, name, value, is_in_range, range);
  };
  check("lr", options.lr, options.lr >= 0, kNotNegative);
  check("weight_decay", options.weight_decay, options.weight_decay >= 0, kNotNegative);
  check("momentum", options.momentum, options.momentum >= 0, kNotNegative);
  check("eps", options.eps, options.eps >= 0, kNotNegative);
  check("ns_steps", static_cast<double>(options.ns_steps),
        options.ns_steps >= 0 && options.ns_steps < 100, "one from 0 to 99");
}

std::vector<std::optional<size_t>> group_of_params(
    const std::string& optimizer, const std::vector<std::vector<std::string>>& groups,
    const std::vector<std::string>& fqns) {
  TORCH_CHECK(!fqns.empty(), optimizer, ": no parameters below the given module");
  TORCH_CHECK(!groups.empty(), optimizer,
              ": no param groups; give one, or options alone for one with all parameters");
  std::map<std::string_view, size_t> index_of;
  for (size_t i = 0; i < fqns.size(); ++i) {
    index_of[fqns[i]] = i;
  }
  std::vector<std::optional<size_t>> group_of(fqns.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    TORCH_CHECK(!groups[g].empty(), optimizer, ": param group ", g,
                " names no parameter; leave it out");
    for (const std::string& name : groups[g]) {
      const auto found = index_of.find(name);
      TORCH_CHECK(found != index_of.end(), optimizer, ": param group ", g, " names \"", name,
                  "\", which is no parameter below the given module; take the names of ",
                  "sharded_parameters(), e.g. \"", fqns.front(), "\"");
      std::optional<size_t>& group = group_of[found->second];
      TORCH_CHECK(group != g, optimizer, ": param group ", g, " names \"", name, "\" twice");
      TORCH_CHECK(!group, optimizer, ": param groups ", *group, " and ", g, " both name \"", name,
                  "\"; a parameter can be in one only");
      group = g;
    }
  }
  return group_of;
}

ResolvedParamGroups resolve_param_groups(const std::vector<AdamWParamGroup>& groups,
                                         const AdamWOptions& defaults,
                                         const std::vector<std::string>& fqns) {
  ResolvedParamGroups resolved;
  resolved.group_of = group_of_params("AdamW", names_of(groups), fqns);
  for (size_t g = 0; g < groups.size(); ++g) {
    resolved.options.push_back(options_of(groups[g], defaults));
    check_options(g, resolved.options.back());
  }
  return resolved;
}

}  // namespace fsdp
