#pragma once

#include <string>
#include <string_view>

namespace fsdprun::worker {

/// What a line of JSON says of one key.
struct JsonLineText {
  /// Empty where the key is null.
  std::string text;
  /// The text has U+FFFD in place of half a surrogate pair.
  bool is_replaced = false;
};

/// Reads the text of `key` from `line`, a JSON object. Other keys are skipped: they need only be
/// what JSON knows, or what Python's json module writes beside it (NaN, Infinity, and "\ud83d"
/// without its other half), with numbers of any size. Half a surrogate pair in the text is U+FFFD
/// if `replaces_surrogates`. Errors: ConfigError "<place>: ..." or "<place>:<column>: ...": no
/// JSON, no object, no such key or twice, no text; half a pair. Memory: some times that of the
/// line. Pure.
JsonLineText ReadJsonLine(std::string_view line, const std::string& key, bool replaces_surrogates,
                          const std::string& place);

}  // namespace fsdprun::worker
