#include "formats/torch_file/torch_file_writer.h"

#include <algorithm>
#include <set>

#include "formats/checkpoint/dtype.h"
#include "formats/checkpoint/torch_blob.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/archive/pickle_writer.h"
#include "fsdp_runtime/archive/zip_archive.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun {
namespace {

using fsdp::archive::Error;
using fsdp::archive::PickleWriter;

constexpr int64_t kAlignment = 64;
constexpr int64_t kLocalBytes = 30;
constexpr int64_t kZip64FieldBytes = 20;  // of a local header: both sizes
constexpr int64_t kPaddingFieldBytes = 4;
constexpr uint32_t kUtf8Flag = 0x0800;
constexpr uint32_t kDosDate = 0x0021;       // 1 January 1980: the bytes depend on the data alone
constexpr uint32_t kPaddingField = 0x4246;  // "FB", as torch pads
constexpr uint32_t kZip64Version = 45;
constexpr size_t kZip32Records = 0xfffe;

void Put(std::string& out, uint64_t value, int byte_count) {
  for (int i = 0; i < byte_count; ++i) {
    out += static_cast<char>(value >> (8 * i));
  }
}

std::string DictPickle(const std::vector<TorchFileTensor>& tensors) {
  PickleWriter out;
  std::set<std::string_view> names;
  out.empty_dict();
  out.mark();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const checkpoint::DTypeInfo* dtype = checkpoint::FindDType(tensors[i].dtype);
    if (dtype == nullptr) {
      throw Error("cannot write " + tensors[i].name + ": a .pt file has no dtype " +
                  tensors[i].dtype + " here");
    }
    if (!names.insert(tensors[i].name).second) {
      throw Error("cannot write the tensor " + tensors[i].name + " twice into one file");
    }
    out.string(tensors[i].name);
    checkpoint::EmitTensor(out, dtype->dtype, tensors[i].shape, std::to_string(i));
  }
  out.set_items();
  return out.finish();
}

bool IsZip64(const TorchFileLayout& layout, const TorchFileRecord& record) {
  return record.byte_count > layout.zip32_max;
}

/// Bytes of the fields behind the name, so that the data begin at a multiple of 64.
int64_t ExtraBytes(const TorchFileRecord& record) {
  return record.data_offset - record.header_offset - kLocalBytes -
         static_cast<int64_t>(record.name.size());
}

void Place(TorchFileLayout& layout, TorchFileRecord record, int64_t alignment) {
  record.header_offset = layout.directory_offset;
  int64_t begin = record.header_offset + kLocalBytes + static_cast<int64_t>(record.name.size()) +
                  (IsZip64(layout, record) ? kZip64FieldBytes : 0);
  if (alignment > 1) {
    begin += kPaddingFieldBytes;
    begin += (alignment - begin % alignment) % alignment;
  }
  record.data_offset = begin;
  layout.directory_offset = begin + record.byte_count;
  layout.records.push_back(std::move(record));
}

void PlaceSmall(TorchFileLayout& layout, const std::string& name, std::string bytes) {
  TorchFileRecord record;
  record.name = name;
  record.byte_count = static_cast<int64_t>(bytes.size());
  record.bytes = std::move(bytes);
  Place(layout, std::move(record), 1);
}

/// The fields that a local header and a directory entry share.
void PutCommon(std::string& out, const TorchFileRecord& record, uint32_t crc, bool is_zip64,
               int64_t extra_bytes) {
  Put(out, is_zip64 ? kZip64Version : 0, 2);
  Put(out, kUtf8Flag, 2);
  Put(out, 0, 2);  // stored
  Put(out, 0, 2);  // time
  Put(out, kDosDate, 2);
  Put(out, crc, 4);
  const uint64_t size = is_zip64 ? 0xffffffff : static_cast<uint64_t>(record.byte_count);
  Put(out, size, 4);
  Put(out, size, 4);
  Put(out, record.name.size(), 2);
  Put(out, static_cast<uint64_t>(extra_bytes), 2);
}

std::string LocalHeader(const TorchFileLayout& layout, const TorchFileRecord& record,
                        uint32_t crc) {
  const bool is_zip64 = IsZip64(layout, record);
  int64_t extra = ExtraBytes(record);
  std::string out;
  Put(out, 0x04034b50, 4);
  PutCommon(out, record, crc, is_zip64, extra);
  out += record.name;
  if (is_zip64) {
    Put(out, 1, 2);
    Put(out, 16, 2);
    Put(out, static_cast<uint64_t>(record.byte_count), 8);
    Put(out, static_cast<uint64_t>(record.byte_count), 8);
    extra -= kZip64FieldBytes;
  }
  if (extra > 0) {
    Put(out, kPaddingField, 2);
    Put(out, static_cast<uint64_t>(extra - kPaddingFieldBytes), 2);
    out.append(static_cast<size_t>(extra - kPaddingFieldBytes), 'Z');
  }
  return out;
}

