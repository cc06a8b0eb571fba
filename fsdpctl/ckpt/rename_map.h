#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdprun::ckpt {

/// How keys are renamed: the first rule whose pattern fits a key gives its new name. One `*` of a
/// pattern stands for any text, which replaces the `*` of the new name. A key that no rule fits
/// keeps its name; a rule with null instead of a name leaves keys out.
class RenameMap {
 public:
  /// `text`: a JSON object {"old.*": "new.*", "optimizer.*": null}; its order counts. Errors:
  /// ConfigError naming `source` and the rule.
  RenameMap(std::string_view text, const std::string& source);

  /// nullopt: it is left out.
  std::optional<std::string> Rename(const std::string& key) const;

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> rules_;
};

}  // namespace fsdprun::ckpt
