// A file of torch.save -> the state dict of a model or an optimizer. The first byte selects what
// the rest is: 'm' and 'o' data.pkl of a model and of an optimizer; 'a' an archive, of which both
// are tried. Properties: memory in proportion to the input; one line of error; tensors whose
// elements can be counted and, in an archive, read.

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/archive/saved_dicts.h"
#include "fsdp_runtime/archive/zip_archive.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/memory_source.h"

namespace fsdp::archive {
namespace {

using fsdprun::fuzz::MemorySource;

/// The result of `read`; none if it throws the documented exception.
template <class Read>
auto accepted(size_t input_bytes, Read&& read) -> std::optional<decltype(read())> {
  try {
    const fsdprun::fuzz::MemoryBound bound((1 << 20) + 2048 * input_bytes);
    return read();
  } catch (const Error& error) {
    FSDPRUN_CHECK(fsdprun::fuzz::IsOneLine(error.what()), "error message is not one line");
    return std::nullopt;
  }
}

void check_tensor(const SavedTensor& tensor) {
  FSDPRUN_CHECK(tensor.type != nullptr && tensor.offset >= 0, "a tensor without type or place");
  FSDPRUN_CHECK(tensor.sizes.size() == tensor.strides.size(), "a size without a stride");
  int64_t numel = 1;
  for (const int64_t size : tensor.sizes) {
    FSDPRUN_CHECK(size >= 0 && !__builtin_mul_overflow(numel, size, &numel), "a size overflows");
  }
  FSDPRUN_CHECK(tensor.reach() >= tensor.offset && tensor.reach() <= int64_t{1} << 56,
                "a tensor beyond any file");
}

void check_tensors(const SavedModel& model) {
  for (const auto& [name, tensor] : model) {
    check_tensor(tensor);
  }
}

void check_tensors(const SavedOptimizer& optimizer) {
  for (const auto& [name, states] : optimizer.state) {
    for (const auto& [state, value] : states) {
      if (const auto* tensor = std::get_if<SavedTensor>(&value)) {
        check_tensor(*tensor);
      }
    }
  }
}

void fuzz_model(std::string_view pickle) {
  if (const auto model =
          accepted(pickle.size(), [&] { return read_saved_model(pickle, "the file"); })) {
    check_tensors(*model);
  }
}

void fuzz_optimizer(std::string_view pickle) {
  if (const auto optimizer =
          accepted(pickle.size(), [&] { return read_saved_optimizer(pickle, "the file"); })) {
    check_tensors(*optimizer);
  }
}

/// Reads what check_within() lets pass: the bytes of all elements.
void read_elements(const MemorySource& source, const std::map<std::string, ZipRecord>& records,
                   const SavedModel& model) {
  for (const auto& [name, tensor] : model) {
    const auto record = records.find(tensor.record);
    if (record == records.end()) {
      continue;
    }
    const auto bytes = accepted(source.size(), [&, &tensor = tensor] {
      check_within(tensor, record->second.byte_count, "the tensor");
      std::string content(static_cast<size_t>(record->second.byte_count), '\0');
      read_record(source, record->second, content.data(), "the record");
      return content;
    });
    if (bytes) {
      FSDPRUN_CHECK(tensor.reach() * tensor.type->bytes <= static_cast<int64_t>(bytes->size()),
                    "a tensor outside its record");
    }
  }
}

std::string without_checksums(std::string_view bytes) {
  std::string archive(bytes);
  for (size_t at = archive.find("PK\x01\x02"); at != std::string::npos && at + 46 <= archive.size();
       at = archive.find("PK\x01\x02", at + 1)) {
    archive.replace(at + 16, 4, 4, '\0');
  }
  return archive;
}

void fuzz_archive(std::string_view input) {
  const MemorySource source(without_checksums(input));
  const auto records = accepted(input.size(), [&] { return read_zip(source, "the file"); });
  if (!records || records->count("data.pkl") == 0) {
    return;
  }
  const ZipRecord& record = records->at("data.pkl");
  const auto pickle = accepted(input.size(), [&] {
    std::string bytes(static_cast<size_t>(record.byte_count), '\0');
    read_record(source, record, bytes.data(), "data.pkl");
    return bytes;
  });
  if (!pickle) {
    return;
  }
  fuzz_optimizer(*pickle);
  if (const auto model =
          accepted(pickle->size(), [&] { return read_saved_model(*pickle, "the file"); })) {
    check_tensors(*model);
    read_elements(source, *records, *model);
  }
}

void fuzz(char mode, std::string_view input) {
  switch (mode) {
    case 'm':
      return fuzz_model(input);
    case 'o':
      return fuzz_optimizer(input);
    default:
      return fuzz_archive(input);
  }
}

}  // namespace
}  // namespace fsdp::archive

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) {
    const std::string_view input = fsdprun::fuzz::AsText(data, size);
    fsdp::archive::fuzz(input[0], input.substr(1));
  }
  return 0;
}
