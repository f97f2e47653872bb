// A CUDA device that is not there: what torch's C++ asks a device for while autograd runs and DDP is constructed.
//
// Loaded before torch is imported, so that torch finds these hooks when it first looks for some. Streams and events do
// nothing, since no op of a rehearsal computes anything. A torch that is built for CUDA registers its own device guard
// when it is imported: `rollcall_pretend_again` puts ours back on top.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace {

int device_count = 1;
int first_device = 0;  // of threads that have not chosen one
thread_local int chosen_device = -1;

int current_device() { return chosen_device < 0 ? first_device : chosen_device; }

void choose(c10::DeviceIndex device) {
  if (device >= 0) chosen_device = device;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return c10::Device(c10::kCUDA, current_device()); }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    choose(device.index());
    return before;
  }
  void setDevice(c10::Device device) const override { choose(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { choose(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  c10::Stream getStream(c10::Device device) const override {
    int index = device.index() < 0 ? current_device() : device.index();
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCUDA, index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    static int any_event;  // an event that was recorded is not null
    *event = &any_event;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  c10::DeviceIndex current_device() const override { return ::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return ::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { choose(device); }
  int getNumGPUs() const override { return device_count; }
  bool isPinnedPtr(const void*) const override { return false; }
};

struct NoTimer final : c10d::Timer {  // DDP's reducer asks for one of its device
  explicit NoTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

// Preferred: those of a torch that is built for CUDA have the default priority, and are not used then.
at::RegistererCUDAHooksRegistry hooks(
    "CUDAHooks", c10::REGISTRY_PREFERRED, at::CUDAHooksRegistry(),
    at::RegistererCUDAHooksRegistry::DefaultCreator<Hooks>);
c10d::RegistererTimerRegistry timer(
    c10::kCUDA, c10::REGISTRY_PREFERRED, c10d::TimerRegistry(),
    c10d::RegistererTimerRegistry::DefaultCreator<NoTimer>);
c10::impl::DeviceGuardImplRegistrar guard(c10::kCUDA, new Guard);

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void rollcall_pretend_again() { c10::impl::DeviceGuardImplRegistrar again(c10::kCUDA, new Guard); }
EXPORT void rollcall_set_device_count(int count) { device_count = count; }
EXPORT int rollcall_current_device() { return current_device(); }
EXPORT void rollcall_set_device(int device) { first_device = chosen_device = device; }
