#include "formats/tensors/safetensors_tensors.h"

#include "formats/checkpoint/file_system.h"
#include "formats/tensors/dtype_names.h"

namespace fsdprun {

SafetensorsTensors::SafetensorsTensors(const std::filesystem::path& path) {
  if (checkpoint::DirectoryExists(path.string())) {
    model_ = std::make_unique<SafetensorsModel>(path);
    for (const auto& [name, located] : model_->tensors()) {
      Add(name, *located.file, *located.entry);
    }
    return;
  }
  file_ = std::make_unique<SafetensorsFile>(path);
  for (const auto& [name, entry] : file_->header().tensors) {
    Add(name, *file_, entry);
  }
}

void SafetensorsTensors::Add(const std::string& name, const SafetensorsFile& file,
                             const SafetensorsEntry& entry) {
  located_[name] = {&file, &entry};
  const DtypeNames* dtype = FindSafetensorsDtype(entry.dtype);
  tensors_[name] = {dtype == nullptr ? entry.dtype : std::string(dtype->torch),
                    entry.shape,
                    1,
                    {std::filesystem::path(file.path()).filename().string()}};
}

void SafetensorsTensors::Read(const std::string& name, int64_t begin, int64_t count, void* out) {
  const SafetensorsModel::Located& located = located_.at(name);
  const int64_t bytes = ElementBytes(tensors_.at(name).dtype, name);
  located.file->Read(located.entry->begin + begin * bytes, count * bytes, out);
}

}  // namespace fsdprun
