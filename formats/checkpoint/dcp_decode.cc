#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/error.h"
#include "fsdp_runtime/archive/pickle_reader.h"
#include "fsdp_runtime/archive/saved_tensor.h"

namespace fsdprun::checkpoint {
namespace {

using fsdp::archive::PickleGlobal;
using fsdp::archive::PickleKind;
using fsdp::archive::PickleNode;
using fsdp::archive::PickleTree;

constexpr int64_t kDimensionsMax = 16;
constexpr size_t kTextBytesMax = 4096;  // of a key, a file name, a part of a path
constexpr size_t kPathPartsMax = 64;

constexpr PickleGlobal kAllowed[] = {
    {kMetadataModule, "Metadata"},
    {kMetadataModule, "TensorStorageMetadata"},
    {kMetadataModule, "ChunkStorageMetadata"},
    {kMetadataModule, "TensorProperties"},
    {kMetadataModule, "BytesStorageMetadata"},
    {kMetadataModule, "MetadataIndex"},
    {kMetadataModule, "StorageMeta"},
    {kMetadataModule, "_MEM_FORMAT_ENCODING"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    {"torch", "Size"},
    {"torch.serialization", "_get_layout"},
    {"collections", "OrderedDict"},
    {"pathlib", "PosixPath"},
    {"pathlib", "PurePosixPath"},
    {"pathlib._local", "PosixPath"},
    {"torch", "float32"},
    {"torch", "float64"},
    {"torch", "float16"},
    {"torch", "bfloat16"},
    {"torch", "int64"},
    {"torch", "int32"},
    {"torch", "int16"},
    {"torch", "int8"},
    {"torch", "uint8"},
    {"torch", "uint16"},
    {"torch", "uint32"},
    {"torch", "uint64"},
    {"torch", "bool"},
    {"torch", "complex64"},
    {"torch", "complex128"},
    {"torch", "float8_e4m3fn"},
    {"torch", "float8_e5m2"},
};

using Shape = std::vector<int64_t>;
using fsdp::plan::Box;

class Decoder {
 public:
  Decoder(std::string_view bytes, const std::string& what)
      : what_(what),
        tree_(read_pickle(bytes, kAllowed, what)),
        visits_left_(16 * bytes.size() + (1 << 20)) {}

  DcpMetadata Run() {
    const PickleNode& root = tree_.root();
    ExpectObject(root, "Metadata");
    const PickleNode& version = Field(root, "version");
    if (version.kind != PickleKind::kString || version.text != "1.0.0") {
      Fail("has a version other than 1.0.0");
    }
    ReadStorage(Field(root, "storage_data"));
    ReadEntries(Field(root, "state_dict_metadata"));
    if (const PickleNode* paths = FindField(root, "planner_data");
        paths != nullptr && paths->kind != PickleKind::kNone) {
      ReadPaths(*paths);
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void Fail(const std::string& problem) const {
    throw CheckpointError(what_ + " " + problem);
  }

  /// A file may refer to one large list or string from many places; the budget keeps time and
  /// memory linear in the size of the file.
  void Visit(uint64_t bytes_copied = 0) {
    if (visits_left_ <= bytes_copied) {
      Fail("refers to shared values so often that decoding exceeds its budget");
    }
    visits_left_ -= 1 + bytes_copied;
  }

  void Expect(const PickleNode& node, PickleKind kind, const std::string& place) const {
    if (node.kind != kind) {
      Fail("has " + std::string(kind_name(node.kind)) + " as " + place + ", expected " +
           kind_name(kind));
    }
  }

  bool IsObject(const PickleNode& node, std::string_view name) const {
    return node.kind == PickleKind::kObject && tree_.item(node, 0).name == name;
  }

  void ExpectObject(const PickleNode& node, std::string_view name) const {
    if (!IsObject(node, name)) {
      Fail("has " + std::string(kind_name(node.kind)) + " where a " + std::string(name) +
           " belongs");
    }
  }

  const PickleNode* FindField(const PickleNode& object, std::string_view name) {
    if (object.items.size() < 3) {
      return nullptr;
    }
    const PickleNode& state = tree_.item(object, 2);
    if (state.kind != PickleKind::kDict) {
      return nullptr;
    }
    for (size_t i = 0; i + 1 < state.items.size(); i += 2) {
      Visit();
      const PickleNode& key = tree_.item(state, i);
      if (key.kind == PickleKind::kString && key.text == name) {
        return &tree_.item(state, i + 1);
      }
    }
    return nullptr;
  }

  const PickleNode& Field(const PickleNode& object, std::string_view name) {
    const PickleNode* field = FindField(object, name);
    if (field == nullptr) {
      Fail("lacks the field " + std::string(name) + " of a " +
           std::string(tree_.item(object, 0).name));
    }
    return *field;
  }

  std::string Text(const PickleNode& node, const std::string& place) {
    Expect(node, PickleKind::kString, place);
    if (node.text.size() > kTextBytesMax) {
      Fail("has a string of " + std::to_string(node.text.size()) + " bytes as " + place +
           ", over the bound of " + std::to_string(kTextBytesMax));
    }
    Visit(node.text.size());
    return std::string(node.text);
  }

  int64_t Count(const PickleNode& node, const std::string& place) const {
    Expect(node, PickleKind::kInt, place);
    if (node.integer < 0) {
      Fail("has the negative number " + std::to_string(node.integer) + " as " + place);
    }
    return node.integer;
  }

  /// torch.Size((a, b)) or a plain tuple.
  Shape Sizes(const PickleNode& node, const std::string& place) {
    const PickleNode* tuple = &node;
    if (node.kind == PickleKind::kReduce && tree_.item(node, 0).name == "Size" &&
        tree_.item(node, 1).items.size() == 1) {
      tuple = &tree_.item(tree_.item(node, 1), 0);
    }
    if (tuple->kind != PickleKind::kTuple && tuple->kind != PickleKind::kList) {
      Fail("has " + std::string(kind_name(tuple->kind)) + " as " + place + ", expected a size");
    }
    if (tuple->items.size() > static_cast<size_t>(kDimensionsMax)) {
      Fail("has more than " + std::to_string(kDimensionsMax) + " dimensions as " + place);
    }
    Shape sizes;
    for (size_t i = 0; i < tuple->items.size(); ++i) {
      Visit();
      sizes.push_back(Count(tree_.item(*tuple, i), place));
    }
    return sizes;
  }

  BlobLocation Location(const PickleNode& node, const std::string& key) {
    ExpectObject(node, "_StorageInfo");
    BlobLocation blob;
    blob.file = Text(Field(node, "relative_path"), "the file of " + key);
    blob.offset = Count(Field(node, "offset"), "the offset of " + key);
    blob.length = Count(Field(node, "length"), "the length of " + key);
    const PickleNode* transforms = FindField(node, "transform_descriptors");
    if (transforms != nullptr && transforms->kind != PickleKind::kNone &&
        !transforms->items.empty()) {
      Fail("stores " + key + " compressed or transformed, which is not read here");
    }
    if (blob.file.empty() || blob.file == "." || blob.file == ".." || blob.file.size() > 255 ||
        blob.file.find('/') != std::string::npos || blob.file.find('\0') != std::string::npos) {
      Fail("places " + key + " outside of the checkpoint or in no plain file ('" +
           blob.file.substr(0, 100) + "'); refused");
    }
    if (blob.offset > std::numeric_limits<int64_t>::max() - blob.length) {
      Fail("places " + key + " beyond any file's end");
    }
    return blob;
  }

  void ReadStorage(const PickleNode& node) {
    Expect(node, PickleKind::kDict, "storage_data");
    for (size_t i = 0; i < node.items.size(); i += 2) {
      Visit();
      const PickleNode& index = tree_.item(node, i);
      ExpectObject(index, "MetadataIndex");
      const std::string key = Text(Field(index, "fqn"), "the name of an item");
      const PickleNode* offset = FindField(index, "offset");
      const bool is_object = offset == nullptr || offset->kind == PickleKind::kNone;
      std::pair<std::string, Shape> place(
          key, is_object ? Shape{-1} : Sizes(*offset, "the place of " + key));
      if (!storage_.emplace(std::move(place), Location(tree_.item(node, i + 1), key)).second) {
        Fail("stores a piece of " + key + " twice");
      }
    }
  }

  void ReadEntries(const PickleNode& node) {
    Expect(node, PickleKind::kDict, "state_dict_metadata");
    for (size_t i = 0; i < node.items.size(); i += 2) {
      Visit();
      const std::string key = Text(tree_.item(node, i), "a key");
      const PickleNode& entry = tree_.item(node, i + 1);
      if (result_.tensors.contains(key) || result_.objects.contains(key)) {
        Fail("has the key " + key + " twice");
      }
      if (IsObject(entry, "BytesStorageMetadata")) {
        const auto found = storage_.find({key, Shape{-1}});
        if (found == storage_.end()) {
          Fail("does not say where " + key + " is stored");
        }
        result_.objects[key] = found->second;
      } else {
        result_.tensors[key] = ReadTensor(entry, key);
      }
    }
  }

  std::string ReadDtype(const PickleNode& properties, const std::string& key) {
    ExpectObject(properties, "TensorProperties");
    const PickleNode* state = properties.items.size() == 3 ? &tree_.item(properties, 2) : nullptr;
    if (state == nullptr || state->kind != PickleKind::kTuple || state->items.size() != 5 ||
        tree_.item(*state, 0).kind != PickleKind::kGlobal ||
        tree_.item(*state, 0).text != "torch" || tree_.item(*state, 0).name == "Size") {
      Fail("has no dtype for " + key);
    }
    return std::string(tree_.item(*state, 0).name);
  }

  StoredTensor ReadTensor(const PickleNode& entry, const std::string& key) {
    ExpectObject(entry, "TensorStorageMetadata");
    StoredTensor tensor;
    tensor.dtype = ReadDtype(Field(entry, "properties"), key);
    tensor.shape = Sizes(Field(entry, "size"), "the shape of " + key);
    const PickleNode& chunks = Field(entry, "chunks");
    Expect(chunks, PickleKind::kList, "the chunks of " + key);
    for (size_t i = 0; i < chunks.items.size(); ++i) {
      Visit();
      const PickleNode& chunk = tree_.item(chunks, i);
      ExpectObject(chunk, "ChunkStorageMetadata");
      StoredChunk stored;
      stored.box.offsets = Sizes(Field(chunk, "offsets"), "a chunk of " + key);
      stored.box.sizes = Sizes(Field(chunk, "sizes"), "a chunk of " + key);
      tensor.chunks.push_back(std::move(stored));
    }
    CheckCover(tensor, key);
    for (StoredChunk& chunk : tensor.chunks) {
      if (ElementsOf(chunk.box.sizes, key) == 0) {
        continue;  // no blob is read for it, and another piece may have the same offsets
      }
      const auto found = storage_.find({key, chunk.box.offsets});
      if (found == storage_.end()) {
        Fail("does not say where a piece of " + key + " is stored");
      }
      chunk.blob = found->second;
      CheckHolds(chunk, tensor.dtype, key);
    }
    return tensor;
  }

  /// A blob has all elements of its piece, not compressed: no small file describes a tensor that
  /// fits into no memory.
  void CheckHolds(const StoredChunk& chunk, const std::string& dtype,
                  const std::string& key) const {
    for (const fsdp::archive::ElementType& type : fsdp::archive::kElementTypes) {
      if (type.name == dtype && ElementsOf(chunk.box.sizes, key) > chunk.blob.length / type.bytes) {
        Fail("has " + std::to_string(chunk.blob.length) + " bytes in " + chunk.blob.file +
             " for a piece of " + key + " with " +
             std::to_string(ElementsOf(chunk.box.sizes, key)) + " elements of " + dtype);
      }
    }
  }

  int64_t ElementsOf(const Shape& sizes, const std::string& key) const {
    int64_t elements = 1;
    for (const int64_t size : sizes) {
      // 2^56 elements: byte counts of any dtype stay within 63 bits.
      if (size != 0 && elements > (int64_t{1} << 56) / size) {
        Fail("has an impossible size for " + key);
      }
      elements *= size;
    }
    return elements;
  }

  /// Chunks lie within the tensor, none overlap, and together they cover it.
  void CheckCover(const StoredTensor& tensor, const std::string& key) {
    const int64_t elements = ElementsOf(tensor.shape, key);
    int64_t covered = 0;
    std::vector<const Box*> boxes;
    for (const StoredChunk& chunk : tensor.chunks) {
      const Box& box = chunk.box;
      bool is_inside =
          box.offsets.size() == tensor.shape.size() && box.sizes.size() == tensor.shape.size();
      for (size_t d = 0; is_inside && d < tensor.shape.size(); ++d) {
        is_inside =
            box.offsets[d] <= tensor.shape[d] && box.sizes[d] <= tensor.shape[d] - box.offsets[d];
      }
      if (!is_inside) {
        Fail("has a piece of " + key + " outside of the tensor");
      }
      const int64_t volume = ElementsOf(box.sizes, key);
      if (volume > elements - covered) {
        Fail("has more pieces of " + key + " than the tensor has elements");
      }
      covered += volume;
      if (volume != 0) {
        boxes.push_back(&box);
      }
    }
    if (covered != elements) {
      Fail("has pieces for " + std::to_string(covered) + " of the " + std::to_string(elements) +
           " elements of " + key);
    }
    CheckDisjoint(boxes, key);
  }

  /// The dimension in which the boxes begin at the most places.
  static size_t MostDividedDimension(const std::vector<const Box*>& boxes) {
    size_t most_divided = 0;
    size_t places_max = 0;
    for (size_t d = 0; d < boxes[0]->offsets.size(); ++d) {
      std::set<int64_t> places;
      for (const Box* box : boxes) {
        places.insert(box->offsets[d]);
      }
      if (places.size() > places_max) {
        places_max = places.size();
        most_divided = d;
      }
    }
    return most_divided;
  }

  /// Sweeps along one dimension: only boxes that overlap in it are compared.
  void CheckDisjoint(std::vector<const Box*>& boxes, const std::string& key) {
    if (boxes.size() < 2 || boxes[0]->sizes.empty()) {
      return;
    }
    const size_t d = MostDividedDimension(boxes);
    std::sort(boxes.begin(), boxes.end(),
              [d](const Box* a, const Box* b) { return a->offsets[d] < b->offsets[d]; });
    for (size_t i = 0; i < boxes.size(); ++i) {
      const int64_t end = boxes[i]->offsets[d] + boxes[i]->sizes[d];
      for (size_t j = i + 1; j < boxes.size() && boxes[j]->offsets[d] < end; ++j) {
        Visit();
        if (fsdp::plan::intersect(*boxes[i], *boxes[j])) {
          Fail("has overlapping pieces of " + key);
        }
      }
    }
  }

  void ReadPaths(const PickleNode& node) {
    Expect(node, PickleKind::kDict, "planner_data");
    for (size_t i = 0; i < node.items.size(); i += 2) {
      Visit();
      const std::string key = Text(tree_.item(node, i), "a key");
      const PickleNode& path = tree_.item(node, i + 1);
      Expect(path, PickleKind::kTuple, "the path of " + key);
      if (path.items.size() > kPathPartsMax) {
        Fail("has more than " + std::to_string(kPathPartsMax) + " parts in the path of " + key);
      }
      std::vector<PathPart> parts;
      for (size_t p = 0; p < path.items.size(); ++p) {
        Visit();
        const PickleNode& part = tree_.item(path, p);
        if (part.kind == PickleKind::kInt) {
          parts.emplace_back(part.integer);
        } else {
          parts.emplace_back(Text(part, "the path of " + key));
        }
      }
      result_.paths[key] = std::move(parts);
    }
  }

  const std::string& what_;
  PickleTree tree_;
  uint64_t visits_left_;
  std::map<std::pair<std::string, Shape>, BlobLocation> storage_;  // Shape{-1}: an object
  DcpMetadata result_;
};

}  // namespace

DcpMetadata DecodeDcpMetadata(std::string_view bytes, const std::string& what) {
  return Decoder(bytes, what).Run();
}

}  // namespace fsdprun::checkpoint