std::string DirectoryEntry(const TorchFileLayout& layout, const TorchFileRecord& record,
                           uint32_t crc) {
  const bool has_large_size = IsZip64(layout, record);
  const bool has_large_offset = record.header_offset > layout.zip32_max;
  const bool is_zip64 = has_large_size || has_large_offset;
  const int field_bytes = (has_large_size ? 16 : 0) + (has_large_offset ? 8 : 0);
  std::string out;
  Put(out, 0x02014b50, 4);
  Put(out, is_zip64 ? kZip64Version : 0, 2);  // made by
  PutCommon(out, record, crc, has_large_size, is_zip64 ? field_bytes + 4 : 0);
  Put(out, 0, 2);  // comment
  Put(out, 0, 2);  // disk
  Put(out, 0, 2);  // internal attributes
  Put(out, 0, 4);  // external attributes
  Put(out, has_large_offset ? 0xffffffff : static_cast<uint64_t>(record.header_offset), 4);
  out += record.name;
  if (is_zip64) {
    Put(out, 1, 2);
    Put(out, static_cast<uint64_t>(field_bytes), 2);
    if (has_large_size) {
      Put(out, static_cast<uint64_t>(record.byte_count), 8);
      Put(out, static_cast<uint64_t>(record.byte_count), 8);
    }
    if (has_large_offset) {
      Put(out, static_cast<uint64_t>(record.header_offset), 8);
    }
  }
  return out;
}

std::string Directory(const TorchFileLayout& layout, const std::vector<uint32_t>& crcs) {
  std::string out;
  for (size_t i = 0; i < layout.records.size(); ++i) {
    out += DirectoryEntry(layout, layout.records[i], crcs[i]);
  }
  const uint64_t bytes = out.size();
  const uint64_t count = layout.records.size();
  const auto offset = static_cast<uint64_t>(layout.directory_offset);
  const bool is_zip64 = count > kZip32Records || layout.directory_offset > layout.zip32_max;
  if (is_zip64) {
    Put(out, 0x06064b50, 4);
    Put(out, 44, 8);  // bytes that follow
    Put(out, kZip64Version, 2);
    Put(out, kZip64Version, 2);
    Put(out, 0, 8);  // disks
    Put(out, count, 8);
    Put(out, count, 8);
    Put(out, bytes, 8);
    Put(out, offset, 8);
    Put(out, 0x07064b50, 4);
    Put(out, 0, 4);  // disk
    Put(out, offset + bytes, 8);
    Put(out, 1, 4);  // disks
  }
  Put(out, 0x06054b50, 4);
  Put(out, 0, 4);  // disks
  Put(out, is_zip64 ? 0xffff : count, 2);
  Put(out, is_zip64 ? 0xffff : count, 2);
  Put(out, is_zip64 ? 0xffffffff : bytes, 4);
  Put(out, is_zip64 ? 0xffffffff : offset, 4);
  Put(out, 0, 2);  // comment
  return out;
}

}  // namespace

TorchFileLayout LayOutTorchFile(const std::vector<TorchFileTensor>& tensors, int64_t zip32_max) {
  TorchFileLayout layout;
  layout.zip32_max = zip32_max;
  PlaceSmall(layout, "archive/data.pkl", DictPickle(tensors));
  PlaceSmall(layout, "archive/.format_version", "1");
  PlaceSmall(layout, "archive/.storage_alignment", "64");
  PlaceSmall(layout, "archive/byteorder", "little");
  layout.first_tensor = layout.records.size();
  layout.tensor_count = tensors.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    TorchFileRecord record;
    record.name = "archive/data/" + std::to_string(i);
    record.byte_count = fsdp::plan::numel_of(tensors[i].shape) *
                        checkpoint::FindDType(tensors[i].dtype)->element_bytes;
    Place(layout, std::move(record), kAlignment);
  }
  PlaceSmall(layout, "archive/version", "3\n");
  PlaceSmall(layout, "archive/.data/serialization_id", std::string(40, '0'));
  const std::vector<uint32_t> no_crcs(layout.records.size(), 0);
  layout.file_bytes =
      layout.directory_offset + static_cast<int64_t>(Directory(layout, no_crcs).size());
  return layout;
}

void WriteTorchFile(const TorchFileLayout& layout, const ReadTensorPieces& read, OutputFile& file) {
  std::vector<uint32_t> crcs;
  for (size_t i = 0; i < layout.records.size(); ++i) {
    const TorchFileRecord& record = layout.records[i];
    uint32_t crc = 0;
    int64_t done = 0;
    const auto write = [&](const void* data, int64_t byte_count) {
      crc = fsdp::archive::update_crc32(crc, data, static_cast<size_t>(byte_count));
      file.Write(record.data_offset + done, data, byte_count);
      done += byte_count;
    };
    if (i >= layout.first_tensor && i < layout.first_tensor + layout.tensor_count) {
      read(i - layout.first_tensor, write);
    } else {
      write(record.bytes.data(), record.byte_count);
    }
    if (done != record.byte_count) {
      throw Error("cannot write " + file.path() + ": " + record.name + " has " +
                  std::to_string(done) + " bytes instead of " + std::to_string(record.byte_count));
    }
    file.Write(record.header_offset, LocalHeader(layout, record, crc));
    crcs.push_back(crc);
  }
  file.Write(layout.directory_offset, Directory(layout, crcs));
}

}  // namespace fsdprun
