#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/checkpoint/dcp_metadata.h"

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

/// The place in the nested state dict of a key that is renamed from `key`, whose place is `path`.
/// An unchanged key keeps it. A renamed one keeps the parts at both ends that the two keys have in
/// common, with their types (a number is an index of a list); what is between is one part. So
/// "optim.*" -> "optimizer.*" moves a nested dict, and "model.a" -> "b" gives a key of the top
/// level.
std::vector<checkpoint::PathPart> PathAfterRename(const std::string& key,
                                                  const std::vector<checkpoint::PathPart>& path,
                                                  const std::string& name);

}  // namespace fsdprun::ckpt
