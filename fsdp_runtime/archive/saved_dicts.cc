#include "fsdp_runtime/archive/saved_dicts.h"

#include <set>
#include <unordered_map>

#include "fsdp_runtime/archive/error.h"

namespace fsdp::archive {
namespace {

/// For messages.
std::string quoted(std::string_view text) {
  constexpr size_t kCharsMax = 200;
  return '"' + std::string(text.substr(0, kCharsMax)) + (text.size() > kCharsMax ? "...\"" : "\"");
}

class DictReader {
 public:
  DictReader(std::string_view pickle, const std::string& what)
      : what_(what),
        tree_(read_pickle(pickle, kTensorGlobals, what)),
        visits_left_(8 * pickle.size() + 4096) {}

  SavedModel read_model() {
    SavedModel model;
    for_items(tree_.root(), "its object", [&](std::string_view key, const PickleNode& value) {
      if (!is_tensor(value)) {
        fail("its " + quoted(key) + " is " + kind_name(value.kind) +
             ", a tensor expected: save the model's state dict alone, and read an optimizer's with "
             "load_optimizer");
      }
      model.emplace_back(key, tensor_of(value, quoted(key)));
    });
    return model;
  }

  SavedOptimizer read_optimizer() {
    SavedOptimizer optimizer;
    std::set<std::string_view> found;
    for_items(tree_.root(), "its object", [&](std::string_view key, const PickleNode& value) {
      if (key == "state") {
        read_states(value, optimizer);
      } else if (key == "param_groups") {
        read_groups(value, optimizer);
      } else {
        return;
      }
      found.insert(key);
    });
    if (found.size() != 2) {
      fail("it has no \"state\" and \"param_groups\", which an optimizer's state dict has");
    }
    return optimizer;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw Error(what_ + ": " + problem); }

  /// One object may be referred to from many places: the budget keeps time and memory linear in the
  /// size of the file.
  void visit(size_t copied) {
    if (visits_left_ <= copied) {
      fail("it refers to the same objects too often");
    }
    visits_left_ -= 1 + copied;
  }

  void expect(const PickleNode& node, PickleKind kind, const std::string& place) const {
    if (node.kind != kind) {
      fail(place + " is " + kind_name(node.kind) + ", " + kind_name(kind) + " expected");
    }
  }

  /// Calls `use(key, value)` for each item of a dict, whose keys are names.
  template <class Use>
  void for_items(const PickleNode& dict, const std::string& place, Use use) {
    expect(dict, PickleKind::kDict, place);
    std::set<std::string_view> seen;
    for (size_t i = 0; i < dict.items.size(); i += 2) {
      const PickleNode& key = tree_.item(dict, i);
      if (key.kind == PickleKind::kInt) {
        fail(place +
             " has numbers as keys, names expected: this is optimizer.state_dict(); save "
             "what torch.distributed.checkpoint.state_dict.get_optimizer_state_dict returns");
      }
      expect(key, PickleKind::kString, "a key of " + place);
      visit(key.text.size());
      if (!seen.insert(key.text).second) {
        fail(place + " has the key " + quoted(key.text) + " twice");
      }
      use(key.text, tree_.item(dict, i + 1));
    }
  }

  /// `place` names it in errors.
  SavedTensor tensor_of(const PickleNode& node, const std::string& place) {
    auto found = tensors_.find(&node);
    if (found == tensors_.end()) {
      found = tensors_.emplace(&node, saved_tensor(tree_, node, what_ + ": " + place)).first;
    }
    visit(2 * found->second.sizes.size() + found->second.record.size());
    return found->second;
  }

  double number_of(const PickleNode& node, const std::string& place) const {
    if (node.kind != PickleKind::kInt && node.kind != PickleKind::kFloat) {
      fail(place + " is " + kind_name(node.kind) + ", a number expected");
    }
    return node.kind == PickleKind::kInt ? static_cast<double>(node.integer) : node.real;
  }

  void read_states(const PickleNode& node, SavedOptimizer& optimizer) {
    for_items(node, "\"state\"", [&](std::string_view fqn, const PickleNode& states) {
      auto& entries = optimizer.state.emplace_back().second;
      optimizer.state.back().first = fqn;
      for_items(states, "the state of " + quoted(fqn),
                [&](std::string_view name, const PickleNode& state) {
                  entries.emplace_back(name, state_of(state, quoted(fqn) + "." + quoted(name)));
                });
    });
  }

  /// Older optimizers count in plain numbers.
  SavedState state_of(const PickleNode& node, const std::string& place) {
    if (node.kind == PickleKind::kNone) {
      return std::monostate();
    }
    if (is_tensor(node)) {
      return tensor_of(node, place);
    }
    return number_of(node, place);
  }

  void read_groups(const PickleNode& list, SavedOptimizer& optimizer) {
    expect(list, PickleKind::kList, "\"param_groups\"");
    for (size_t i = 0; i < list.items.size(); ++i) {
      const std::string place = "param group " + std::to_string(i);
      SavedGroup& group = optimizer.groups.emplace_back();
      visit(0);
      for_items(tree_.item(list, i), place, [&](std::string_view key, const PickleNode& value) {
        if (key == "params") {
          group.params = names_of(value, "\"params\" of " + place);
        } else {
          group.options.emplace(key, option_of(value, "option " + quoted(key) + " of " + place));
        }
      });
    }
  }

  std::vector<std::string> names_of(const PickleNode& list, const std::string& place) {
    expect(list, PickleKind::kList, place);
    std::vector<std::string> names;
    for (size_t i = 0; i < list.items.size(); ++i) {
      const PickleNode& name = tree_.item(list, i);
      if (name.kind != PickleKind::kString) {
        fail(place + " has " + kind_name(name.kind) +
             ", names expected: save what torch.distributed.checkpoint.state_dict."
             "get_optimizer_state_dict returns");
      }
      visit(name.text.size());
      names.emplace_back(name.text);
    }
    return names;
  }

  SavedOption option_of(const PickleNode& node, const std::string& place) {
    switch (node.kind) {
      case PickleKind::kNone:
        return std::monostate();
      case PickleKind::kBool:
        return node.integer != 0;
      case PickleKind::kInt:
        return node.integer;
      case PickleKind::kFloat:
        return node.real;
      case PickleKind::kString:
        visit(node.text.size());
        return std::string(node.text);
      case PickleKind::kTuple:
      case PickleKind::kList: {
        std::vector<double> values;
        for (size_t i = 0; i < node.items.size(); ++i) {
          visit(0);
          values.push_back(number_of(tree_.item(node, i), place));
        }
        return values;
      }
      case PickleKind::kReduce:  // a learning rate may be a tensor
        return tensor_of(node, place);
      default:
        fail(place + " is " + kind_name(node.kind) + ", a plain value expected");
    }
  }

  const std::string& what_;
  const PickleTree tree_;
  size_t visits_left_;
  // Looked up only, never iterated: a description may stand for many tensors that are tied.
  std::unordered_map<const PickleNode*, SavedTensor> tensors_;
};

}  // namespace

SavedModel read_saved_model(std::string_view pickle, const std::string& what) {
  return DictReader(pickle, what).read_model();
}

SavedOptimizer read_saved_optimizer(std::string_view pickle, const std::string& what) {
  return DictReader(pickle, what).read_optimizer();
}

}  // namespace fsdp::archive
