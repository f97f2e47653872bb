// The calls of CUDA that every op makes, straight to its driver: through torch's device guard each takes twice as long.

#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace rollcall {

enum class Capture { kNo, kYes, kUnknown };

class CudaDriver {
 public:
  // The library of the driver, which the process has loaded already.
  explicit CudaDriver(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (!library) throw std::runtime_error(dlerror());
    find(library, "cuEventRecord", record_);
    find(library, "cuStreamIsCapturing", is_capturing_);
  }

  void record(void* event, void* stream) const {
    if (int error = record_(event, stream)) throw std::runtime_error("cuEventRecord: error " + std::to_string(error));
  }

  // Whether nothing may be put into the stream: it is captured, or another one is, for which it would have to wait. Unknown in a
  // thread that has not used CUDA yet: it has no context, and only the runtime gives it one.
  Capture capture(void* stream) const {
    int status = 0;
    int error = is_capturing_(stream, &status);
    if (error == kImplicit) return Capture::kYes;
    return error ? Capture::kUnknown : status ? Capture::kYes : Capture::kNo;
  }

 private:
  static constexpr int kImplicit = 906;  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT

  template <typename Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) throw std::runtime_error(std::string("the driver has no ") + name);
  }

  int (*record_)(void*, void*);
  int (*is_capturing_)(void*, int*);
};

}  // namespace rollcall
