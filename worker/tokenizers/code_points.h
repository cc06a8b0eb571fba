#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdprun::worker {

/// Code points from first to last.
struct CodePoints {
  uint32_t first;
  uint32_t last;
};

// Note [Unicode versions]
// Which characters are letters depends on the version of Unicode, and each library has one of its
// own: Debian's PCRE2 14, the Oniguruma inside the Python package tokenizers 16, which also
// normalizes by version 9, and utf8proc 15. Ids that are to be equal to those of tokenizers need
// its properties: what came after PCRE2's version is added to a pattern, and what came after
// version 9 is kept apart when a text is normalized. The lists are what tokenizers 0.23 does with
// every single code point. An older library agrees with them on all that was assigned before, which
// Unicode does not change; one that knows more than version 16 would have letters that tokenizers
// has not (a test notices it).

/// Adds to `out`, for the inside of a class of PCRE2, all that has the property. False if
/// `property` is none of: L, Lu, Ll, Lt, Lm, Lo, M, N, Nd, Nl, No, P, S, Z, Zs, Zl, Zp, Cc, Han.
bool AppendProperty(std::string_view property, std::string& out);

/// Adds to `out` White_Space, for the inside of a class. (PCRE2's own \s also has U+180E.)
void AppendWhiteSpace(std::string& out);

/// Adds to `out` one code point, as a class or a pattern has it.
void AppendCodePoint(uint32_t code_point, std::string& out);

/// Whether normalization neither moves nor composes it (above).
bool IsKeptInPlace(uint32_t code_point);

}  // namespace fsdprun::worker
