// The C++ recorder: writes the record of every op, every phase and every DDP bucket, without running Python.
//
// Python does what happens once (files, names, sites): it is asked for a number when something is seen for the first
// time. ../ring.py and ../python_recorder.py do the same in Python, for machines without a compiler; ring_format.py
// defines the format.
//
// Two rules prevent deadlocks: the mutex is held for a few stores only, and no thread takes or releases the GIL while it
// holds the mutex. Releasing the last reference to a tensor may take the GIL, so it happens without the mutex.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

// Up to this version we know the interpreter's own frames; reading them creates no frame objects.
#define HAS_INTERNAL_FRAMES (PY_VERSION_HEX < 0x030E0000)
#if HAS_INTERNAL_FRAMES
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "device_clock.h"

namespace {

using rollcall::Capture;
using rollcall::CudaDriver;
using rollcall::DeviceClock;
using rollcall::Moment;
using rollcall::Marks;
using rollcall::StreamQueue;
using rollcall::now_ns;

constexpr uint16_t kAsync = 1, kFailed = 2, kWaited = 4, kBucket = 8;
constexpr uint64_t kChunkBytes = 64 << 10, kPageBytes = 4 << 10;
constexpr size_t kMostFrames = 8, kMostPhases = 64, kMostCodes = 100000;  // the last: sites.py
constexpr int64_t kNoRecord = -1;
constexpr uint8_t kPair = 1, kEvent = 2;  // sorts of records: sends and receives, what is no op: ring_format.py
constexpr int kUserCode = 1, kEntryPoint = 2;  // kinds of code: sites.py

struct Record {
  uint64_t number, entered_ns, issued_ns, completed_ns, waited_ns;
  uint16_t op, flags;
  uint32_t group, seq, site, signature;
  int32_t peer, tag;
  uint32_t thread, phase;
  uint16_t reduce, pad;
  uint32_t version_issued, version_waited;
  uint64_t size_bytes;
};
static_assert(sizeof(Record) == 96, "the size that ring_format.py defines");
constexpr uint64_t Record::*kTimes[] = {&Record::issued_ns, &Record::waited_ns, &Record::completed_ns};  // by Moment
static_assert(std::size(kTimes) == rollcall::kMoments, "each moment has a field");

struct Counter {
  uint32_t group;
  uint16_t op, nothing;
  uint64_t count, bytes, blocked_ns;
};
static_assert(sizeof(Counter) == 32, "the size that ring_format.py defines");

using Channel = std::tuple<uint32_t, uint16_t, int32_t, int32_t>;  // group, op, peer, tag
using Places = std::vector<uintptr_t>;

struct PlacesHash {
  size_t operator()(const Places& places) const {
    size_t hash = 1469598103934665603u;
    for (uintptr_t each : places) hash = (hash ^ each) * 1099511628211u;
    return hash;
  }
};

struct Group {
  uint32_t number;
  std::vector<int32_t> ranks;
};

using Shape = std::vector<int64_t>;  // its type, and its sizes

struct ShapeHash {
  size_t operator()(const Shape& shape) const {
    size_t hash = 1469598103934665603u;
    for (int64_t each : shape) hash = (hash ^ size_t(each)) * 1099511628211u;
    return hash;
  }
};

struct Phase {
  PyObject* name;  // compared by identity
  uint32_t number;
  // Where it began last: all frames from there outwards, the user's or not, and the number of that site.
  Places stack;
  uint32_t site = 0;
};

struct Bucket {  // what identifies a bucket, and the numbers of its names
  const c10d::ProcessGroup* group = nullptr;  // lives as long as its DDP module; a new module clears the list
  size_t index = 0;  // its position among the buckets of a backward
  int64_t elements = 0;
  at::ScalarType type = at::ScalarType::Undefined;
  uint32_t group_number = 0, signature = 0;

