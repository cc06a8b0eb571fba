#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <caffe2/serialize/inline_container.h>
#include <fsdp/state_dict.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <utility>

#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/archive/saved_dicts.h"
#include "fsdp_runtime/src/state_dict/new_file.h"
#include "fsdp_runtime/src/state_dict/python_dicts.h"
#include "fsdp_runtime/src/state_dict/saved_file.h"

namespace fsdp {
namespace {

/// What Python's torch.save writes, but that LibTorch's own pickle_save does not keep to: its dicts
/// have tags of types, which torch.load(weights_only=True) refuses.
void write_archive(const c10::IValue& object, const std::string& path) {
  std::string pickle;
  torch::jit::Pickler pickler(
      [&pickle](const char* data, size_t bytes) { pickle.append(data, bytes); },
      /*tensor_table=*/nullptr, /*type_renamer=*/nullptr, /*memoized_class_types=*/nullptr,
      /*get_tensor_id=*/nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(object);
  pickler.stop();
  NewFile file(path);
  {
    caffe2::serialize::PyTorchStreamWriter writer([&file](const void* data, size_t bytes) {
      file.write(data, bytes);
      return bytes;
    });
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    writer.writeRecord("byteorder", "little", 6);
    size_t number = 0;
    for (const at::Tensor& tensor : pickler.tensorData()) {
      const torch::jit::WriteableTensorData data = torch::jit::getWriteableTensorData(tensor);
      writer.writeRecord("data/" + std::to_string(number++), data.data(), data.sizeInBytes());
    }
    writer.writeEndOfFile();
  }
  file.publish();
}

template <class Dict>
void save_dict(const Dict& dict, const std::string& path) {
  at::NoGradGuard no_grad;
  c10::IValue object;
  try {
    object = python_dict_of(dict);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "save: ", path, ": ", error.what_without_backtrace());
  }
  write_archive(object, path);
}

/// `make(file)`, with the errors of a file as those of `function`.
template <class Make>
auto read_file(const char* function, const std::string& path, Make make) {
  at::NoGradGuard no_grad;
  try {
    SavedFile file(path);
    return make(file);
  } catch (const archive::Error& error) {
    C10_THROW_ERROR(
        Error, c10::str(function, ": ", error.what(),
                        " (expected: a file that fsdp::save or Python's torch.save has written)"));
  }
}

StateValue value_of(SavedFile& file, const archive::SavedState& saved) {
  if (const auto* tensor = std::get_if<archive::SavedTensor>(&saved)) {
    return file.tensor(*tensor);
  }
  const auto* number = std::get_if<double>(&saved);
  return number != nullptr ? at::full({}, *number, at::kDouble) : at::Tensor();
}

/// A learning rate may be a tensor.
double number_in(SavedFile& file, const archive::SavedTensor& saved, const std::string& option) {
  const at::Tensor tensor = file.tensor(saved);
  if (tensor.numel() != 1 || tensor.is_complex()) {
    throw archive::Error(file.path() + ": option \"" + option + "\" is a tensor of " +
                         std::to_string(tensor.numel()) + " elements, one number expected");
  }
  return tensor.item().to<double>();
}

OptimizerParamGroup group_of(SavedFile& file, const archive::SavedGroup& saved) {
  OptimizerParamGroup group{saved.params, {}};
  for (const auto& [name, option] : saved.options) {
    group.options[name] = std::visit(
        [&, &name = name](const auto& held) -> OptionValue {
          if constexpr (std::is_same_v<std::decay_t<decltype(held)>, archive::SavedTensor>) {
            return number_in(file, held, name);
          } else {
            return held;
          }
        },
        option);
  }
  return group;
}

}  // namespace

void save(const ModelStateDict& state_dict, const std::string& path) {
  save_dict(state_dict, path);
}

void save(const OptimizerStateDict& state_dict, const std::string& path) {
  save_dict(state_dict, path);
}

ModelStateDict load(const std::string& path) {
  return read_file("load", path, [](SavedFile& file) {
    ModelStateDict dict("Tensor");
    for (const auto& [name, tensor] : archive::read_saved_model(file.pickle(), file.path())) {
      dict.insert(name, file.tensor(tensor));
    }
    return dict;
  });
}

OptimizerStateDict load_optimizer(const std::string& path) {
  return read_file("load_optimizer", path, [](SavedFile& file) {
    const archive::SavedOptimizer saved = archive::read_saved_optimizer(file.pickle(), file.path());
    OptimizerStateDict dict;
    for (const auto& [fqn, states] : saved.state) {
      torch::OrderedDict<std::string, StateValue> entries("State");
      for (const auto& [name, state] : states) {
        entries.insert(name, value_of(file, state));
      }
      dict.state.insert(fqn, std::move(entries));
    }
    for (const archive::SavedGroup& group : saved.groups) {
      dict.param_groups.push_back(group_of(file, group));
    }
    return dict;
  });
}

}  // namespace fsdp
