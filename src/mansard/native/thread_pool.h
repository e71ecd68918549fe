// A fixed pool of threads that all run the same step, op by op, meeting at barriers.
//
// Workers spin a little while and then sleep, so that a busy engine pays no wake-up and an idle one no processor time.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mansard {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }
  // Run job(thread) on every thread, the caller's being thread 0, and return when all are done.
  void run(const std::function<void(int)>& job);
  // Wait until every thread of the running job has come here.
  void barrier();

 private:
  void work(int thread);

  const int size_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<unsigned> generation_{0};
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> phase_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// The share [begin, end) of `count` items that falls to `thread` of `threads`.
struct Share {
  int begin, end;
  Share(int count, int thread, int threads)
      : begin(int(int64_t(count) * thread / threads)), end(int(int64_t(count) * (thread + 1) / threads)) {}
};

}  // namespace mansard
