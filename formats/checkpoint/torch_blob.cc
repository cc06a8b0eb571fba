#include "formats/checkpoint/torch_blob.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "formats/checkpoint/error.h"
#include "fsdp_runtime/archive/pickle_reader.h"
#include "fsdp_runtime/archive/pickle_writer.h"
#include "fsdp_runtime/archive/saved_tensor.h"
#include "fsdp_runtime/archive/zip_archive.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun::checkpoint {
namespace {

using fsdp::archive::ByteSource;
using fsdp::archive::PickleGlobal;
using fsdp::archive::PickleKind;
using fsdp::archive::PickleNode;
using fsdp::archive::PickleTree;
using fsdp::archive::PickleWriter;
using fsdp::archive::SavedTensor;
using fsdp::archive::ZipRecord;
using fsdp::archive::ZipWriter;
using nlohmann::json;

constexpr size_t kAlignment = 64;
constexpr int kBlobDepthMax = 64;
constexpr int64_t kPickleBytesMax = int64_t{64} << 20;

// torch uses the id only to tell archives apart in its logs; a constant makes the bytes depend on
// the data alone.
constexpr std::string_view kSerializationId = "0000000000000000000000000000000000000000";

constexpr PickleGlobal kObjectGlobals[] = {{"collections", "OrderedDict"}};

std::string TensorPickle(DType dtype, const std::vector<int64_t>& sizes) {
  PickleWriter out;
  EmitTensor(out, dtype, sizes, "0");
  return out.finish();
}

void EmitScalar(PickleWriter& out, const json& value) {
  switch (value.type()) {
    case json::value_t::string:
      out.string(value.get_ref<const std::string&>());
      return;
    case json::value_t::boolean:
      out.boolean(value.get<bool>());
      return;
    case json::value_t::number_integer:
      out.integer(value.get<int64_t>());
      return;
    case json::value_t::number_unsigned:
      out.unsigned_integer(value.get<uint64_t>());
      return;
    case json::value_t::number_float:
      if (!std::isfinite(value.get<double>())) {
        throw CheckpointError("cannot store NaN or infinity in the training state");
      }
      out.real(value.get<double>());
      return;
    default:
      out.none();
      return;
  }
}

void EmitJson(PickleWriter& out, const json& value, int depth) {
  if (depth > kBlobDepthMax) {
    throw CheckpointError("cannot store a JSON value that is nested deeper than " +
                          std::to_string(kBlobDepthMax));
  }
  if (value.is_object()) {
    out.empty_dict();
    out.mark();
    for (const auto& [key, item] : value.items()) {
      out.string(key);
      EmitJson(out, item, depth + 1);
    }
    out.set_items();
  } else if (value.is_array()) {
    out.empty_list();
    out.mark();
    for (const json& item : value) {
      EmitJson(out, item, depth + 1);
    }
    out.appends();
  } else {
    EmitScalar(out, value);
  }
}

/// Plain Python data as JSON. Depth and budget are bounded: nodes may be shared or cyclic.
class JsonBuilder {
 public:
  JsonBuilder(const PickleTree& tree, size_t input_bytes, const std::string& what)
      : tree_(tree), what_(what), visits_left_(4 * input_bytes + 1000) {}

  json Build(const PickleNode& node, int depth = 0) {
    Visit(depth, node.text.size());
    switch (node.kind) {
      case PickleKind::kNone:
        return nullptr;
      case PickleKind::kBool:
        return node.integer != 0;
      case PickleKind::kInt:
        return node.integer;
      case PickleKind::kUInt:
        return static_cast<uint64_t>(node.integer);
      case PickleKind::kFloat:
        return node.real;
      case PickleKind::kString:
        return std::string(node.text);
      case PickleKind::kTuple:
      case PickleKind::kList: {
        json list = json::array();
        for (size_t i = 0; i < node.items.size(); ++i) {
          list.push_back(Build(tree_.item(node, i), depth + 1));
        }
        return list;
      }
      case PickleKind::kDict: {
        json object = json::object();
        for (size_t i = 0; i < node.items.size(); i += 2) {
          const PickleNode& key = tree_.item(node, i);
          if (key.kind != PickleKind::kString) {
            throw CheckpointError(what_ + " has a dict key that is no string");
          }
          Visit(depth, key.text.size());
          object[std::string(key.text)] = Build(tree_.item(node, i + 1), depth + 1);
        }
        return object;
      }
      default:
        throw CheckpointError(what_ + " holds " + kind_name(node.kind) +
                              "; only plain data are read");
    }
  }

 private:
  void Visit(int depth, size_t bytes_copied) {
    if (depth > kBlobDepthMax || visits_left_ <= bytes_copied) {
      throw CheckpointError(what_ + " is nested too deeply or refers to itself");
    }
    visits_left_ -= 1 + bytes_copied;
  }