  bool matches(const Bucket& other) const {
    return group == other.group && index == other.index && elements == other.elements && type == other.type;
  }
};

struct Pending {  // a bucket whose all_reduce is under way
  uint64_t mark;
  uint16_t flags;
  at::Tensor tensor;
};

struct State {
  // The ring; written to under the mutex.
  std::mutex mutex;
  char* map = nullptr;
  int fd = -1;
  std::string path;
  struct stat file {};  // identifies it
  uint64_t first = 0, capacity = 0, reserved_end = 0, count_at = 0, counters_at = 0, counters_count_at = 0, most_counters = 0;
  uint64_t count = 0;
  uint32_t phase = 0, phase_site = 0;
  std::vector<uint8_t> sorts;
  std::vector<uint32_t> seqs;  // by number of a group: how many collectives it has had
  std::map<Channel, uint32_t> channels;  // how many sends, or receives, each has had
  std::map<std::pair<uint32_t, uint16_t>, uint64_t> counters;
  std::vector<std::pair<uint64_t, uint32_t>> phases;  // open phases: their marks, and the phase around each
  std::vector<Pending> pending;
  size_t last_bucket = 0;  // its position in the backward before
  bool is_waiting = false;
  int failed_errno = 0;
  uint16_t phase_op = 0, forward_op = 0, all_reduce = 0, sum = 0;
  bool is_on = false;
  // Answers of Python, kept; used with the GIL held, except for the buckets.
  PyObject* recorder = nullptr;
  pthread_t main_thread{};
  std::unordered_map<PyObject*, uint8_t> kinds;  // of codes
  std::unordered_map<Places, uint32_t, PlacesHash> sites;
  std::vector<Phase> named;  // a vector: they are few, and caches are cold
  std::unordered_map<PyObject*, int64_t> steps;  // by optimizer: the mark of its step
  PyObject* count_gradients = nullptr;
  std::unordered_map<PyObject*, int64_t> gradients;  // by DDP module: how many gradients it averages
  std::unordered_map<pthread_t, uint32_t> threads;
  std::unordered_map<PyObject*, Group> groups;  // Python removes a group that is destroyed
  std::unordered_map<Shape, uint32_t, ShapeHash> shapes;  // signatures of single tensors
  Shape shape;  // of the current op: kept, so that no op allocates it
  PyObject *watched = nullptr, *waited_for = nullptr;  // the recorder's own: ops whose end Python follows
  DeviceClock* clock = nullptr;  // of the ring's ops on a GPU
  PyObject* is_capturing = nullptr;  // asks CUDA; None where the device is pretended
  PyObject* find_handle = nullptr;  // of the current stream: the driver's, or None; asked once for each stream
  PyTypeObject* options_type = nullptr;
  std::vector<PyObject*> reduce_ops;  // by number of torch's reduce op: its number in the ring
  std::vector<Bucket> buckets;
  // The sampler's.
  std::mutex sleep_mutex;
  std::condition_variable woken;
  bool is_woken = false;
};

State* const state = new State;  // never destroyed: threads may outlive static destructors
thread_local bool is_in_op = false;  // this thread is in an op whose record a Python hook has written
thread_local bool has_objects = false;  // it is in a collective of objects

Record* at(uint64_t mark) { return reinterpret_cast<Record*>(state->map + mark); }

void complete(uint64_t mark, uint64_t completed_ns) { at(mark)->completed_ns = completed_ns; }

bool is_rehearsed() { return state->is_capturing == Py_None; }

bool is_own(int fd) {
  struct stat found;
  return !fstat(fd, &found) && found.st_dev == state->file.st_dev && found.st_ino == state->file.st_ino;
}

// The program may have closed all files, and one of its own may have the number of ours: ../own_file.py.
bool has_file() {
  if (is_own(state->fd)) return true;
  state->fd = open(state->path.c_str(), O_RDWR | O_CLOEXEC);
  if (state->fd < 0 || is_own(state->fd)) return state->fd >= 0;
  errno = ESTALE;
  return false;
}

// Writes zeros; the errno where that fails. Beyond the user's limit, a write may end the process: ../ring.py.
int write_zeros(const std::vector<char>& zeros, uint64_t size, uint64_t at) {
  rlimit limit;
  if (!getrlimit(RLIMIT_FSIZE, &limit) && at + size > limit.rlim_cur) return EFBIG;
  ssize_t written = has_file() ? pwrite(state->fd, zeros.data(), size, at) : -1;
  return written == ssize_t(size) ? 0 : written < 0 ? errno : ENOSPC;
}

// Allocates disk space before the map is written to: on a full disk, a write to the map would kill the process.
bool reserve(uint64_t end) {
  static const std::vector<char> zeros(kChunkBytes);
  while (end > state->reserved_end) {
    uint64_t size = std::min<uint64_t>(zeros.size(), state->first + state->capacity * sizeof(Record) - state->reserved_end);
    state->failed_errno = write_zeros(zeros, size, state->reserved_end);
    if (state->failed_errno) {
      state->is_on = false;
      return false;
    }
    // Faulting all pages at once takes a fraction of the time of one fault per page.
    madvise(state->map + state->reserved_end / kPageBytes * kPageBytes, size, MADV_POPULATE_WRITE);
    state->reserved_end += size;
  }
  return true;
}

// Adds the op that is about to be overwritten to its counter.
void fold(const Record& old) {
  if (state->sorts[old.op] == kEvent) return;
  auto key = std::make_pair(old.group, old.op);
  auto found = state->counters.find(key);
  if (found == state->counters.end()) {
    uint64_t place = state->counters.size();
    if (place == state->most_counters) return;
    found = state->counters.emplace(key, place).first;
    uint64_t count = place + 1;
    memcpy(state->map + state->counters_count_at, &count, sizeof count);
  }
  auto* counter = reinterpret_cast<Counter*>(state->map + state->counters_at) + found->second;
  uint64_t since_ns = old.flags & kAsync ? old.waited_ns : old.entered_ns;
  *counter = {
      old.group, old.op, 0, counter->count + 1, counter->bytes + old.size_bytes,
      counter->blocked_ns + (old.completed_ns && since_ns ? old.completed_ns - since_ns : 0)};
}

// A send or receive is numbered by its channel, so that it finds its partner when older ones are overwritten.
uint32_t next_seq(const Record& record) {
  if (state->sorts[record.op] == kPair) return ++state->channels[{record.group, record.op, record.peer, record.tag}];
  if (record.group >= state->seqs.size()) state->seqs.resize(record.group + 1);
  return ++state->seqs[record.group];
}

// Called under the mutex. Returns the mark: the offset of the record.
int64_t write(Record record) {
  uint64_t mark = state->first + (state->count % state->capacity) * sizeof(Record);
  if (!reserve(mark + sizeof(Record))) return kNoRecord;
  if (record.group) {
    record.seq = next_seq(record);
    record.phase = state->phase;
  }
  if (++state->count > state->capacity) fold(*at(mark));
  record.number = state->count;
  record.entered_ns = now_ns();
  record.version_waited = record.version_issued;
  memcpy(at(mark), &record, sizeof record);
  // The count is published last, so a concurrent reader never sees a partial record.
  __atomic_store_n(reinterpret_cast<uint64_t*>(state->map + state->count_at), state->count, __ATOMIC_RELEASE);
  if (mark + 3 * sizeof(Record) <= state->reserved_end) {  // have the next record's place in the cache
    __builtin_prefetch(at(mark + sizeof(Record)), 1);
    __builtin_prefetch(at(mark + 2 * sizeof(Record)) - 1, 1);
  }
  return mark;
}

// Questions to Python; all of these need the GIL.

// Returns a number, or -1 with an exception set.
int64_t ask(const char* method, PyObject* argument) {
  PyObject* answer = argument ? PyObject_CallMethod(state->recorder, method, "(O)", argument)
                              : PyObject_CallMethod(state->recorder, method, nullptr);
  if (!answer) return -1;
  int64_t number = PyLong_AsLongLong(answer);
  Py_DECREF(answer);
  return number;
}

// No record could be written: the exception of Python that says why.
PyObject* raise_errno() {
  errno = state->failed_errno;
  state->failed_errno = 0;
  return PyErr_SetFromErrno(PyExc_OSError);
}

// Takes the current exception and ends recording, so that the exception does not reach the program.
void stop_recording() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject* done = PyObject_CallMethod(state->recorder, "stop_after", "(O)", value ? value : Py_None);
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

int64_t thread_number() {
  pthread_t self = pthread_self();
  if (pthread_equal(self, state->main_thread)) return 0;
  auto found = state->threads.find(self);
  if (found != state->threads.end()) return found->second;
  int64_t number = ask("name_thread", nullptr);
  if (number >= 0) state->threads[self] = number;
  return number;
}

// Visits frames from the current one outwards, while `visit(code, instruction)` returns true.
#if HAS_INTERNAL_FRAMES
template <typename Visit>
void walk(Visit visit) {
#if PY_VERSION_HEX < 0x030D0000
  _PyInterpreterFrame* frame = PyThreadState_Get()->cframe->current_frame;
#else
  _PyInterpreterFrame* frame = PyThreadState_Get()->current_frame;
#endif
  for (; frame; frame = frame->previous) {
    if (_PyFrame_IsIncomplete(frame)) continue;
#if PY_VERSION_HEX < 0x030D0000
    auto* code = reinterpret_cast<PyObject*>(frame->f_code);
#else
    PyObject* code = frame->f_executable;
#endif
    if (!visit(code, uintptr_t(_PyInterpreterFrame_LASTI(frame) * int(sizeof(_Py_CODEUNIT))))) return;
  }
}
#else
template <typename Visit>
void walk(Visit visit) {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  bool wants_more = true;
  while (frame && wants_more) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    wants_more = visit(reinterpret_cast<PyObject*>(code), uintptr_t(PyFrame_GetLasti(frame)));
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
}
#endif

// The kind of code, as sites.py defines it; -1 with an exception set. Asks Python once per code object.
int kind_of(PyObject* code) {
  auto known = state->kinds.find(code);
  if (known != state->kinds.end()) return known->second;
  if (state->kinds.size() >= kMostCodes) return 0;  // a program that makes new code with every step
  int64_t kind = ask("kind_of_code", code);
  if (kind < 0) return -1;
  Py_INCREF(code);  // kept alive, so that no other object gets its address
  return state->kinds[code] = kind;
}

// The number of the site: the user's frames from the current one outwards, innermost first; without any, the outermost
// frame. All visited frames are added to `stack`, if it is given.
int64_t site_number(Places* stack = nullptr) {
  Places places;
  places.reserve(2 * kMostFrames);
  uintptr_t here[2] = {0, 0};
  bool has_failed = false;
  if (stack) stack->clear();
  walk([&](PyObject* code, uintptr_t instruction) {
    int kind = kind_of(code);
    has_failed = kind < 0;
    here[0] = reinterpret_cast<uintptr_t>(code);
    here[1] = instruction;
    if (stack) stack->insert(stack->end(), here, here + 2);
    if (kind == kUserCode) places.insert(places.end(), here, here + 2);
    bool is_entry_point = kind == kEntryPoint && !places.empty();
    return !has_failed && !is_entry_point && places.size() < 2 * kMostFrames;
  });
  if (has_failed) return -1;
  bool has_users = !places.empty();
  if (!has_users && here[0]) places.assign(here, here + 2);
  auto found = state->sites.find(places);
  if (found != state->sites.end()) return found->second;
  PyObject* tuple = PyTuple_New(places.size());
  if (!tuple) return -1;
  for (size_t i = 0; i < places.size(); ++i) PyTuple_SET_ITEM(tuple, i, PyLong_FromUnsignedLongLong(places[i]));
  int64_t number = ask("name_site", tuple);
  Py_DECREF(tuple);
  // A thread without a frame of the user's gets the site of the main thread, which changes: it is not kept.
  bool is_stable = pthread_equal(pthread_self(), state->main_thread) || has_users;
  if (state->sites.size() >= kMostCodes) state->sites.clear();  // Python knows their numbers
  if (number >= 0 && is_stable) state->sites[places] = number;
  return number;
}

// The site of a phase that begins. It mostly begins where it did before; comparing the stack takes half the time.
int64_t phase_site_number(size_t place) {
  if (!pthread_equal(pthread_self(), state->main_thread)) return site_number();
  const Places& stack = state->named[place].stack;
  size_t seen = 0, size = stack.size();
  walk([&](PyObject* code, uintptr_t instruction) {
    bool is_same = seen < size && stack[seen] == reinterpret_cast<uintptr_t>(code) && stack[seen + 1] == instruction;
    seen = is_same ? seen + 2 : size + 1;
    return is_same && seen < size;
  });
  if (size && seen == size) return state->named[place].site;
  Places walked;
  int64_t site = site_number(&walked);  // may run Python, which may begin phases and change `named`
  if (site < 0 || place >= state->named.size()) return site;
  state->named[place].stack.swap(walked);
  state->named[place].site = site;
  return site;
}

void forget_phases() {
  std::vector<Phase> forgotten;
  forgotten.swap(state->named);
  for (auto& each : forgotten) Py_DECREF(each.name);
}

// The index of a phase in `named`; -1 with an exception set.
int64_t phase_place(PyObject* name) {
  for (size_t place = 0; place < state->named.size(); ++place)
    if (state->named[place].name == name) return place;
  int64_t number = ask("name_phase", name);
  if (number < 0) return -1;
  if (state->named.size() >= kMostPhases) forget_phases();  // a program that makes up new names all the time
  Py_INCREF(name);
  state->named.push_back({name, uint32_t(number), {}, 0});
  return state->named.size() - 1;
}

// DDP's buckets.

uint32_t version(const at::Tensor& tensor) {
  if (tensor.is_inference()) return 0;
  if (tensor.is_view() && tensor._base().numel() > tensor.numel()) return 0;
  return tensor._version();
}

// As tensors.py computes it, for the layouts that DDP sends.
uint64_t size_bytes(const at::Tensor& tensor) {
  if (tensor.is_sparse()) return tensor._indices().nbytes() + tensor._values().nbytes();
  return tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
}

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

// Fills in the numbers of the bucket's group and signature; asks Python once per bucket, without the mutex.
bool name_bucket(const at::Tensor& tensor, const c10d::ProcessGroup& group, Bucket& bucket) {
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    bucket = {&group, state->pending.size(), tensor.numel(), tensor.scalar_type()};
    for (auto& known : state->buckets) {
      if (!known.matches(bucket)) continue;
      bucket = known;
      return true;
    }
  }
  std::string name;
  try {
    name = group.getGroupName();
  } catch (const std::exception&) {
  }
  if (name.empty()) return false;  // a group that was made without torch.distributed's functions need not have one
  Gil gil;
  PyObject* answer = nullptr;
  PyObject* wrapped = THPVariable_Wrap(tensor);
  if (wrapped) answer = PyObject_CallMethod(state->recorder, "name_bucket", "Ons", wrapped, Py_ssize_t(bucket.index), name.c_str());
  Py_XDECREF(wrapped);
  bool is_named = answer && PyArg_ParseTuple(answer, "II", &bucket.group_number, &bucket.signature);
  Py_XDECREF(answer);
  if (!is_named) {
    stop_recording();
    return false;
  }
  std::lock_guard<std::mutex> lock(state->mutex);
  state->buckets.push_back(bucket);
  return true;
}

