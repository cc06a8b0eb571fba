#pragma once

#include <c10/util/Exception.h>
#include <fsdp/state_dict.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/state_dict/optimizer_access.h"

namespace fsdp {

/// An option of an optimizer whose options are a `T`, under Python's name.
template <class T>
struct OptionEntry {
  std::string name;
  std::function<OptionValue(const T&)> get;
  /// Throws c10::Error on a value that it cannot have.
  std::function<void(T&, const OptionValue&)> set;
};

/// Throws c10::Error on anything but a number that is at least 0.
double number_of(const OptionValue& value);
bool flag_of(const OptionValue& value);
/// Two numbers in [0, 1).
std::pair<double, double> betas_of(const OptionValue& value);
/// Throws unless they are of one type and equal: 0 is not 0.0.
void check_same(const OptionValue& value, const OptionValue& expected);
/// Of options that only say how Python computes, or belong to its schedulers.
bool is_only_pythons(const std::string& option);

/// Options of Python that have one value in LibTorch.
template <class T>
OptionEntry<T> fixed_option(std::string name, OptionValue value) {
  return {std::move(name), [value](const T&) { return value; },
          [value](T&, const OptionValue& given) { check_same(given, value); }};
}

template <class T>
OptionValues options_of(const std::vector<OptionEntry<T>>& table, const T& from) {
  OptionValues values;
  for (const OptionEntry<T>& entry : table) {
    values.emplace(entry.name, entry.get(from));
  }
  // For an optimizer of Python, which replaces its own options by those that it loads.
  for (const char* name : {"foreach", "fused"}) {
    values.emplace(name, std::monostate());
  }
  for (const char* name : {"capturable", "differentiable"}) {
    values.emplace(name, false);
  }
  return values;
}

/// Sets what `values` has. Returns what was wrong with the others, or "".
template <class T>
std::string set_options_of(const std::vector<OptionEntry<T>>& table, T& to,
                           const OptionValues& values, bool strict) {
  for (const auto& given : values) {
    const std::string& name = given.first;
    const auto found = std::find_if(table.begin(), table.end(),
                                    [&name](const auto& entry) { return entry.name == name; });
    if (found == table.end()) {
      if (strict && !is_only_pythons(name)) {
        return "option " + name + " is not known to it";
      }
      continue;
    }
    try {
      found->set(to, given.second);
    } catch (const c10::Error& error) {
      return "option " + name + ": " + error.what_without_backtrace();
    }
  }
  return "";
}

}  // namespace fsdp
