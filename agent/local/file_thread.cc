#include "agent/local/file_thread.h"

#include <system_error>
#include <utility>

namespace fsdprun {

FileThread::FileThread(EventLoop& loop, Duration end_limit)
    : end_limit_(end_limit), shared_(std::make_shared<Shared>(loop)) {}

FileThread::~FileThread() {
  bool has_ended = false;
  {
    MutexLock lock(shared_->mu);
    shared_->is_ending = true;
    shared_->changed.NotifyAll();
    has_ended = !thread_.joinable() ||
                shared_->changed.WaitUntil(
                    shared_->mu, MonoNow() + end_limit_,
                    [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return shared_->has_ended; });
  }
  if (thread_.joinable() && has_ended) {
    thread_.join();
  } else if (thread_.joinable()) {
    thread_.detach();  // It hangs in the kernel; nothing can end it but the end of the process.
  }
}

void FileThread::Run(Closure task, Closure then) {
  {
    MutexLock lock(shared_->mu);
    shared_->tasks.push_back({std::move(task), std::move(then)});
    shared_->changed.NotifyAll();
  }
  if (!thread_.joinable()) {
    StartThread();
  }
}

void FileThread::StartThread() {
  try {
    thread_ = std::thread([shared = shared_] { ThreadMain(shared); });
  } catch (const std::system_error&) {
    // This machine, or the job's share of it, has no room for a thread now: to do it here is
    // better than to end. The next task tries again.
    DoNext(shared_);
  }
}

void FileThread::RunFinished() { RunFinished(*shared_); }

bool FileThread::Await(MonoTime deadline) {
  {
    MutexLock lock(shared_->mu);
    if (!shared_->changed.WaitUntil(shared_->mu, deadline, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return !shared_->finished.empty();
        })) {
      return false;
    }
  }
  RunFinished();
  return true;
}

void FileThread::ThreadMain(const std::shared_ptr<Shared>& shared) {
  while (DoNext(shared)) {
  }
  std::deque<Task> dropped;
  {
    MutexLock lock(shared->mu);
    dropped.swap(shared->tasks);
  }
  // What tasks own (open files) is freed here, not on the loop, which does not wait for it either.
  dropped.clear();
  MutexLock lock(shared->mu);
  shared->has_ended = true;
  shared->changed.NotifyAll();
}

/// False when the object is being destroyed.
bool FileThread::DoNext(const std::shared_ptr<Shared>& shared) {
  Task task;
  {
    MutexLock lock(shared->mu);
    shared->changed.Wait(shared->mu, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return shared->is_ending || !shared->tasks.empty();
    });
    if (shared->is_ending) {
      return false;
    }
    task = std::move(shared->tasks.front());
    shared->tasks.pop_front();
  }
  task.work();
  task.work = nullptr;
  MutexLock lock(shared->mu);
  if (shared->is_ending) {
    return false;
  }
  shared->finished.push_back(std::move(task.then));
  shared->changed.NotifyAll();
  // Under the lock, because the destructor of this object makes the loop unusable.
  shared->loop.Post([shared] { RunFinished(*shared); });
  return true;
}

void FileThread::RunFinished(Shared& shared) {
  std::deque<Closure> finished;
  {
    MutexLock lock(shared.mu);
    if (shared.is_ending) {
      return;
    }
    finished.swap(shared.finished);
  }
  for (Closure& then : finished) {
    then();
  }
}

}  // namespace fsdprun
