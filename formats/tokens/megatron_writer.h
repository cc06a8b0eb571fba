#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/files/output_file.h"
#include "formats/tokens/token_dtype.h"

namespace fsdprun {

/// The most tokens of one document in a data set of Megatron-LM, whose index counts them in int32.
inline constexpr int64_t kMegatronMostDocumentTokens = INT32_MAX;

/// Bytes of the index (`.idx`) of so many documents, each one sequence.
int64_t MegatronIndexBytes(int64_t documents);

/// Writes the index of documents of these numbers of tokens, which lie one behind the other in the
/// `.bin`. `file` is of MegatronIndexBytes(lengths.size()). Memory: 1 MiB. Source: Megatron-LM's
/// core/datasets/indexed_dataset.py. Errors: as OutputFile's; for a dtype that the format does not
/// have (uint32).
void WriteMegatronIndex(const std::vector<int32_t>& lengths, TokenDtype dtype, OutputFile& file);

}  // namespace fsdprun