  const PickleTree& tree_;
  const std::string& what_;
  size_t visits_left_;
};

std::string ReadRecord(const ByteSource& source, const std::map<std::string, ZipRecord>& records,
                       const std::string& name, const std::string& what) {
  const auto found = records.find(name);
  if (found == records.end() || found->second.byte_count > kPickleBytesMax) {
    throw CheckpointError(what + ": the archive has no record " + name + " of a plausible size");
  }
  std::string bytes(static_cast<size_t>(found->second.byte_count), '\0');
  read_record(source, found->second, bytes.data(), what + ", record " + name + ",");
  return bytes;
}

/// Throws unless the strides are row-major.
void CheckContiguous(const SavedTensor& tensor, const std::string& what) {
  int64_t expected = 1;
  bool is_contiguous = true;
  for (size_t d = tensor.sizes.size(); d-- > 0;) {
    is_contiguous = is_contiguous && (tensor.sizes[d] <= 1 || tensor.strides[d] == expected);
    expected *= tensor.sizes[d];
  }
  if (!is_contiguous && expected != 0) {
    throw CheckpointError(what +
                          " is stored with strides that are not row-major; save it again "
                          "after .contiguous()");
  }
}

}  // namespace

void EmitTensor(PickleWriter& out, DType dtype, const std::vector<int64_t>& sizes,
                std::string_view storage) {
  out.global("torch._utils", "_rebuild_tensor_v2");
  out.mark();
  out.mark();
  out.string("storage");
  out.global("torch", InfoOf(dtype).storage);
  out.string(storage);
  out.string("cpu");
  out.integer(fsdp::plan::numel_of(sizes));
  out.tuple();
  out.persistent_id();
  out.integer(0);  // storage offset
  out.mark();
  for (const int64_t size : sizes) {
    out.integer(size);
  }
  out.tuple();
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  out.mark();
  for (const int64_t stride : strides) {
    out.integer(stride);
  }
  out.tuple();
  out.boolean(false);  // requires_grad
  out.global("collections", "OrderedDict");
  out.empty_tuple();
  out.reduce();
  out.tuple();
  out.reduce();
}

BlobFrame FrameTensor(DType dtype, const std::vector<int64_t>& sizes, uint32_t data_crc32) {
  const int64_t data_bytes = fsdp::plan::numel_of(sizes) * InfoOf(dtype).element_bytes;
  if (data_bytes > kBlobDataBytesMax) {
    throw CheckpointError("cannot store a piece of " + std::to_string(data_bytes) +
                          " bytes; pieces are cut below 4 GiB");
  }
  ZipWriter zip;
  zip.add("archive/data.pkl", TensorPickle(dtype, sizes));
  zip.add("archive/.format_version", "1");
  zip.add("archive/.storage_alignment", "64");
  zip.add("archive/byteorder", "little");
  zip.add_external("archive/data/0", static_cast<uint32_t>(data_bytes), data_crc32, kAlignment);
  BlobFrame frame;
  frame.prefix = zip.take_prefix();
  zip.add("archive/version", "3\n");
  zip.add("archive/.data/serialization_id", kSerializationId);
  frame.suffix = zip.finish();
  return frame;
}

std::string PackObject(const json& value) {
  PickleWriter pickle;
  EmitJson(pickle, value, 0);
  ZipWriter zip;
  zip.add("archive/data.pkl", pickle.finish());
  zip.add("archive/.format_version", "1");
  zip.add("archive/.storage_alignment", "64");
  zip.add("archive/byteorder", "little");
  zip.add("archive/version", "3\n");
  zip.add("archive/.data/serialization_id", kSerializationId);
  return zip.finish();
}

TensorBlob ReadTensorFrame(const ByteSource& source, const std::string& what) {
  const std::map<std::string, ZipRecord> records = read_zip(source, what);
  if (records.contains("byteorder") && ReadRecord(source, records, "byteorder", what) != "little") {
    throw CheckpointError(what + " was written on a big-endian machine, which is not read here");
  }
  const std::string pickle = ReadRecord(source, records, "data.pkl", what);
  const PickleTree tree = read_pickle(pickle, fsdp::archive::kTensorGlobals, what);
  const SavedTensor tensor = saved_tensor(tree, tree.root(), what);
  CheckContiguous(tensor, what);
  const DTypeInfo* dtype = FindDType(tensor.type->name);
  if (dtype == nullptr) {
    throw CheckpointError(what + " has elements of type " + std::string(tensor.type->name) +
                          ", which checkpoints do not use");
  }
  const auto data = records.find(tensor.record);
  if (data == records.end()) {
    throw CheckpointError(what + ": the archive has no record " + tensor.record);
  }
  check_within(tensor, data->second.byte_count, what);
  return {dtype->dtype, tensor.sizes,
          data->second.data_offset + tensor.offset * dtype->element_bytes, data->second};
}

json UnpackObject(const ByteSource& source, const std::string& what) {
  const std::map<std::string, ZipRecord> records = read_zip(source, what);
  const std::string pickle = ReadRecord(source, records, "data.pkl", what);
  const PickleTree tree = read_pickle(pickle, kObjectGlobals, what);
  return JsonBuilder(tree, pickle.size(), what).Build(tree.root());
}

}  // namespace fsdprun::checkpoint