// Empties the list of pending buckets and returns them.
std::vector<Pending> take_pending() {
  std::vector<Pending> taken;
  std::lock_guard<std::mutex> lock(state->mutex);
  taken.swap(state->pending);
  state->is_waiting = false;
  return taken;
}

// Returns false with an exception set.
bool find_handle(StreamQueue& stream) {
  stream.is_asked = true;
  PyObject* answer = PyObject_CallFunction(state->find_handle, "i", int(stream.stream.device_index()));
  if (answer && answer != Py_None) stream.handle = PyLong_AsVoidPtr(answer);
  Py_XDECREF(answer);
  return !PyErr_Occurred();
}

// Whether the current stream is being captured, as torch says; -1 with an exception set.
int is_capturing() {
  PyObject* answer = PyObject_CallNoArgs(state->is_capturing);
  Py_XDECREF(answer);
  return answer ? answer == Py_True : -1;
}

// The host has queued these ops; the GPU may come to this moment of them later. Needs the GIL; returns false with an
// exception set.
bool note_on_device(Marks marks, Moment moment) {
  // Nothing runs on a pretended device, nor in a capture: the graph runs when it is replayed.
  int is_over = is_rehearsed();
  if (!is_over) {
    StreamQueue& stream = state->clock->current_stream();
    if (!stream.is_asked && !find_handle(stream)) return false;
    Capture capture = stream.handle ? state->clock->driver->capture(*stream.handle) : Capture::kUnknown;
    is_over = capture == Capture::kUnknown ? is_capturing() : capture == Capture::kYes;
    if (is_over < 0) return false;
    if (!is_over) state->clock->note(stream, std::move(marks), moment, capture == Capture::kNo);
  }
  if (is_over && moment == Moment::kCompleted)
    for (uint64_t mark : marks) complete(mark, now_ns());
  return true;
}

// The same for buckets, which are in a thread of autograd without the GIL.
void note_buckets(Marks marks, Moment moment) {
  if (marks.empty()) return;
  Gil gil;
  if (!note_on_device(std::move(marks), moment)) stop_recording();
}

void complete_buckets() {
  Marks on_device;
  uint64_t completed_ns = now_ns();
  for (auto& each : take_pending()) {
    if (each.tensor.is_cuda()) on_device.push_back(each.mark);
    else complete(each.mark, completed_ns);
  }
  note_buckets(std::move(on_device), Moment::kCompleted);
}

// Runs recording work in C++: an error ends recording, and does not reach the program. The mutex is free by then.
template <typename Work>
void guarded(Work work) {
  std::string text = "an unknown error";
  try {
    work();
    return;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
  }
  take_pending();
  Gil gil;
  PyErr_SetString(PyExc_RuntimeError, text.substr(0, text.find('\n')).c_str());
  stop_recording();
}

// Callbacks run at the end of backward, in the order in which they were queued. This one runs before the reducer's own,
// which waits for all buckets; the callback that it queues runs after that.
void wait_for_buckets() {
  Marks on_device;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    uint64_t waited_ns = now_ns();
    for (auto& each : state->pending) {
      Record* record = at(each.mark);
      record->waited_ns = waited_ns;
      record->flags = each.flags | kWaited;
      record->version_waited = version(each.tensor);
      if (each.tensor.is_cuda()) on_device.push_back(each.mark);
    }
    state->is_waiting = !state->pending.empty();
    if (state->is_waiting) state->last_bucket = state->pending.size() - 1;
  }
  note_buckets(std::move(on_device), Moment::kWaited);
  torch::autograd::Engine::get_default_engine().queue_callback([] { guarded(complete_buckets); });
}

int64_t enter_bucket(const at::Tensor& tensor, const c10d::ProcessGroup& group) {
  Bucket bucket;
  if (!name_bucket(tensor, group, bucket)) return kNoRecord;
  int64_t thread = 0;
  if (!pthread_equal(pthread_self(), state->main_thread)) {
    Gil gil;
    thread = thread_number();
    if (thread < 0) {
      stop_recording();
      return kNoRecord;
    }
  }
  Record record{};
  record.op = state->all_reduce;
  record.flags = kAsync | kBucket;
  record.group = bucket.group_number;
  record.signature = bucket.signature;
  record.peer = -1;
  record.thread = thread;
  record.reduce = state->sum;
  record.version_issued = version(tensor);
  record.size_bytes = size_bytes(tensor);
  int64_t mark;
  bool is_timed;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    record.site = state->phase_site;  // where backward was called
    mark = write(record);
    is_timed = tensor.is_cuda() && (bucket.index == 0 || bucket.index == state->last_bucket);  // why: ../hooks/reducer.py
  }
  if (mark == kNoRecord) {
    Gil gil;
    raise_errno();
    stop_recording();
  } else if (is_timed) {
    note_buckets(Marks(1, mark), Moment::kArrived);
  }
  return mark;
}

