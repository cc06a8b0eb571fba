#include "worker/checkpoint/torch_blob.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "fsdp_runtime/plan/box.h"
#include "worker/checkpoint/error.h"
#include "worker/checkpoint/pickle_reader.h"
#include "worker/checkpoint/pickle_writer.h"
#include "worker/checkpoint/zip_archive.h"

namespace fsdprun::worker::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kAlignment = 64;
constexpr int kBlobDepthMax = 64;
constexpr int64_t kPickleBytesMax = int64_t{64} << 20;

// torch uses the id only to tell archives apart in its logs; a constant makes the bytes depend on
// the data alone.
constexpr std::string_view kSerializationId = "0000000000000000000000000000000000000000";

constexpr PickleGlobal kTensorGlobals[] = {
    {"torch._utils", "_rebuild_tensor_v2"},
    {"collections", "OrderedDict"},
    {"torch", "Size"},
    {"torch", "FloatStorage"},
    {"torch", "DoubleStorage"},
    {"torch", "HalfStorage"},
    {"torch", "BFloat16Storage"},
    {"torch", "LongStorage"},
    {"torch", "IntStorage"},
    {"torch", "ShortStorage"},
    {"torch", "CharStorage"},
    {"torch", "ByteStorage"},
    {"torch", "BoolStorage"},
};

constexpr PickleGlobal kObjectGlobals[] = {{"collections", "OrderedDict"}};

std::string TensorPickle(DType dtype, const std::vector<int64_t>& sizes) {
  PickleWriter out;
  out.Global("torch._utils", "_rebuild_tensor_v2");
  out.Mark();
  out.Mark();
  out.String("storage");
  out.Global("torch", InfoOf(dtype).storage);
  out.String("0");
  out.String("cpu");
  out.Int(fsdp::plan::numel_of(sizes));
  out.Tuple();
  out.PersistentId();
  out.Int(0);  // storage offset
  out.Mark();
  for (const int64_t size : sizes) {
    out.Int(size);
  }
  out.Tuple();
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  out.Mark();
  for (const int64_t stride : strides) {
    out.Int(stride);
  }
  out.Tuple();
  out.Bool(false);  // requires_grad
  out.Global("collections", "OrderedDict");
  out.EmptyTuple();
  out.Reduce();
  out.Tuple();
  out.Reduce();
  return out.Finish();
}

void EmitScalar(PickleWriter& out, const json& value) {
  switch (value.type()) {
    case json::value_t::string:
      out.String(value.get_ref<const std::string&>());
      return;
    case json::value_t::boolean:
      out.Bool(value.get<bool>());
      return;
    case json::value_t::number_integer:
      out.Int(value.get<int64_t>());
      return;
    case json::value_t::number_unsigned:
      out.UInt(value.get<uint64_t>());
      return;
    case json::value_t::number_float:
      if (!std::isfinite(value.get<double>())) {
        throw CheckpointError("cannot store NaN or infinity in the training state");
      }
      out.Float(value.get<double>());
      return;
    default:
      out.None();
      return;
  }
}

