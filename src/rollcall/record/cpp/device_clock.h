// When a GPU came to its ops and completed them: the clock of ../cuda_timing.py, in C++. It calls CUDA through torch's own
// device guard, so that it compiles without CUDA, and what most ops need straight through the driver. It neither runs Python
// nor needs the GIL.

#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>

#include "cuda_driver.h"

namespace rollcall {

using Marks = c10::SmallVector<uint64_t, 1>;  // mostly one: it takes no memory of its own then

inline uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000000000u + now.tv_nsec;
}

// The GPU has come to an op, has come to where it is waited for, or has completed it. The order is that of cuda_timing.py.
enum class Moment : uint8_t { kArrived, kWaited, kCompleted };
constexpr size_t kMoments = 3;

struct PendingEvent {
  Marks marks;
  Moment moment;
  void* event;
};

struct StreamQueue {  // the events of a stream
  explicit StreamQueue(c10::Stream stream) : stream(stream) {}

  const c10::Stream stream;
  bool is_asked = false;  // whether its handle was asked for
  std::optional<void*> handle;  // the driver's, where that can be called
  std::vector<PendingEvent> pending;
  std::vector<void*> free;
  size_t size = 0;  // how many are pending, also while they are being settled
};

class DeviceClock {
 public:
  using SetTime = std::function<void(uint64_t mark, Moment moment, uint64_t at_ns)>;

  explicit DeviceClock(SetTime set_time) : set_time_(std::move(set_time)) {}

  StreamQueue& current_stream() {
    c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    c10::Stream stream = cuda.getStream(cuda.getDevice());
    std::lock_guard<std::mutex> lock(mutex_);
    if (queues_.empty()) first_device_ = stream.device_index();
    return queues_.try_emplace({stream.device_index(), stream.id()}, stream).first->second;
  }

  // The stream, which is the current one, comes to this moment of these ops when it has done what was put into it.
  void note(StreamQueue& queue, Marks marks, Moment moment, bool can_use_driver) {
    void* event = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (queue.size == kMostPending) return;
      ++queue.size;
      if (!queue.free.empty()) {
        event = queue.free.back();
        queue.free.pop_back();
      }
    }
    record(event, queue, can_use_driver);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue.pending.push_back({std::move(marks), moment, event});
    }
    if (uint64_t base_age_ns = settles_itself) settle(base_age_ns);
  }

  // Sets the times of events that are over; a base that is older than this is replaced then. The mutex is not held while
  // CUDA is asked, so that the program does not wait.
  void settle(uint64_t base_age_ns) {
    std::unique_lock<std::mutex> settling(settling_, std::try_to_lock);
    if (!settling) return;
    std::vector<StreamQueue*> queues;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto& each : queues_) queues.push_back(&each.second);
    }
    for (auto* each : queues) settle(*each, base_age_ns);
  }

  // The device that was used first; -1 if none has been.
  int first_device() {
    std::lock_guard<std::mutex> lock(mutex_);
    return first_device_;
  }

  std::unique_ptr<CudaDriver> driver;  // set before the first handle
  std::atomic<uint64_t> settles_itself = 0;  // the age of a base, where no other thread may ask CUDA

 private:
  static constexpr size_t kMostPending = 16384;  // as in cuda_timing.py
  static constexpr uint64_t kRenewNs = 1000000;

  struct Base {
    void *event = nullptr, *next = nullptr;
    uint64_t was_ns = 0;
    std::optional<c10::Stream> stream;  // its own, so that waiting for an event waits for nothing else
  };

  using Key = std::pair<c10::DeviceIndex, c10::StreamId>;

  // Has an event completed by what is in the stream now. Torch makes one where there is none to reuse: creating one takes
  // longer than recording it.
  void record(void*& event, const StreamQueue& queue, bool can_use_driver) {
    if (event && can_use_driver) return driver->record(event, *queue.handle);
    // The default of the backend measures time, that of torch does not.
    c10::impl::VirtualGuardImpl(c10::kCUDA).record(&event, queue.stream, queue.stream.device_index(), c10::EventFlag::BACKEND_DEFAULT);
  }

  void settle(StreamQueue& queue, uint64_t base_age_ns) {
    std::vector<PendingEvent> taken;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      taken.swap(queue.pending);
    }
    if (taken.empty()) return;
    const c10::DeviceIndex device = queue.stream.device_index();
    // A query while another device is current would open a context on that one.
    c10::DeviceGuard on(c10::Device(c10::kCUDA, device));
    c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    // Events of one stream complete in order, so that a few questions are enough.
    auto end = std::partition_point(taken.begin(), taken.end(), [&](const PendingEvent& each) { return cuda.queryEvent(each.event); });
    std::vector<void*> free;
    Base& base = bases_[device];
    if (end != taken.begin() && !base.event) begin(cuda, device, base);
    for (auto each = taken.begin(); each != end; ++each) {
      uint64_t at_ns = base.was_ns + int64_t(cuda.elapsedTime(base.event, each->event, device) * 1e6);
      for (uint64_t mark : each->marks) set_time_(mark, each->moment, at_ns);
      free.push_back(each->event);
    }
    taken.erase(taken.begin(), end);
    if (!free.empty() && now_ns() - base.was_ns >= base_age_ns) renew(cuda, device, base);
    std::lock_guard<std::mutex> lock(mutex_);
    queue.size -= free.size();
    queue.free.insert(queue.free.end(), free.begin(), free.end());
    queue.pending.insert(queue.pending.begin(), std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end()));
  }

  void begin(const c10::impl::VirtualGuardImpl& cuda, c10::DeviceIndex device, Base& base) {
    // Of high priority: torch.cuda.graph captures on one of the other 32, and no event of ours may get into a graph.
    base.stream = cuda.getStreamFromGlobalPool(c10::Device(c10::kCUDA, device), /*isHighPriority=*/true);
    cuda.record(&base.event, *base.stream, device, c10::EventFlag::BACKEND_DEFAULT);
    cuda.synchronizeEvent(base.event);
    base.was_ns = now_ns();
  }

  // Does not wait for a GPU that hangs: the old base is kept then.
  void renew(const c10::impl::VirtualGuardImpl& cuda, c10::DeviceIndex device, Base& base) {
    cuda.record(&base.next, *base.stream, device, c10::EventFlag::BACKEND_DEFAULT);
    for (uint64_t until_ns = now_ns() + kRenewNs; now_ns() < until_ns;) {
      if (!cuda.queryEvent(base.next)) continue;
      std::swap(base.event, base.next);
      base.was_ns = now_ns();
      return;
    }
  }

  const SetTime set_time_;
  std::mutex mutex_;  // of the queues; held for a few stores only
  std::map<Key, StreamQueue> queues_;  // a stream that hangs does not delay the others
  int first_device_ = -1;
  std::mutex settling_;
  std::map<c10::DeviceIndex, Base> bases_;  // used by the thread that settles
};

}  // namespace rollcall