// The all_reduce is under way: the bucket is kept until backward ends.
void follow_bucket(int64_t mark, const at::Tensor& tensor) {
  bool is_first;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    at(mark)->issued_ns = now_ns();
    is_first = state->pending.empty();
    state->pending.push_back({uint64_t(mark), kAsync | kBucket, tensor});
  }
  if (!is_first) return;
  try {
    torch::autograd::Engine::get_default_engine().queue_callback([] { guarded(wait_for_buckets); });
  } catch (const std::exception&) {  // not in a backward: there is no callback at its end
    take_pending();
  }
}

#ifdef C10D_BACKEND_HAS_HOOKS
// Torch's own hooks, which it has from 2.15 on: they run around every op of a group, in the thread that starts the op.
constexpr int64_t kHookId = 0x726f6c6c63616c6c;  // "rollcall": other users of the hooks have other numbers

struct Started {
  int64_t mark = kNoRecord;
  at::Tensor tensor;
};
thread_local Started started;  // the all_reduce between its two hooks

void watch_by_hooks(c10d::ProcessGroup& group) {
  group.registerPreHook(kHookId, [&group](const c10d::PreHookArgs& args) {  // the group owns its hooks
    started = Started();
    if (args.name != c10d::HookOpName::ALLREDUCE || args.input_tensors.empty() || is_in_op || !state->is_on) return;
    guarded([&] { started = {enter_bucket(args.input_tensors[0], group), args.input_tensors[0]}; });
  });
  group.registerPostHook(kHookId, [](const c10d::PostHookArgs&) {
    Started ended = std::exchange(started, Started());
    if (ended.mark != kNoRecord) guarded([&] { follow_bucket(ended.mark, ended.tensor); });
  });
}
#endif

// The kernel at the autograd key, which every all_reduce passes before it reaches its backend. In a rehearsal no op
// reaches one, so that hooks would not run there.
void all_reduce(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto below = keys & c10::after_autograd_keyset;
  if (is_in_op || !state->is_on) {
    op.redispatchBoxed(below, stack);
    return;
  }
  int64_t mark = kNoRecord;
  at::Tensor tensor;
  guarded([&] {
    size_t arguments = op.schema().arguments().size();
    tensor = torch::jit::peek(*stack, 0, arguments).toTensorList().get(0);
    mark = enter_bucket(tensor, *torch::jit::peek(*stack, 1, arguments).toCustomClass<c10d::ProcessGroup>());
  });
  op.redispatchBoxed(below, stack);
  if (mark != kNoRecord) guarded([&] { follow_bucket(mark, tensor); });
}

// From now on, the all_reduces of all groups pass our kernel.
void watch_by_kernel() {
  static std::vector<torch::Library>* libraries = nullptr;
  if (libraries) return;
  libraries = new std::vector<torch::Library>;
  for (auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    libraries->emplace_back(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
    libraries->back().impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&all_reduce>());
  }
}

void watch([[maybe_unused]] c10d::ProcessGroup& group) {
#ifdef C10D_BACKEND_HAS_HOOKS
  if (!is_rehearsed()) return watch_by_hooks(group);
#endif
  watch_by_kernel();
}

// Functions of the Python module.

PyObject* py_begin(PyObject*, PyObject* args) {
  PyObject *recorder, *map, *sorts;
  unsigned long long first, capacity, count_at, counters_at, counters_count_at, most_counters, record_bytes;
  int fd, phase_op, forward_op, all_reduce_op, sum;
  const char* path;
  if (!PyArg_ParseTuple(args, "OOisKKKKKKKO!iiii", &recorder, &map, &fd, &path, &first, &capacity, &record_bytes, &count_at, &counters_at,
                        &counters_count_at, &most_counters, &PyBytes_Type, &sorts, &phase_op, &forward_op, &all_reduce_op, &sum))
    return nullptr;
  if (record_bytes != sizeof(Record)) return PyErr_Format(PyExc_ValueError, "records of %llu bytes", record_bytes);
  Py_buffer view;  // never released: the map is written to until the process ends
  if (PyObject_GetBuffer(map, &view, PyBUF_WRITABLE)) return nullptr;
  take_pending();
  forget_phases();
  std::lock_guard<std::mutex> lock(state->mutex);
  Py_INCREF(recorder);
  state->recorder = recorder;
  state->map = static_cast<char*>(view.buf);
  // A new one for each ring, since marks belong to one; the sampler of the old ring may still use the old one.
  state->clock = new DeviceClock([map = state->map](uint64_t mark, Moment moment, uint64_t at_ns) {
    reinterpret_cast<Record*>(map + mark)->*kTimes[size_t(moment)] = at_ns;
  });
  state->fd = fd;
  state->path = path;
  if (fstat(fd, &state->file)) return PyErr_SetFromErrno(PyExc_OSError);
  state->first = state->reserved_end = first;
  state->capacity = capacity;
  state->count_at = count_at;
  state->counters_at = counters_at;
  state->counters_count_at = counters_count_at;
  state->most_counters = most_counters;
  auto* bytes = reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(sorts));
  state->sorts.assign(bytes, bytes + PyBytes_GET_SIZE(sorts));
  state->phase_op = phase_op;
  state->forward_op = forward_op;
  state->all_reduce = all_reduce_op;
  state->sum = sum;
  state->main_thread = pthread_self();
  state->count = state->phase = state->phase_site = state->failed_errno = 0;
  state->seqs.clear();
  state->channels.clear();
  state->counters.clear();
  state->phases.clear();
  state->sites.clear();  // numbers belong to one ring
  state->steps.clear();
  state->threads.clear();
  state->groups.clear();
  state->shapes.clear();
  state->buckets.clear();
  state->is_on = true;
  Py_RETURN_NONE;
}

PyObject* py_stop(PyObject*, PyObject*) {
  state->is_on = false;
  Py_RETURN_NONE;
}

// The name of a DDP module's group, and a function that returns how many gradients a module averages.
PyObject* py_watch_reducer(PyObject*, PyObject* args) {
  const char* group_name;
  PyObject* count_gradients;
  if (!PyArg_ParseTuple(args, "sO", &group_name, &count_gradients)) return nullptr;
  Py_INCREF(count_gradients);
  Py_XSETREF(state->count_gradients, count_gradients);
  state->gradients.clear();  // a new module may have the address of one that was deleted
  try {
    watch(*c10d::resolve_process_group(group_name));
  } catch (const std::exception& error) {
    return PyErr_Format(PyExc_RuntimeError, "%s", error.what());
  }
  std::lock_guard<std::mutex> lock(state->mutex);
  state->buckets.clear();  // a new group may have the address of one that was destroyed
  Py_RETURN_NONE;
}

PyObject* py_set_in_op(PyObject*, PyObject* value) {
  is_in_op = value == Py_True;
  Py_RETURN_NONE;
}

PyObject* py_is_in_op(PyObject*, PyObject*) { return PyBool_FromLong(is_in_op); }

// op, flags, group, site, signature, peer, tag, thread, reduce, version, size_bytes
PyObject* py_write(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t kFields = 11;
  if (count != kFields) return PyErr_Format(PyExc_TypeError, "write takes %zd numbers", kFields);
  long long field[kFields];
  for (Py_ssize_t i = 0; i < kFields; ++i) {
    field[i] = PyLong_AsLongLong(args[i]);
    if (field[i] == -1 && PyErr_Occurred()) return nullptr;
  }
  Record record{};
  record.op = field[0];
  record.flags = field[1];
  record.group = field[2];
  record.site = field[3];
  record.signature = field[4];
  record.peer = field[5];
  record.tag = field[6];
  record.thread = field[7];
  record.reduce = field[8];
  record.version_issued = field[9];
  record.size_bytes = field[10];
  int64_t mark;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    mark = write(record);
  }
  if (mark == kNoRecord) return raise_errno();
  return PyLong_FromLongLong(mark);
}

// The number of the signature of one tensor that is alone in its op; 0 if Python has not named it yet.
uint32_t shape_number(const at::Tensor& tensor) {
  Shape& shape = state->shape;
  shape.assign(1, int64_t(tensor.scalar_type()));
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  auto found = state->shapes.find(shape);
  return found == state->shapes.end() ? 0 : found->second;
}

