// A torch.save archive -> records, tensor header, plain object. The first byte selects what the
// rest is: 'r' the archive; 's' the archive after its redundant fields have been made consistent
// (sizes that are stored twice, checksums), which mutation would rarely do; 'p' data.pkl of a valid
// archive.

#include <cstring>
#include <string>

#include "base/check.h"
#include "formats/checkpoint/error.h"
#include "formats/checkpoint/torch_blob.h"
#include "fsdp_runtime/archive/zip_archive.h"
#include "fsdp_runtime/plan/box.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/memory_source.h"

namespace fsdprun::checkpoint {
namespace {

using fsdp::archive::ByteSource;
using fsdp::archive::ZipRecord;
using fsdp::archive::ZipWriter;
using fsdprun::fuzz::MemorySource;
using nlohmann::json;

std::string ArchiveAround(std::string_view pickle) {
  ZipWriter zip;
  zip.add("archive/data.pkl", pickle);
  zip.add("archive/byteorder", "little");
  zip.add("archive/data/0", std::string(64, '\7'));
  return zip.finish();
}

/// Makes each directory entry's two sizes equal and drops its CRC.
std::string Consistent(std::string_view bytes) {
  std::string archive(bytes);
  for (size_t at = archive.find("PK\x01\x02"); at != std::string::npos && at + 46 <= archive.size();
       at = archive.find("PK\x01\x02", at + 1)) {
    archive.replace(at + 16, 4, 4, '\0');
    archive.replace(at + 20, 4, archive, at + 24, 4);
  }
  return archive;
}

/// Calls `read`; false if it throws the documented exception.
template <class Read>
bool IsAccepted(size_t input_bytes, Read&& read) {
  try {
    const fuzz::MemoryBound bound((1 << 20) + 2048 * input_bytes);
    read();
    return true;
  } catch (const CheckpointError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return false;
  }
}

void CheckRecords(const ByteSource& source) {
  std::map<std::string, ZipRecord> records;
  if (!IsAccepted(source.size(), [&] { records = read_zip(source, "it"); })) {
    return;
  }
  for (const auto& [name, record] : records) {
    FSDPRUN_CHECK(record.data_offset >= 0 && record.byte_count >= 0 &&
                      record.data_offset <= source.size() - record.byte_count,
                  "record outside the archive");
    IsAccepted(source.size(), [&, &record = record] { check_crc(source, record, "it"); });
  }
}

void CheckTensor(const ByteSource& source) {
  TensorBlob blob;
  if (IsAccepted(source.size(), [&] { blob = ReadTensorFrame(source, "it"); })) {
    const int64_t bytes = fsdp::plan::numel_of(blob.sizes) * InfoOf(blob.dtype).element_bytes;
    FSDPRUN_CHECK(blob.data_offset >= 0 && blob.data_offset <= source.size() - bytes,
                  "tensor data outside the archive");
  }
}

void CheckObject(const ByteSource& source) {
  json object;
  if (!IsAccepted(source.size(), [&] { object = UnpackObject(source, "it"); })) {
    return;
  }
  std::string packed;
  try {
    packed = PackObject(object);
  } catch (const CheckpointError&) {
    return;  // NaN or infinity: read from Python, but never written
  }
  FSDPRUN_CHECK(UnpackObject(MemorySource(packed), "it") == object,
                "object differs after a round trip");
}

void Fuzz(char mode, std::string_view input) {
  const MemorySource source(mode == 'p'   ? ArchiveAround(input)
                            : mode == 's' ? Consistent(input)
                                          : std::string(input));
  CheckRecords(source);
  CheckTensor(source);
  CheckObject(source);
}

}  // namespace
}  // namespace fsdprun::checkpoint

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) {
    const std::string_view input = fsdprun::fuzz::AsText(data, size);
    fsdprun::checkpoint::Fuzz(input[0], input.substr(1));
  }
  return 0;
}
