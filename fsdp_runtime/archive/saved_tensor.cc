#include "fsdp_runtime/archive/saved_tensor.h"

#include <algorithm>
#include <iterator>

#include "fsdp_runtime/archive/error.h"

namespace fsdp::archive {
namespace {

constexpr int64_t kElementsMax = int64_t{1} << 56;
constexpr size_t kDimensionsMax = 64;

/// Null if there is none.
const ElementType* type_named(std::string_view ElementType::*field, std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                   [&](const ElementType& type) { return !name.empty() && type.*field == name; });
  return found == std::end(kElementTypes) ? nullptr : found;
}

/// Reads the call that rebuilds one tensor.
class Description {
 public:
  Description(const PickleTree& tree, const std::string& what) : tree_(tree), what_(what) {}

  SavedTensor read(const PickleNode& node) const {
    const std::string_view function = function_of(node);
    if (function == "_rebuild_parameter") {
      const PickleNode& inner = argument(node, 0, PickleKind::kReduce);
      require(function_of(inner) != function);
      return read(inner);
    }
    const bool is_newer = function == "_rebuild_tensor_v3";
    if (!is_newer && function != "_rebuild_tensor_v2") {
      throw Error(what_ + " is not a plain tensor (torch._utils._rebuild_tensor_v2)");
    }
    SavedTensor tensor = read_storage(argument(node, 0, PickleKind::kPersistentId));
    if (is_newer) {
      tensor.type = type_named(&ElementType::name, argument(node, 6, PickleKind::kGlobal).name);
    }
    require(tensor.type != nullptr);
    tensor.offset = argument(node, 1, PickleKind::kInt).integer;
    tensor.sizes = integers(argument(node, 2, PickleKind::kTuple));
    tensor.strides = integers(argument(node, 3, PickleKind::kTuple));
    check_extent(tensor);
    check_flags(node, is_newer ? 7 : 6);
    return tensor;
  }

 private:
  void require(bool is_good) const {
    if (!is_good) {
      throw Error(what_ + " has a damaged tensor description");
    }
  }

  /// "" if it is no call.
  std::string_view function_of(const PickleNode& node) const {
    return node.kind == PickleKind::kReduce ? tree_.item(node, 0).name : std::string_view();
  }

  const PickleNode& argument(const PickleNode& call, size_t index, PickleKind kind) const {
    const PickleNode& arguments = tree_.item(call, 1);  // a tuple
    require(index < arguments.items.size());
    const PickleNode& value = tree_.item(arguments, index);
    require(value.kind == kind);
    return value;
  }

  std::vector<int64_t> integers(const PickleNode& tuple) const {
    require(tuple.items.size() <= kDimensionsMax);
    std::vector<int64_t> values;
    for (size_t i = 0; i < tuple.items.size(); ++i) {
      const PickleNode& item = tree_.item(tuple, i);
      require(item.kind == PickleKind::kInt && item.integer >= 0);
      values.push_back(item.integer);
    }
    return values;
  }

  /// ("storage", class, key, device, number of elements).
  SavedTensor read_storage(const PickleNode& id) const {
    const PickleNode& parts = tree_.item(id, 0);
    require(parts.kind == PickleKind::kTuple && parts.items.size() == 5);
    const PickleNode& type = tree_.item(parts, 1);
    const PickleNode& key = tree_.item(parts, 2);
    require(type.kind == PickleKind::kGlobal && key.kind == PickleKind::kString);
    SavedTensor tensor;
    tensor.type = type_named(&ElementType::storage, type.name);
    tensor.record = "data/" + std::string(key.text);
    return tensor;
  }

  void check_extent(const SavedTensor& tensor) const {
    require(tensor.offset >= 0 && tensor.offset < kElementsMax &&
            tensor.sizes.size() == tensor.strides.size());
    int64_t last = tensor.offset;
    int64_t numel = 1;
    for (size_t d = 0; d < tensor.sizes.size(); ++d) {
      const int64_t steps = std::max<int64_t>(tensor.sizes[d], 1) - 1;
      const int64_t stride = tensor.strides[d];
      require(steps < kElementsMax / numel &&
              (stride == 0 || steps <= (kElementsMax - 1 - last) / stride));
      numel *= steps + 1;
      last += steps * stride;
    }
  }

  /// Flags come in a dict behind the other arguments.
  void check_flags(const PickleNode& call, size_t index) const {
    const PickleNode& arguments = tree_.item(call, 1);
    if (index < arguments.items.size()) {
      const PickleNode& flags = tree_.item(arguments, index);
      if (flags.kind != PickleKind::kNone && !flags.items.empty()) {
        throw Error(what_ +
                    " is a view with flags (conjugate, negative), which are not read; save "
                    "it again after .resolve_conj().resolve_neg()");
      }
    }
  }

  const PickleTree& tree_;
  const std::string& what_;
};

}  // namespace

int64_t SavedTensor::reach() const {
  int64_t last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) {
      return offset;
    }
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

SavedTensor saved_tensor(const PickleTree& tree, const PickleNode& node, const std::string& what) {
  return Description(tree, what).read(node);
}

void check_within(const SavedTensor& tensor, int64_t record_bytes, const std::string& what) {
  if (tensor.reach() > record_bytes / tensor.type->bytes) {
    throw Error(what + " does not lie within " + tensor.record + ", which has " +
                std::to_string(record_bytes) + " bytes");
  }
}

}  // namespace fsdp::archive