// Whether the tensor has one block of memory and fixed sizes: Python describes the others.
bool is_plain(PyObject* tensor) {
  if (Py_TYPE(tensor) != reinterpret_cast<PyTypeObject*>(THPVariableClass)) return false;
  const at::Tensor& unpacked = THPVariable_Unpack(tensor);
  return unpacked.layout() == at::kStrided && !unpacked.is_nested() && !unpacked.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// What Python does where this does not: an op that is not of one plain tensor, or that names something new.
PyObject* enter_slowly(PyObject* const* args) {
  static PyObject* const name = PyUnicode_InternFromString("enter_slowly");
  PyObject* words[] = {state->recorder, args[0], args[1], args[2]};
  return PyObject_VectorcallMethod(name, words, 4 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// Like note_on_device; an error of CUDA is an exception of Python, too. `marks` may have one set already.
bool note(Marks marks, Moment moment) {
  if (PyErr_Occurred()) return false;
  try {
    return note_on_device(std::move(marks), moment);
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "%s", error.what());
    return false;
  }
}

// What an op of one plain tensor is called with. `peer` is a rank of the group.
struct PlainOp {
  uint16_t op = 0, flags = 0, reduce = 0;
  int32_t peer = -1, tag = 0;
  PyObject* tensor = nullptr;
};

// The number of its signature; 0 where Python has to describe the op.
uint32_t plain_signature(PyObject* tensor) {
  return is_plain(tensor) && !has_objects ? shape_number(THPVariable_Unpack(tensor)) : 0;
}

// Records the op, whose signature is known. What torch may throw comes before the record is written.
PyObject* enter_plain(const PlainOp& called, const Group& group, uint32_t signature) {
  const at::Tensor& tensor = THPVariable_Unpack(called.tensor);
  Record record{};
  record.signature = signature;
  record.flags = called.flags;
  record.op = called.op;
  record.group = group.number;
  record.peer = called.peer;
  if (record.peer >= 0 && size_t(record.peer) < group.ranks.size()) record.peer = group.ranks[record.peer];
  record.tag = called.tag;
  record.reduce = called.reduce;
  record.size_bytes = tensor.nbytes();
  bool is_cuda = tensor.is_cuda(), is_watched = record.flags & kAsync || is_cuda;
  if (is_watched) record.version_issued = version(tensor);
  int64_t thread = thread_number(), site = thread < 0 ? -1 : site_number();
  if (site < 0) return nullptr;
  record.thread = thread;
  record.site = site;
  int64_t mark;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    mark = write(record);
  }
  if (mark == kNoRecord) return raise_errno();
  if (is_cuda && !note(Marks(1, mark), Moment::kArrived)) return nullptr;
  PyObject* result = PyLong_FromLongLong(mark);
  if (!is_watched || !result) return result;
  // A program may never use the result of a functional collective: its input is not kept for that.
  PyObject* kept = record.flags & kWaited ? PyWeakref_NewRef(called.tensor, nullptr) : Py_NewRef(called.tensor);
  PyObject* facts = kept ? Py_BuildValue("(iNO)", int(record.flags), kept, is_cuda ? Py_True : Py_False) : nullptr;
  int failed = facts ? PyDict_SetItem(state->watched, result, facts) : -1;
  Py_XDECREF(facts);
  if (!failed) return result;
  Py_DECREF(result);
  return nullptr;
}

PyObject* enter(PyObject* const* args) {
  PyObject *call = args[2], *tensors = PyTuple_GET_ITEM(call, 0);
  auto group = state->groups.find(args[1]);
  bool is_usual = group != state->groups.end() && PyTuple_GET_SIZE(tensors) == 1 && PyTuple_GET_SIZE(PyTuple_GET_ITEM(call, 4)) == 0;
  uint32_t signature = is_usual ? plain_signature(PyTuple_GET_ITEM(tensors, 0)) : 0;
  long flags = PyLong_AsLong(PyTuple_GET_ITEM(call, 5));
  if (!signature || flags & kBucket) return enter_slowly(args);
  PlainOp called;
  called.op = PyLong_AsLong(args[0]);
  called.flags = flags;
  called.peer = PyLong_AsLong(PyTuple_GET_ITEM(call, 1));
  called.tag = PyLong_AsLong(PyTuple_GET_ITEM(call, 2));
  called.reduce = PyLong_AsLong(PyTuple_GET_ITEM(call, 3));
  called.tensor = PyTuple_GET_ITEM(tensors, 0);
  return PyErr_Occurred() ? nullptr : enter_plain(called, group->second, signature);
}

// op, group, CallArgs: tensors, peer, tag, reduce, splits, flags
PyObject* py_enter(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "enter takes an op, a group and its arguments");
  if (!state->is_on) return PyLong_FromLongLong(kNoRecord);
  try {
    return enter(args);
  } catch (const std::exception&) {  // a tensor that does not tell its size
    return enter_slowly(args);
  }
}

// The usual op of a GPU: not async, and nothing else is waited for. The host has queued it.
bool is_queued(PyObject* mark) {
  PyObject* facts = PyDict_GetItemWithError(state->watched, mark);
  return facts && PyTuple_GET_ITEM(facts, 2) == Py_True && !PySet_GET_SIZE(state->waited_for) && state->is_on;
}

bool complete_queued(PyObject* mark) {
  Marks marks(1, PyLong_AsUnsignedLongLong(mark));
  return !PyDict_DelItem(state->watched, mark) && note(std::move(marks), Moment::kCompleted);
}

PyObject* complete_slowly(PyObject* const* marks, Py_ssize_t count) {
  static PyObject* const name = PyUnicode_InternFromString("complete_slowly");
  std::vector<PyObject*> words(1, state->recorder);
  words.insert(words.end(), marks, marks + count);
  return PyObject_VectorcallMethod(name, words.data(), words.size(), nullptr);
}

// A tuple of marks, the number of a moment
PyObject* py_note_on_device(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyTuple_Check(args[0])) return PyErr_Format(PyExc_TypeError, "note_on_device takes a tuple of marks and a moment");
  Marks marks;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); ++i)
    marks.push_back(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(args[0], i)));
  size_t moment = PyLong_AsUnsignedLong(args[1]);
  if (!PyErr_Occurred() && moment >= rollcall::kMoments) return PyErr_Format(PyExc_ValueError, "no moment %zu", moment);
  if (!note(std::move(marks), Moment(moment))) return nullptr;
  Py_RETURN_NONE;
}

// A function that tells whether the current stream is being captured, and one that finds the driver's handle of the current
// stream of a device; or None twice.
PyObject* py_follow_device(PyObject*, PyObject* args) {
  PyObject *is_capturing, *find_handle;
  if (!PyArg_ParseTuple(args, "OO", &is_capturing, &find_handle)) return nullptr;
  Py_INCREF(is_capturing);
  Py_XSETREF(state->is_capturing, is_capturing);
  Py_INCREF(find_handle);
  Py_XSETREF(state->find_handle, find_handle);
  Py_RETURN_NONE;
}

// The path of CUDA's driver.
PyObject* py_use_driver(PyObject*, PyObject* path) {
  const char* text = PyUnicode_AsUTF8(path);
  if (!text) return nullptr;
  try {
    state->clock->driver = std::make_unique<CudaDriver>(text);
  } catch (const std::exception& error) {
    return PyErr_Format(PyExc_OSError, "%s", error.what());
  }
  Py_RETURN_NONE;
}

// The age of a base.
PyObject* py_settle_device(PyObject*, PyObject* age) {
  uint64_t base_age_ns = PyLong_AsUnsignedLongLong(age);
  if (PyErr_Occurred()) return nullptr;
  DeviceClock* clock = state->clock;
  std::string text;
  Py_BEGIN_ALLOW_THREADS;
  try {
    clock->settle(base_age_ns);
  } catch (const std::exception& error) {
    text = error.what();
  }
  Py_END_ALLOW_THREADS;
  if (!text.empty()) return PyErr_Format(PyExc_RuntimeError, "%s", text.c_str());
  Py_RETURN_NONE;
}

PyObject* py_settle_in_ops(PyObject*, PyObject* age) {
  state->clock->settles_itself = PyLong_AsUnsignedLongLong(age);
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
}

PyObject* py_first_device(PyObject*, PyObject*) { return PyLong_FromLong(state->clock->first_device()); }

