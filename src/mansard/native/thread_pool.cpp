// The pool's spinning, sleeping and barriers.
#include "thread_pool.h"

#include <chrono>

namespace mansard {

namespace {
constexpr int kSpinsBeforeYield = 4000;
constexpr auto kSpinBeforeSleep = std::chrono::microseconds(200);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

ThreadPool::ThreadPool(int num_threads) : size_(num_threads) {
  for (int t = 1; t < size_; ++t) threads_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::run(const std::function<void(int)>& job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job_ = &job;
    generation_.fetch_add(1);
  }
  if (size_ > 1) wake_.notify_all();
  job(0);
  barrier();
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const unsigned phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kSpinsBeforeYield) pause();
    else std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  unsigned seen = 0;
  for (;;) {
    const auto start = std::chrono::steady_clock::now();
    for (int spins = 1; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      pause();
      if (spins % 64 == 0 && std::chrono::steady_clock::now() - start > kSpinBeforeSleep) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
      }
    }
    ++seen;
    if (stop_) return;
    (*job_)(thread);
    barrier();
  }
}

}  // namespace mansard