void EmitJson(PickleWriter& out, const json& value, int depth) {
  if (depth > kBlobDepthMax) {
    throw CheckpointError("cannot store a JSON value that is nested deeper than " +
                          std::to_string(kBlobDepthMax));
  }
  if (value.is_object()) {
    out.EmptyDict();
    out.Mark();
    for (const auto& [key, item] : value.items()) {
      out.String(key);
      EmitJson(out, item, depth + 1);
    }
    out.SetItems();
  } else if (value.is_array()) {
    out.EmptyList();
    out.Mark();
    for (const json& item : value) {
      EmitJson(out, item, depth + 1);
    }
    out.Appends();
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
        throw CheckpointError(what_ + " holds " + KindName(node.kind) +
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

std::string ReadRecord(const BlobSource& source, const std::map<std::string, ZipRecord>& records,
                       const std::string& name, const std::string& what) {
  const auto found = records.find(name);
  if (found == records.end() || found->second.byte_count > kPickleBytesMax) {
    throw CheckpointError(what + ": the archive has no record " + name + " of a plausible size");
  }
  CheckCrc(source, found->second, what + ", record " + name + ",");
  std::string bytes(static_cast<size_t>(found->second.byte_count), '\0');
  source.Read(found->second.data_offset, bytes.data(), found->second.byte_count);
  return bytes;
}

std::vector<int64_t> Integers(const PickleTree& tree, const PickleNode& tuple,
                              const std::string& what) {
  std::vector<int64_t> values;
  bool is_good = tuple.kind == PickleKind::kTuple && tuple.items.size() <= 16;
  for (size_t i = 0; is_good && i < tuple.items.size(); ++i) {
    const PickleNode& item = tree.item(tuple, i);
    is_good = item.kind == PickleKind::kInt && item.integer >= 0;
    values.push_back(item.integer);
  }
  if (!is_good) {
    throw CheckpointError(what + " has a damaged tensor description");
  }
  return values;
}

struct TensorDescription {
  const DTypeInfo* dtype = nullptr;
  std::string record;
  int64_t storage_offset = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

TensorDescription Describe(const PickleTree& tree, const std::string& what) {
  const auto require = [&](bool is_good) {
    if (!is_good) {
      throw CheckpointError(what + " is not a plain tensor (torch._utils._rebuild_tensor_v2)");
    }
  };
  const PickleNode& call = tree.root();
  require(call.kind == PickleKind::kReduce && tree.item(call, 0).name == "_rebuild_tensor_v2");
  const PickleNode& arguments = tree.item(call, 1);
  require(arguments.items.size() >= 4);
  const PickleNode& id = tree.item(arguments, 0);
  require(id.kind == PickleKind::kPersistentId);
  const PickleNode& storage = tree.item(id, 0);
  require(storage.kind == PickleKind::kTuple && storage.items.size() == 5);
  const PickleNode& type = tree.item(storage, 1);
  const PickleNode& record = tree.item(storage, 2);
  const PickleNode& offset = tree.item(arguments, 1);
  require(type.kind == PickleKind::kGlobal && record.kind == PickleKind::kString &&
          offset.kind == PickleKind::kInt && offset.integer >= 0);
  TensorDescription description;
  description.dtype = FindStorage(type.name);
  require(description.dtype != nullptr);
  description.record = std::string(record.text);
  description.storage_offset = offset.integer;
  description.sizes = Integers(tree, tree.item(arguments, 2), what);
  description.strides = Integers(tree, tree.item(arguments, 3), what);
  require(description.sizes.size() == description.strides.size());
  return description;
}

/// Number of elements; throws unless the strides are row-major.
int64_t CheckContiguous(const TensorDescription& tensor, const std::string& what) {
  int64_t expected = 1;
  bool is_contiguous = true;
  for (size_t d = tensor.sizes.size(); d-- > 0;) {
    is_contiguous = is_contiguous && (tensor.sizes[d] <= 1 || tensor.strides[d] == expected);
    if (tensor.sizes[d] != 0 && expected > (int64_t{1} << 56) / tensor.sizes[d]) {
      throw CheckpointError(what + " has an impossible size");
    }
    expected *= tensor.sizes[d];
  }
  if (!is_contiguous && expected != 0) {
    throw CheckpointError(what +
                          " is stored with strides that are not row-major; save it again "
                          "after .contiguous()");
  }
  return expected;
}

}  // namespace

uint32_t Crc32(uint32_t crc, const void* data, size_t byte_count) {
  return static_cast<uint32_t>(crc32_z(crc, static_cast<const unsigned char*>(data), byte_count));
}

BlobFrame FrameTensor(DType dtype, const std::vector<int64_t>& sizes, uint32_t data_crc32) {
  const int64_t data_bytes = fsdp::plan::numel_of(sizes) * InfoOf(dtype).element_bytes;
  if (data_bytes > kBlobDataBytesMax) {
    throw CheckpointError("cannot store a piece of " + std::to_string(data_bytes) +
                          " bytes; pieces are cut below 4 GiB");
  }
  ZipWriter zip;
  zip.Add("archive/data.pkl", TensorPickle(dtype, sizes));
  zip.Add("archive/.format_version", "1");
  zip.Add("archive/.storage_alignment", "64");
  zip.Add("archive/byteorder", "little");
  zip.AddExternal("archive/data/0", static_cast<uint32_t>(data_bytes), data_crc32, kAlignment);
  BlobFrame frame;
  frame.prefix = zip.TakePrefix();
  zip.Add("archive/version", "3\n");
  zip.Add("archive/.data/serialization_id", kSerializationId);
  frame.suffix = zip.Finish();
  return frame;
}

std::string PackObject(const json& value) {
  PickleWriter pickle;
  EmitJson(pickle, value, 0);
  ZipWriter zip;
  zip.Add("archive/data.pkl", pickle.Finish());
  zip.Add("archive/.format_version", "1");
  zip.Add("archive/.storage_alignment", "64");
  zip.Add("archive/byteorder", "little");
  zip.Add("archive/version", "3\n");
  zip.Add("archive/.data/serialization_id", kSerializationId);
  return zip.Finish();
}

TensorBlob ReadTensorFrame(const BlobSource& source, const std::string& what) {
  const std::map<std::string, ZipRecord> records = ReadZip(source, what);
  if (records.contains("byteorder") && ReadRecord(source, records, "byteorder", what) != "little") {
    throw CheckpointError(what + " was written on a big-endian machine, which is not read here");
  }
  const std::string pickle = ReadRecord(source, records, "data.pkl", what);
  const PickleTree tree = ReadPickle(pickle, kTensorGlobals, what);
  const TensorDescription tensor = Describe(tree, what);
  const int64_t elements = CheckContiguous(tensor, what);
  const auto data = records.find("data/" + tensor.record);
  const int64_t element_bytes = tensor.dtype->element_bytes;
  if (data == records.end() || tensor.storage_offset > (int64_t{1} << 56) ||
      (tensor.storage_offset + elements) * element_bytes > data->second.byte_count) {
    throw CheckpointError(what + " lacks the bytes of its tensor");
  }
  return {tensor.dtype->dtype, tensor.sizes,
          data->second.data_offset + tensor.storage_offset * element_bytes, data->second};
}

json UnpackObject(const BlobSource& source, const std::string& what) {
  const std::map<std::string, ZipRecord> records = ReadZip(source, what);
  const std::string pickle = ReadRecord(source, records, "data.pkl", what);
  const PickleTree tree = ReadPickle(pickle, kObjectGlobals, what);
  return JsonBuilder(tree, pickle.size(), what).Build(tree.root());
}

}  // namespace fsdprun::worker::checkpoint