// Returns false with an exception set.
bool complete_op(PyObject* mark) {
  if (!PyDict_GET_SIZE(state->watched) && !PySet_GET_SIZE(state->waited_for)) {
    int64_t number = PyLong_AsLongLong(mark);
    if (number == -1 && PyErr_Occurred()) return false;
    if (number != kNoRecord && state->is_on) complete(number, now_ns());
    return true;
  }
  if (is_queued(mark)) return complete_queued(mark);
  if (PyErr_Occurred()) return false;
  PyObject* done = complete_slowly(&mark, 1);
  Py_XDECREF(done);
  return done;
}

// marks: Python follows the ends of async ops, and of those on a GPU.
PyObject* py_op_completed(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 1) return complete_slowly(args, count);
  if (!complete_op(args[0])) return nullptr;
  Py_RETURN_NONE;
}

// group, number, ranks
PyObject* py_name_group(PyObject*, PyObject* args) {
  PyObject *group, *ranks;
  unsigned int number;
  if (!PyArg_ParseTuple(args, "OIO!", &group, &number, &PyList_Type, &ranks)) return nullptr;
  Group named{number, {}};
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ranks); ++i) named.ranks.push_back(PyLong_AsLong(PyList_GET_ITEM(ranks, i)));
  if (PyErr_Occurred()) return nullptr;
  state->groups[group] = std::move(named);
  Py_RETURN_NONE;
}

// The address of a group that was destroyed.
PyObject* py_forget_group(PyObject*, PyObject* address) {
  void* group = PyLong_AsVoidPtr(address);
  if (!group && PyErr_Occurred()) return nullptr;
  state->groups.erase(static_cast<PyObject*>(group));
  Py_RETURN_NONE;
}

// tensor, number
PyObject* py_name_shape(PyObject*, PyObject* args) {
  PyObject* tensor;
  unsigned int number;
  if (!PyArg_ParseTuple(args, "OI", &tensor, &number)) return nullptr;
  try {
    if (number && is_plain(tensor) && !shape_number(THPVariable_Unpack(tensor))) state->shapes[state->shape] = number;
  } catch (const std::exception&) {  // it is described by Python each time
  }
  Py_RETURN_NONE;
}

PyObject* py_set_object_count(PyObject*, PyObject* count) {
  has_objects = PyLong_AsLong(count) > 0;
  Py_RETURN_NONE;
}

// The options of an all_reduce; null where they are not a plain object of torch's. pybind11 takes a microsecond for them; here
// they are read from the object that it wraps.
const c10d::AllreduceOptions* all_reduce_options(PyObject* options) {
  auto* instance = reinterpret_cast<pybind11::detail::instance*>(options);
  if (Py_TYPE(options) != state->options_type || !instance->simple_layout) return nullptr;
  auto* value = static_cast<const c10d::AllreduceOptions*>(instance->simple_value_holder[0]);
  return value && size_t(value->reduceOp.op_) < state->reduce_ops.size() ? value : nullptr;
}

// The reduce op of an all_reduce, and its flags.
PyObject* py_all_reduce_options(PyObject*, PyObject* options) {
  static PyObject* const name = PyUnicode_InternFromString("read_options");
  static PyObject* const flags[] = {PyLong_FromLong(0), PyLong_FromLong(kAsync)};
  const auto* value = all_reduce_options(options);
  if (value) return PyTuple_Pack(2, state->reduce_ops[size_t(value->reduceOp.op_)], flags[value->asyncOp]);
  return PyObject_CallMethodOneArg(state->recorder, name, options);
}

// The recorder's `watched` and `waited_for`, the type of an all_reduce's options, and numbers of reduce ops.
PyObject* py_attach(PyObject*, PyObject* args) {
  PyObject *watched, *waited_for, *type, *reduce_ops;
  if (!PyArg_ParseTuple(args, "O!O!O!O!", &PyDict_Type, &watched, &PySet_Type, &waited_for, &PyType_Type, &type, &PyTuple_Type, &reduce_ops))
    return nullptr;
  for (PyObject* kept : {watched, waited_for, type, reduce_ops}) Py_INCREF(kept);  // until the process ends
  state->watched = watched;
  state->waited_for = waited_for;
  state->options_type = reinterpret_cast<PyTypeObject*>(type);
  state->reduce_ops.clear();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(reduce_ops); ++i) state->reduce_ops.push_back(PyTuple_GET_ITEM(reduce_ops, i));
  Py_RETURN_NONE;
}

// Calls without a frame of Python. A hook of ../hooks is a few functions of Python around an original. Almost every op is an
// all_reduce that is waited for at once: for these, the calls below do what its hooks do. What is unusual is left to the hooks.

// As the methods of torch it is a function of C++ that torch.compile knows not to trace.
struct HookedCall {
  PyMethodDef definition;
  PyObject *original, *hooked;  // torch's own, and that with the hook around it
  PyObject *after, *failed;  // the hook's functions
};

// What the hooks share with these calls.
struct Shared {
  PyTypeObject *group = nullptr, *work = nullptr;  // torch's own classes; subclasses may override their methods
  PyObject* batches = nullptr;  // by id of a group: ops that begin together later
  PyObject* unwaited = nullptr;  // by id: handles that have not been waited for, and the state of each
  PyObject* newest = nullptr;  // a list of one: the id of the newest handle of an op that is not async
  PyObject* report = nullptr;  // takes the name of a hook and its error
} shared;

// Whether the program sees what functions of torch are asked for: ../hooks/patching.py.
bool has_modes() { return at::impl::PythonTorchFunctionTLS::stack_len() > 0; }

// The error that is set goes to the guard of the hooks. Returns false if it is the program's, and set again.
bool report_error(const char* name) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  PyObject* done = PyObject_CallFunction(shared.report, "sO", name, value);
  for (PyObject* each : {type, value, traceback, done}) Py_XDECREF(each);
  return done;
}

// Calls a function of a hook. Returns false with the program's error set.
bool call_hook(const char* name, PyObject* function, PyObject* state, PyObject* result = nullptr) {
  PyObject* done = PyObject_CallFunctionObjArgs(function, state, result, nullptr);
  Py_XDECREF(done);
  return done || report_error(name);
}

// The original has raised: the hook is told, and the program gets that error.
void tell_failure(const char* name, PyObject* failed, PyObject* state) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (call_hook(name, failed, state)) PyErr_Restore(type, value, traceback);
  else for (PyObject* each : {type, value, traceback}) Py_XDECREF(each);
}

// As works.keep_until_next of the hooks, where it keeps nothing yet. Returns false with an exception set.
bool keep_until_next(PyObject* work, PyObject* state) {
  PyObject *key = PyLong_FromVoidPtr(work), *kept = key ? PyTuple_Pack(2, work, state) : nullptr;
  bool is_kept = kept && !PyDict_SetItem(shared.unwaited, key, kept) && !PyList_SetItem(shared.newest, 0, Py_NewRef(key));
  Py_XDECREF(key);
  Py_XDECREF(kept);
  return is_kept;
}

// Returns the mark of an all_reduce as torch's own function calls it; null without an exception where it is unusual.
PyObject* enter_all_reduce(PyObject* const* args, uint16_t& flags) {
  if (PyDict_GET_SIZE(shared.batches) || !PyList_CheckExact(args[1]) || PyList_GET_SIZE(args[1]) != 1) return nullptr;
  const auto* options = all_reduce_options(args[2]);
  auto group = options ? state->groups.find(args[0]) : state->groups.end();
  if (group == state->groups.end()) return nullptr;
  PlainOp called;
  called.op = state->all_reduce;
  called.flags = flags = options->asyncOp ? kAsync : 0;
  called.reduce = PyLong_AsLong(state->reduce_ops[size_t(options->reduceOp.op_)]);
  called.tensor = PyList_GET_ITEM(args[1], 0);
  try {
    uint32_t signature = plain_signature(called.tensor);
    return signature ? enter_plain(called, group->second, signature) : nullptr;
  } catch (const std::exception&) {  // a tensor that does not tell its size
    return nullptr;
  }
}

