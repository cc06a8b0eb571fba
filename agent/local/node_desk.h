#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/local/log_tail.h"
#include "agent/local/stack_reader.h"
#include "agent/local/worker_vitals.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "fsdprun/v1/aside.pb.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// Answers what the coordinator asks an agent for those who watch the job (see NodeAsides): what
/// workers write, what they are doing, how they are, and that they are to save. Costs nothing while
/// nobody asks, and is asked anew by each stream. Thread: loop thread only.
class NodeDesk {
 public:
  /// A worker of the present generation.
  struct Worker {
    int rank = 0;
    int local_rank = 0;
    /// 0: it does not run.
    pid_t pid = 0;
    /// Its log files; empty: what it writes is not kept.
    std::string stdout_path;
    std::string stderr_path;
  };
  struct Hooks {
    std::function<Generation()> generation;
    std::function<std::vector<Worker>()> workers;
    /// Tells the workers to save; returns how many were told.
    std::function<int()> ask_to_save;
    /// Does not block.
    std::function<v1::NodeVitals()> read_vitals;
    std::function<void(const v1::FromNodeAside& aside)> send;
    /// See CoordinatorLink.
    std::function<size_t()> unwritten;
  };

  /// More questions at once are refused: each that follows logs has a thread.
  static constexpr size_t kQuestionsMax = 16;
  static constexpr Duration kLastWords = std::chrono::milliseconds(100);
  /// While more messages than that wait to be sent, no more are made.
  static constexpr size_t kUnwrittenMax = 8;

  /// `find_programs`: see StackReader.
  NodeDesk(EventLoop& loop, std::function<StackReader::Programs()> find_programs, Hooks hooks);
  ~NodeDesk();
  NodeDesk(const NodeDesk&) = delete;
  NodeDesk& operator=(const NodeDesk&) = delete;

  void Hear(const v1::ToNodeAside& aside);
  /// What was asked on the last stream is wanted no more.
  void StreamLost();
  /// Workers of another generation are about to start, or have been found.
  void WorkersBegan();
  /// What a worker has told of a checkpoint.
  struct ToldCheckpoint {
    int rank = 0;
    int64_t step = -1;
    std::string path;
    /// Why there is none; empty: there is one.
    std::string error;
  };
  void CheckpointTold(const ToldCheckpoint& told);
  /// The coordinator is about to be told that this agent leaves: tells what is left of logs that
  /// are followed. Takes kLastWords at most.
  void TellTheRest();

 private:
  struct Question {
    std::vector<int> ranks;
    std::unique_ptr<LogTail> tail;
    bool awaits_checkpoint = false;
    /// False once nobody waits for the answers.
    std::shared_ptr<std::atomic<bool>> is_wanted = std::make_shared<std::atomic<bool>>(true);

    Question() = default;
    Question(Question&&) = default;
    Question& operator=(Question&&) = default;
    ~Question() {
      if (is_wanted != nullptr) {
        *is_wanted = false;
      }
    }
  };

  void AnswerLogs(uint64_t id, const v1::LogsQuestion& question);
  void AnswerStacks(uint64_t id, const v1::StacksQuestion& question);
  void AnswerSave(uint64_t id);
  void TellVitals();
  void Refuse(uint64_t id, const std::string& why);
  void Send(uint64_t id, v1::NodeAnswer answer);
  std::vector<Worker> WorkersOf(const std::vector<int>& ranks) const;
  std::vector<TailedLog> LogsOf(uint64_t id, const std::vector<int>& ranks);
  bool IsWanted(uint64_t id) const { return questions_.count(id) > 0; }

  // Constant after construction.
  EventLoop& loop_;
  const Hooks hooks_;

  // Owned by the loop thread.
  StackReader stacks_;
  std::map<uint64_t, Question> questions_;
  VitalsBeat vitals_;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
