#pragma once

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

/// The modules of one unit, and how far one forward of it has come: it begins when the first of
/// them is called and ends when each has been (FSDP2's modules_to_run_forward). A module may be
/// called again meanwhile. Holds the modules weakly. Thread: the rank's.
class ModulesToRun {
 public:
  explicit ModulesToRun(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  /// Those that still exist, in the order of the constructor.
  std::vector<std::shared_ptr<torch::nn::Module>> alive() const;
  bool are_gone() const;
  bool are_several() const { return modules_.size() > 1; }
  /// For messages.
  void set_name(const torch::nn::Module& module, const std::string& name);

  bool is_running(const torch::nn::Module& module) const;
  /// A call of `module` begins. Whether it is the first of a forward.
  bool begin(const torch::nn::Module& module);
  /// It ends. Whether the forward has ended with it.
  bool end(const torch::nn::Module& module);
  /// Whether `module` was the first to be called in the latest forward.
  bool was_first(const torch::nn::Module& module) const { return first_ == &module; }
  /// Whether a forward has begun and not ended.
  bool is_open() const { return is_open_; }
  /// The names of those that the open forward waits for, separated by commas.
  std::string names_left() const;
  /// Ends an open forward.
  void clear();

 private:
  struct One {
    std::weak_ptr<torch::nn::Module> module;
    const torch::nn::Module* key = nullptr;
    std::string name;
    bool is_left = false;
    int running = 0;  // calls that have begun and not ended
  };

  One& find(const torch::nn::Module& module);

  std::vector<One> modules_;
  const torch::nn::Module* first_ = nullptr;
  bool is_open_ = false;
};

}  // namespace fsdp