PyObject* run_all_reduce(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const name = "all_reduce";
  auto* call = static_cast<HookedCall*>(PyCapsule_GetPointer(self, nullptr));
  bool is_usual = state->is_on && count == 3 && !names && Py_TYPE(args[0]) == shared.group && !has_modes();
  uint16_t flags = 0;
  PyObject* mark = is_usual ? enter_all_reduce(args, flags) : nullptr;
  if (!mark) {
    if (PyErr_Occurred() && !report_error(name)) return nullptr;
    return PyObject_Vectorcall(call->hooked, args, count, names);
  }
  PyObject* entered = Py_BuildValue("(Ni)", mark, int(flags));
  if (!entered) return nullptr;
  is_in_op = true;
  PyObject* result = PyObject_Vectorcall(call->original, args, count, nullptr);
  is_in_op = false;
  if (!result) {
    tell_failure(name, call->failed, entered);
  } else {
    bool is_first = !flags && Py_TYPE(result) == shared.work && !PyDict_GET_SIZE(shared.unwaited);
    bool is_well = is_first ? keep_until_next(result, entered) || report_error(name) : call_hook(name, call->after, entered, result);
    if (!is_well) Py_CLEAR(result);
  }
  Py_DECREF(entered);
  return result;
}

// Takes what is kept of a handle, where its op is not async; null without an exception where there is nothing.
PyObject* take_waited_for(PyObject* work) {
  PyObject *key = PyLong_FromVoidPtr(work), *kept = key ? PyDict_GetItemWithError(shared.unwaited, key) : nullptr;
  PyObject* entered = kept ? PyTuple_GET_ITEM(kept, 1) : nullptr;
  bool is_usual = entered && PyTuple_GET_SIZE(entered) == 2 && !PyLong_AsLong(PyTuple_GET_ITEM(entered, 1));
  PyObject* taken = is_usual ? Py_NewRef(entered) : nullptr;
  if (taken && PyDict_DelItem(shared.unwaited, key)) Py_CLEAR(taken);
  Py_XDECREF(key);
  return taken;
}

PyObject* run_wait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const name = "wait";
  auto* call = static_cast<HookedCall*>(PyCapsule_GetPointer(self, nullptr));
  bool is_usual = state->is_on && count == 1 && !names && Py_TYPE(args[0]) == shared.work && !has_modes();
  PyObject* entered = is_usual ? take_waited_for(args[0]) : nullptr;
  if (!entered) {
    if (PyErr_Occurred() && !report_error(name)) return nullptr;
    return PyObject_Vectorcall(call->hooked, args, count, names);
  }
  PyObject* result = PyObject_Vectorcall(call->original, args, count, nullptr);
  if (!result) tell_failure(name, call->failed, entered);
  else if (!complete_op(PyTuple_GET_ITEM(entered, 0)) && !report_error(name)) Py_CLEAR(result);
  Py_DECREF(entered);
  return result;
}

// Torch's own method, that with its hook around it, and the hook's two functions that follow: returns a method.
using Run = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

PyObject* make_call(Run run, PyObject* args) {
  PyObject *original, *hooked, *after, *failed;
  if (!PyArg_ParseTuple(args, "O!OOO", &PyCFunction_Type, &original, &hooked, &after, &failed)) return nullptr;
  for (PyObject* kept : {original, hooked, after, failed}) Py_INCREF(kept);  // until the process ends, as the hooks
  const PyMethodDef* known = reinterpret_cast<PyCFunctionObject*>(original)->m_ml;
  auto* call = new HookedCall{
      {known->ml_name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)), METH_FASTCALL | METH_KEYWORDS, known->ml_doc},
      original, hooked, after, failed};
  PyObject* capsule = PyCapsule_New(call, nullptr, nullptr);
  PyObject* function = capsule ? PyCFunction_NewEx(&call->definition, capsule, reinterpret_cast<PyCFunctionObject*>(original)->m_module) : nullptr;
  PyObject* method = function ? PyInstanceMethod_New(function) : nullptr;
  Py_XDECREF(capsule);
  Py_XDECREF(function);
  return method;
}

PyObject* py_make_all_reduce(PyObject*, PyObject* args) { return make_call(run_all_reduce, args); }

PyObject* py_make_wait(PyObject*, PyObject* args) { return make_call(run_wait, args); }

PyObject* py_share(PyObject*, PyObject* args) {
  PyObject *group, *work, *batches, *unwaited, *newest, *report;
  if (!PyArg_ParseTuple(args, "O!O!O!O!O!O", &PyType_Type, &group, &PyType_Type, &work, &PyDict_Type, &batches, &PyDict_Type, &unwaited,
                        &PyList_Type, &newest, &report))
    return nullptr;
  for (PyObject* kept : {group, work, batches, unwaited, newest, report}) Py_INCREF(kept);  // until the process ends
  shared = {reinterpret_cast<PyTypeObject*>(group), reinterpret_cast<PyTypeObject*>(work), batches, unwaited, newest, report};
  Py_RETURN_NONE;
}

// mark, rank: which rank a receive from any rank has taken a message of.
PyObject* py_received_from(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "received_from takes a mark and a rank");
  uint64_t mark = PyLong_AsUnsignedLongLong(args[0]);
  int64_t source = PyLong_AsLongLong(args[1]);
  if ((mark == uint64_t(-1) || source == -1) && PyErr_Occurred()) return nullptr;
  std::lock_guard<std::mutex> lock(state->mutex);
  Record* record = at(mark);
  record->peer = source;
  record->seq = next_seq(*record);
  Py_RETURN_NONE;
}

PyObject* py_site(PyObject*, PyObject*) {
  int64_t number = site_number();
  return number < 0 ? nullptr : PyLong_FromLongLong(number);
}

PyObject* py_completed(PyObject*, PyObject* number) {
  uint64_t mark = PyLong_AsUnsignedLongLong(number);
  if (mark == uint64_t(-1) && PyErr_Occurred()) return nullptr;
  complete(mark, now_ns());
  Py_RETURN_NONE;
}

int64_t begin_phase(PyObject* name, int64_t op, int64_t expected) {
  if (!state->is_on) return kNoRecord;
  int64_t place = phase_place(name);
  uint32_t phase = place < 0 ? 0 : state->named[place].number;
  int64_t site = place < 0 ? -1 : phase_site_number(place), thread = site < 0 ? -1 : thread_number();
  if (thread < 0) {
    stop_recording();
    return kNoRecord;
  }
  Record record{};
  record.op = op;
  record.site = site;
  record.peer = -1;
  record.thread = thread;
  record.phase = phase;
  record.size_bytes = expected;
  int64_t mark;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    mark = write(record);
    if (mark != kNoRecord) {
      state->phases.emplace_back(mark, state->phase);
      state->phase = phase;
      state->phase_site = site;
    }
  }
  if (mark == kNoRecord) {
    raise_errno();
    stop_recording();
  }
  return mark;
}

void end_phase(int64_t mark) {
  if (mark == kNoRecord || !state->is_on) return;
  std::lock_guard<std::mutex> lock(state->mutex);
  for (size_t i = state->phases.size(); i-- > 0;) {  // mostly the newest
    if (state->phases[i].first != uint64_t(mark)) continue;
    state->phase = state->phases[i].second;
    state->phases.erase(state->phases.begin() + i);
    break;
  }
  at(mark)->completed_ns = now_ns();
}

// name; for a forward also: op, expected gradients
PyObject* py_begin_phase(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 1 && count != 3) return PyErr_Format(PyExc_TypeError, "begin_phase takes a name, an op and a number");
  int64_t op = count == 1 ? state->phase_op : PyLong_AsLongLong(args[1]);
  int64_t expected = count == 1 ? 0 : PyLong_AsLongLong(args[2]);
  if ((op == -1 || expected == -1) && PyErr_Occurred()) return nullptr;
  return PyLong_FromLongLong(begin_phase(args[0], op, expected));
}

PyObject* py_end_phase(PyObject*, PyObject* mark) {
  int64_t place = PyLong_AsLongLong(mark);
  if (place == -1 && PyErr_Occurred()) return nullptr;
  end_phase(place);
  Py_RETURN_NONE;
}

