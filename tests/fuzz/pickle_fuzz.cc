// Bytes -> pickle tree. Properties: indices are in range; a tree written by PickleWriter reads back
// as the same tree.

#include <bit>
#include <string>

#include "base/check.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/archive/pickle_reader.h"
#include "fsdp_runtime/archive/pickle_writer.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdp::archive {
namespace {

constexpr PickleGlobal kAllowed[] = {{"collections", "OrderedDict"},
                                     {"torch", "Size"},
                                     {"torch", "float32"},
                                     {"torch._utils", "_rebuild_tensor_v2"}};
/// Nodes may be shared or cyclic, so writing a tree out is bounded.
constexpr int kRewrittenNodesMax = 20'000;
constexpr int kRewrittenDepthMax = 200;

/// Writes a tree with PickleWriter, a shared node once per reference.
class Rewriter {
 public:
  explicit Rewriter(const PickleTree& tree) : tree_(tree) {}

  /// False if the tree is cyclic, too large, or contains bytes, which PickleWriter cannot write.
  bool Write(const PickleNode& node, int depth = 0) {
    if (depth > kRewrittenDepthMax || ++nodes_ > kRewrittenNodesMax) {
      return false;
    }
    switch (node.kind) {
      case PickleKind::kBytes:
        return false;
      case PickleKind::kTuple:
        return WriteItems(node, depth) && (out_.tuple(), true);
      case PickleKind::kList:
        out_.empty_list();
        return WriteItems(node, depth) && (out_.appends(), true);
      case PickleKind::kDict:
        out_.empty_dict();
        return WriteItems(node, depth) && (out_.set_items(), true);
      case PickleKind::kReduce:
      case PickleKind::kObject:
        return WriteCall(node, depth);
      case PickleKind::kPersistentId:
        return Write(tree_.item(node, 0), depth + 1) && (out_.persistent_id(), true);
      default:
        WriteScalar(node);
        return true;
    }
  }
  std::string Finish() { return out_.finish(); }

 private:
  bool WriteItems(const PickleNode& node, int depth) {
    out_.mark();
    for (size_t i = 0; i < node.items.size(); ++i) {
      if (!Write(tree_.item(node, i), depth + 1)) {
        return false;
      }
    }
    return true;
  }
  bool WriteCall(const PickleNode& node, int depth) {
    FSDPRUN_CHECK(node.items.size() == 2 || node.items.size() == 3,
                  "a call has callable, arguments and optional state");
    if (!Write(tree_.item(node, 0), depth + 1) || !Write(tree_.item(node, 1), depth + 1)) {
      return false;
    }
    node.kind == PickleKind::kReduce ? out_.reduce() : out_.new_object();
    if (node.items.size() == 3) {
      return Write(tree_.item(node, 2), depth + 1) && (out_.build(), true);
    }
    return true;
  }
  void WriteScalar(const PickleNode& node) {
    switch (node.kind) {
      case PickleKind::kNone:
        return out_.none();
      case PickleKind::kBool:
        return out_.boolean(node.integer != 0);
      case PickleKind::kInt:
        return out_.integer(node.integer);
      case PickleKind::kUInt:
        return out_.unsigned_integer(static_cast<uint64_t>(node.integer));
      case PickleKind::kFloat:
        return out_.real(node.real);
      case PickleKind::kString:
        return out_.string(node.text);
      case PickleKind::kGlobal:
        return out_.global(node.text, node.name);
      default:
        FSDPRUN_CHECK(false, "unhandled node kind");
    }
  }

  const PickleTree& tree_;
  PickleWriter out_;
  int nodes_ = 0;
};

void CheckSame(const PickleTree& a, const PickleNode& x, const PickleTree& b, const PickleNode& y) {
  FSDPRUN_CHECK(x.kind == y.kind && x.integer == y.integer && x.text == y.text && x.name == y.name,
                "node differs after a round trip");
  FSDPRUN_CHECK(std::bit_cast<uint64_t>(x.real) == std::bit_cast<uint64_t>(y.real),
                "float differs after a round trip");
  FSDPRUN_CHECK(x.items.size() == y.items.size(), "item count differs after a round trip");
  for (size_t i = 0; i < x.items.size(); ++i) {
    CheckSame(a, a.item(x, i), b, b.item(y, i));
  }
}

void CheckIndices(const PickleTree& tree) {
  for (uint32_t i = 0; i < tree.size(); ++i) {
    for (const uint32_t item : tree.at(i).items) {
      FSDPRUN_CHECK(item < tree.size(), "item index out of range");
    }
    FSDPRUN_CHECK(tree.at(i).kind != PickleKind::kDict || tree.at(i).items.size() % 2 == 0,
                  "dict key without value");
  }
}

void Fuzz(std::string_view input) {
  PickleTree tree;
  try {
    const fsdprun::fuzz::MemoryBound bound((64 << 10) + 512 * input.size());
    tree = read_pickle(input, kAllowed, "the file");
  } catch (const Error& error) {
    FSDPRUN_CHECK(fsdprun::fuzz::IsOneLine(error.what()), "error message is not one line");
    return;
  }
  CheckIndices(tree);
  Rewriter rewriter(tree);
  if (rewriter.Write(tree.root())) {
    const std::string written = rewriter.Finish();
    const PickleTree again = read_pickle(written, kAllowed, "the rewritten file");
    CheckSame(tree, tree.root(), again, again.root());
  }
}

}  // namespace
}  // namespace fsdp::archive

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdp::archive::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
