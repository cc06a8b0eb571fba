// Token files -> where their ids are. The first byte says which: 'l' a token file of llm.c, 'm' an
// index of Megatron-LM's, 'd' one of datatrove's, whose data have the size of its last end. What is
// accepted has ids inside the file, and documents in order.

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "formats/tokens/datatrove_index.h"
#include "formats/tokens/llmc_header.h"
#include "formats/tokens/megatron_index.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/memory_source.h"

namespace fsdprun {
namespace {

template <class Number>
Number NumberAt(std::string_view bytes, size_t offset) {
  Number number;
  FSDPRUN_CHECK(offset + sizeof number <= bytes.size(), "a number outside the file was accepted");
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

/// Calls `read`; false if it throws the documented exception.
template <class Read>
bool IsAccepted(size_t input_bytes, Read&& read) {
  try {
    const fuzz::MemoryBound bound((256 << 10) + 16 * input_bytes);
    read();
    return true;
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return false;
  }
}

void CheckDocuments(const std::vector<int64_t>& ends, int64_t tokens) {
  FSDPRUN_CHECK(ends.empty() == (tokens == 0), "documents without tokens");
  FSDPRUN_CHECK(ends.empty() || ends.back() == tokens, "the last document ends elsewhere");
  int64_t begin = 0;
  for (const int64_t end : ends) {
    FSDPRUN_CHECK(begin < end, "documents are not in order");
    begin = end;
  }
}

void FuzzLlmc(std::string_view bytes) {
  LlmcHeader header;
  if (!IsAccepted(bytes.size(), [&] {
        header = ParseLlmcHeader(bytes.substr(0, kLlmcHeaderBytes),
                                 static_cast<int64_t>(bytes.size()), "the file");
      })) {
    return;
  }
  FSDPRUN_CHECK(header.tokens >= 0 && IsLlmcFile(bytes), "a file of another kind was accepted");
  FSDPRUN_CHECK(kLlmcHeaderBytes + header.tokens * TokenBytes(header.dtype) ==
                    static_cast<int64_t>(bytes.size()),
                "the ids are not the rest of the file");
}

void FuzzMegatron(std::string_view bytes) {
  MegatronIndex index;
  if (!IsAccepted(bytes.size(), [&] {
        index = ReadMegatronIndex(fuzz::MemorySource(std::string(bytes)), "the file",
                                  /*wants_documents=*/true);
      })) {
    return;
  }
  CheckDocuments(index.document_ends, index.tokens);
  const auto count = static_cast<size_t>(NumberAt<uint64_t>(bytes, 18));
  int64_t tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    FSDPRUN_CHECK(
        NumberAt<int64_t>(bytes, 34 + 4 * count + 8 * i) == tokens * TokenBytes(index.dtype),
        "a sequence begins elsewhere");
    const auto length = NumberAt<int32_t>(bytes, 34 + 4 * i);
    FSDPRUN_CHECK(length >= 0, "a negative length was accepted");
    tokens += length;
  }
  FSDPRUN_CHECK(tokens == index.tokens, "another number of tokens");
}

void FuzzDatatrove(std::string_view bytes) {
  const uint64_t last =
      bytes.size() < 8 ? 0 : NumberAt<uint64_t>(bytes, (bytes.size() / 8 - 1) * 8);
  const auto data_bytes = static_cast<int64_t>(2 * (last & 0xffffffffffff));
  DatatroveIndex index;
  if (IsAccepted(bytes.size(), [&] {
        index = ReadDatatroveIndex(fuzz::MemorySource(std::string(bytes)), data_bytes, "the file",
                                   /*wants_documents=*/true);
      })) {
    CheckDocuments(index.document_ends, index.tokens);
    FSDPRUN_CHECK(index.tokens * TokenBytes(index.dtype) == data_bytes,
                  "the ids are not the whole file");
  }
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fsdprun::fuzz::AsText(data, size);
  if (input.empty()) {
    return 0;
  }
  const std::string_view bytes = input.substr(1);
  switch (input.front()) {
    case 'l':
      fsdprun::FuzzLlmc(bytes);
      break;
    case 'm':
      fsdprun::FuzzMegatron(bytes);
      break;
    case 'd':
      fsdprun::FuzzDatatrove(bytes);
      break;
    default:
      break;
  }
  return 0;
}
