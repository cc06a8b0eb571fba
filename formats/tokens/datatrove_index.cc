#include "formats/tokens/datatrove_index.h"

#include <limits>

#include "formats/tokens/number_array.h"

namespace fsdprun {

DatatroveIndex ReadDatatroveIndex(const fsdp::archive::ByteSource& file, int64_t data_bytes,
                                  const std::string& source, bool wants_documents) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / 4);
  if (file.size() % 8 != 0) {
    throw ConfigError(source + ": " + std::to_string(file.size()) +
                      " bytes: expected a multiple of 8; it was cut short: copy or make it again");
  }
  const int64_t count = file.size() / 8;
  DatatroveIndex index;
  NumberArray<uint64_t> ends(file, 0, count);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t end = ends.Next();
    if (end < static_cast<uint64_t>(index.tokens) || end > kMost) {
      throw ConfigError(source + ": " + ends.Describe("end", end) +
                        ": expected the end of a document, in tokens, at least that of the one "
                        "before; make the file again");
    }
    if (wants_documents && end > static_cast<uint64_t>(index.tokens)) {
      index.document_ends.push_back(static_cast<int64_t>(end));
    }
    index.tokens = static_cast<int64_t>(end);
  }
  if (data_bytes != 2 * index.tokens && data_bytes != 4 * index.tokens) {
    throw ConfigError(source + ": its last document ends at token " + std::to_string(index.tokens) +
                      ", so the data have " + std::to_string(2 * index.tokens) +
                      " bytes (uint16) or " + std::to_string(4 * index.tokens) +
                      " (uint32), and the file beside it has " + std::to_string(data_bytes) +
                      "; one of the two was cut short or is of "
                      "another data set: copy or make both again");
  }
  index.dtype = data_bytes == 2 * index.tokens ? TokenDtype::kUint16 : TokenDtype::kUint32;
  return index;
}

}  // namespace fsdprun
