// The device guard of a CUDA device that is not there, and its driver, for test_cuda_timing.py: they count what is asked of
// them. A context is opened on whatever device is current when something is asked, as CUDA does it.

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

struct Event {
  int device = -1;
  bool is_stuck = false;
};

int current = 0, stream_id = 0, event_count = 0, query_count = 0;
bool is_stuck = false;  // what is recorded from now on
bool is_in_capture = false;
std::set<int> contexts;
thread_local bool is_used_in_thread = false;
std::multimap<int, Event*> events;  // by stream

void touch() { contexts.insert(current); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return c10::Device(c10::kCUDA, current); }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    current = device.index();
    return before;
  }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }  // autograd needs no thread for it

  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::UNSAFE, device, stream_id); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    touch();
    return c10::Stream(c10::Stream::UNSAFE, device, 1000);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    touch();
    is_used_in_thread = true;
    if (flag != c10::EventFlag::BACKEND_DEFAULT) throw std::runtime_error("an event that measures no time");
    auto* recorded = static_cast<Event*>(*event);
    if (!recorded) {
      recorded = new Event;
      ++event_count;
    } else if (recorded->device != stream.device_index()) {
      throw std::runtime_error("events have one device");
    }
    *recorded = {stream.device_index(), is_stuck && stream.id() != 1000};
    events.emplace(stream.id(), recorded);
    *event = recorded;
  }
  bool queryEvent(void* event) const override {
    touch();
    ++query_count;
    return !static_cast<Event*>(event)->is_stuck;
  }
  void synchronizeEvent(void*) const override { touch(); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    if (static_cast<Event*>(first)->device != static_cast<Event*>(second)->device) throw std::runtime_error("no time between devices");
    return 1.0;
  }
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void fake_begin() {
  static Guard guard;
  // Each time: torch's FakeTensorMode, which other tests of this process may use, registers one of its own.
  c10::impl::DeviceGuardImplRegistrar registered(c10::kCUDA, &guard);
  current = event_count = query_count = 0;
  is_in_capture = false;
  contexts.clear();
  events.clear();
}
EXPORT int fake_exchange_device(int device) { return std::exchange(current, device); }
EXPORT void fake_use_stream(int id, bool stuck) {
  stream_id = id;
  is_stuck = stuck;
}
EXPORT void fake_continue(int id) {
  for (auto [each, end] = events.equal_range(id); each != end; ++each) each->second->is_stuck = false;
}
EXPORT void fake_capture(bool is_on) { is_in_capture = is_on; }
EXPORT int fake_event_count() { return event_count; }
EXPORT int fake_query_count() { return query_count; }
EXPORT bool fake_has_context(int device) { return contexts.count(device); }

// The driver: a stream's handle is its number. It works in threads that have used the device guard, as the real one does.

constexpr int kInvalidContext = 201;

EXPORT int cuEventRecord(void* event, void* stream) {
  if (!is_used_in_thread) return kInvalidContext;
  touch();
  if (reinterpret_cast<intptr_t>(stream) != stream_id) return 400;  // CUDA_ERROR_INVALID_HANDLE
  *static_cast<Event*>(event) = {current, is_stuck};
  events.emplace(stream_id, static_cast<Event*>(event));
  return 0;
}
EXPORT int cuStreamIsCapturing(void*, int* status) {
  if (!is_used_in_thread) return kInvalidContext;
  *status = is_in_capture;
  return 0;
}