// Whether the attribute is true; -1 with an exception set.
int is_true(PyObject* owner, PyObject* name) {
  PyObject* value = PyObject_GetAttr(owner, name);
  int is = value ? PyObject_IsTrue(value) : -1;
  Py_XDECREF(value);
  return is;
}

// How many gradients the reducer will average after this forward of a DDP module: 0 where it will not, or where a
// communication hook does; -1 with an exception set.
int64_t expected_gradients(PyObject* ddp) {
  static PyObject* const syncs = PyUnicode_InternFromString("require_backward_grad_sync");
  static PyObject* const hooks = PyUnicode_InternFromString("_comm_hooks");
  // Without a function that counts, buckets are not recorded: none are expected then.
  if (!state->count_gradients || !at::GradMode::is_enabled()) return 0;
  int does_sync = is_true(ddp, syncs), has_comm_hook = does_sync > 0 ? is_true(ddp, hooks) : 0;
  if (does_sync < 0 || has_comm_hook < 0) return -1;
  if (!does_sync || has_comm_hook) return 0;
  auto known = state->gradients.find(ddp);
  if (known != state->gradients.end()) return known->second;
  PyObject* answer = PyObject_CallOneArg(state->count_gradients, ddp);
  int64_t count = answer ? PyLong_AsLongLong(answer) : -1;
  Py_XDECREF(answer);
  if (count >= 0) state->gradients[ddp] = count;
  return count;
}

PyObject* py_begin_forward(PyObject*, PyObject* ddp) {
  static PyObject* const name = PyUnicode_InternFromString("forward");
  int64_t mark = kNoRecord;
  if (state->is_on) {
    int64_t expected = expected_gradients(ddp);
    if (expected < 0) stop_recording();
    else mark = begin_phase(name, state->forward_op, expected);
  }
  return PyLong_FromLongLong(mark);
}

// An optimizer's step, by the address of the optimizer.
PyObject* py_begin_step(PyObject*, PyObject* const* args, Py_ssize_t count) {
  static PyObject* const name = PyUnicode_InternFromString("step");
  if (count) state->steps[args[0]] = begin_phase(name, state->phase_op, 0);
  Py_RETURN_NONE;
}

PyObject* py_end_step(PyObject*, PyObject* const* args, Py_ssize_t count) {
  auto found = count ? state->steps.find(args[0]) : state->steps.end();
  if (found != state->steps.end()) {
    end_phase(found->second);
    state->steps.erase(found);
  }
  Py_RETURN_NONE;
}

// Marks all pending buckets as failed: their backward has raised.
PyObject* py_fail_buckets(PyObject*, PyObject*) {
  for (auto& each : take_pending()) at(each.mark)->flags = each.flags | kFailed;
  Py_RETURN_NONE;
}

PyObject* py_is_waiting(PyObject*, PyObject*) { return PyBool_FromLong(state->is_waiting); }

PyObject* py_count(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(state->count); }

// Whether the rank should be sampled. Without the mutex: in a child forked meanwhile it would stay locked for ever.
bool is_idle(uint64_t idle_ns) {
  uint64_t count = __atomic_load_n(reinterpret_cast<uint64_t*>(state->map + state->count_at), __ATOMIC_ACQUIRE);
  if (!count || state->is_waiting) return false;
  const Record& newest = *at(state->first + ((count - 1) % state->capacity) * sizeof(Record));
  bool is_in = !(newest.flags & kAsync) || newest.waited_ns;
  bool blocks = state->sorts[newest.op] != kEvent && !newest.completed_ns && !(newest.flags & kFailed) && is_in;
  return !blocks && now_ns() - std::max(newest.entered_ns, newest.completed_ns) >= idle_ns;
}

// The sampler's sleep, without the GIL: ends when the newest record is older than `idle_ns`, when `wake` is called, or
// after `intervals` checks.
PyObject* py_sleep(PyObject*, PyObject* args) {
  unsigned long long interval_ns, idle_ns, intervals;
  if (!PyArg_ParseTuple(args, "KKK", &interval_ns, &idle_ns, &intervals)) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  std::unique_lock<std::mutex> lock(state->sleep_mutex);
  for (uint64_t i = 0; i < intervals && !state->is_woken; ++i) {
    state->woken.wait_for(lock, std::chrono::nanoseconds(interval_ns));
    if (is_idle(idle_ns)) break;
  }
  state->is_woken = false;
  lock.unlock();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_wake(PyObject*, PyObject*) {
  std::lock_guard<std::mutex> lock(state->sleep_mutex);
  state->is_woken = true;
  state->woken.notify_all();
  Py_RETURN_NONE;
}

#define FAST(name) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(name))
PyMethodDef methods[] = {
    {"begin", py_begin, METH_VARARGS, "Write to this ring from now on."},
    {"stop", py_stop, METH_NOARGS, "Write no more."},
    {"watch_reducer", py_watch_reducer, METH_VARARGS, "Record the buckets of DDP."},
    {"set_in_op", py_set_in_op, METH_O, "Say whether this thread is in an op that is recorded already."},
    {"is_in_op", py_is_in_op, METH_NOARGS, "Whether it is."},
    {"write", FAST(py_write), METH_FASTCALL, "Write a record; returns its mark."},
    {"attach", py_attach, METH_VARARGS, "What the recorder in Python shares."},
    {"enter", FAST(py_enter), METH_FASTCALL, "Record an op that begins; returns its mark."},
    {"op_completed", FAST(py_op_completed), METH_FASTCALL, "Record that ops have completed."},
    {"note_on_device", FAST(py_note_on_device), METH_FASTCALL, "Have the time noted when the GPU comes to a moment of queued ops."},
    {"follow_device", py_follow_device, METH_VARARGS, "How to ask whether a CUDA graph is being captured."},
    {"use_driver", py_use_driver, METH_O, "Call CUDA's driver where most ops need it."},
    {"settle_device", py_settle_device, METH_O, "Record which ops a GPU has completed."},
    {"settle_in_ops", py_settle_in_ops, METH_O, "Do so with every op from now on."},
    {"first_device", py_first_device, METH_NOARGS, "The GPU that was used first, or -1."},
    {"name_group", py_name_group, METH_VARARGS, "The number and ranks of a group."},
    {"forget_group", py_forget_group, METH_O, "A group was destroyed."},
    {"name_shape", py_name_shape, METH_VARARGS, "The number of the signature of a tensor."},
    {"set_object_count", py_set_object_count, METH_O, "How many objects the collective of this thread is about."},
    {"all_reduce_options", py_all_reduce_options, METH_O, "The reduce op and flags of an all_reduce."},
    {"share", py_share, METH_VARARGS, "What the hooks share with calls."},
    {"make_all_reduce", py_make_all_reduce, METH_VARARGS, "An all_reduce that does what its hook does, mostly without Python."},
    {"make_wait", py_make_wait, METH_VARARGS, "The same, for the wait of a handle."},
    {"received_from", FAST(py_received_from), METH_FASTCALL, "Note whose message a receive from any rank has taken."},
    {"site", py_site, METH_NOARGS, "The number of the site of the caller."},
    {"completed", py_completed, METH_O, "Note that an op completed now."},
    {"begin_phase", FAST(py_begin_phase), METH_FASTCALL, "Begin a phase of the program; returns its mark."},
    {"end_phase", py_end_phase, METH_O, "End it."},
    {"begin_forward", py_begin_forward, METH_O, "Begin the forward of a DDP module; returns the mark of that phase."},
    {"begin_step", FAST(py_begin_step), METH_FASTCALL, "Begin the step of an optimizer."},
    {"end_step", FAST(py_end_step), METH_FASTCALL, "End it."},
    {"sleep", py_sleep, METH_VARARGS, "Let the sampler sleep until there is something to sample."},
    {"wake", py_wake, METH_NOARGS, "End that sleep."},
    {"fail_buckets", py_fail_buckets, METH_NOARGS, "Mark the buckets of this backward as failed."},
    {"is_waiting", py_is_waiting, METH_NOARGS, "Whether a backward waits for its buckets."},
    {"count", py_count, METH_NOARGS, "How many records have been written."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "recorder", "The C++ recorder.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_recorder() { return PyModule_Create(&module); }
