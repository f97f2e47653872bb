// The recorder's hand in C++: what it does for every op, every phase and every bucket of DDP, without Python's help.
//
// Python keeps what happens once (files, names, sites) and is asked for a number when something is seen for the first
// time. ring.py and recorder.py say the same in Python, for machines without a compiler; layout.py is the format.
//
// Two rules keep it from waiting for itself: the mutex is held for a few stores only, and nobody asks for the
// interpreter (or lets go of it) while holding it. To let go of a tensor may be to ask for it.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

// Up to here we know what a frame is for the interpreter: to look at it makes no object of it.
#define KNOWS_FRAMES (PY_VERSION_HEX < 0x030E0000)
#if KNOWS_FRAMES
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

namespace {

constexpr uint16_t kAsync = 1, kFailed = 2, kWaited = 4, kBucket = 8;
constexpr uint64_t kChunkBytes = 64 << 10, kPageBytes = 4 << 10;
constexpr size_t kMostFrames = 8, kMostPhases = 64;
constexpr int64_t kNobody = -1;
constexpr uint8_t kEvent = 2;  // the sort of what is no op: layout.py
constexpr int kUsers = 1, kFloor = 2;  // kinds of code: sites.py

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
static_assert(sizeof(Record) == 96, "as layout.py has it");

struct Counter {
  uint32_t group;
  uint16_t op, nothing;
  uint64_t count, bytes, blocked_ns;
};
static_assert(sizeof(Counter) == 32, "as layout.py has it");

using Places = std::vector<uintptr_t>;

struct PlacesHash {
  size_t operator()(const Places& places) const {
    size_t hash = 1469598103934665603u;
    for (uintptr_t each : places) hash = (hash ^ each) * 1099511628211u;
    return hash;
  }
};

struct Phase {
  PyObject* name;  // the very object
  uint32_t number;
  // Where it began last: all frames from there outwards, the user's or not, and what site that is.
  Places trail;
  uint32_t site = 0;
};

struct Bucket {  // one that was named, and its numbers
  const c10d::ProcessGroup* group = nullptr;  // which lives as long as the DDP module, and a new module begins anew
  size_t index = 0;  // its place in a backward
  int64_t elements = 0;
  at::ScalarType type = at::ScalarType::Undefined;
  uint32_t group_number = 0, signature = 0;

  bool is_like(const Bucket& other) const {
    return group == other.group && index == other.index && elements == other.elements && type == other.type;
  }
};

struct Pending {  // a bucket on its way
  uint64_t mark;
  uint16_t flags;
  at::Tensor tensor;
};

struct Pen {
  // Where the ring is; written to under the mutex.
  std::mutex mutex;
  char* map = nullptr;
  int fd = -1;
  uint64_t first = 0, capacity = 0, reserved_end = 0, count_at = 0, counters_at = 0, counters_count_at = 0, most_counters = 0;
  uint64_t count = 0;
  uint32_t phase = 0, phase_site = 0;
  std::vector<uint8_t> sorts;
  std::vector<std::array<uint32_t, 3>> seqs;  // by the number of a group, and by sort: how many ops it has had
  std::map<std::pair<uint32_t, uint16_t>, uint64_t> counters;
  std::vector<std::pair<uint64_t, uint32_t>> phases;  // those that have begun: their marks, and the phase around each
  std::vector<Pending> pending;
  bool is_waiting = false;
  int failed_errno = 0;
  uint16_t phase_op = 0, forward_op = 0, all_reduce = 0, sum = 0;
  bool is_on = false;
  // What Python has said by now; used with the interpreter held, but for the buckets.
  PyObject* recorder = nullptr;
  pthread_t main_thread{};
  std::unordered_map<PyObject*, uint8_t> kinds;  // of codes
  std::unordered_map<Places, uint32_t, PlacesHash> sites;
  std::vector<Phase> named;  // side by side: they are few, and caches are cold
  std::unordered_map<PyObject*, int64_t> steps;  // by optimizer: the mark of its step
  PyObject* count_gradients = nullptr;
  std::unordered_map<PyObject*, int64_t> gradients;  // by DDP module: how many numbers it averages
  std::unordered_map<pthread_t, uint32_t> threads;
  std::vector<Bucket> buckets;
  // The sampler's.
  std::mutex nap_mutex;
  std::condition_variable woken;
  bool is_woken = false;
};

Pen* const pen = new Pen;  // never destroyed: threads may outlive everything else
thread_local bool is_inside = false;  // an op that Python asked for, and has recorded

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000000000u + now.tv_nsec;
}

Record* at(uint64_t mark) { return reinterpret_cast<Record*>(pen->map + mark); }

// Have room on the disk before it is written to: on a full one, a write to the map would kill the process.
bool reserve(uint64_t end) {
  static const std::vector<char> zeros(kChunkBytes);
  while (end > pen->reserved_end) {
    ssize_t written = pwrite(pen->fd, zeros.data(), zeros.size(), pen->reserved_end);
    if (written < ssize_t(zeros.size())) {
      pen->failed_errno = written < 0 ? errno : ENOSPC;
      pen->is_on = false;
      return false;
    }
    // All its pages at once: one by one, as they are come to, takes several times as long.
    madvise(pen->map + pen->reserved_end / kPageBytes * kPageBytes, zeros.size(), MADV_POPULATE_WRITE);
    pen->reserved_end += zeros.size();
  }
  return true;
}

// Sum up the op that is about to be overwritten.
void fold(const Record& old) {
  if (pen->sorts[old.op] == kEvent) return;
  auto key = std::make_pair(old.group, old.op);
  auto found = pen->counters.find(key);
  if (found == pen->counters.end()) {
    uint64_t place = pen->counters.size();
    if (place == pen->most_counters) return;
    found = pen->counters.emplace(key, place).first;
    uint64_t count = place + 1;
    memcpy(pen->map + pen->counters_count_at, &count, sizeof count);
  }
  auto* counter = reinterpret_cast<Counter*>(pen->map + pen->counters_at) + found->second;
  uint64_t since_ns = old.flags & kAsync ? old.waited_ns : old.entered_ns;
  *counter = {
      old.group, old.op, 0, counter->count + 1, counter->bytes + old.size_bytes,
      counter->blocked_ns + (old.completed_ns && since_ns ? old.completed_ns - since_ns : 0)};
}

// Under the mutex. Returns the mark: where the record is.
int64_t write(Record record) {
  uint64_t mark = pen->first + (pen->count % pen->capacity) * sizeof(Record);
  if (!reserve(mark + sizeof(Record))) return kNobody;
  if (record.group) {
    if (record.group >= pen->seqs.size()) pen->seqs.resize(record.group + 1);
    record.seq = ++pen->seqs[record.group][pen->sorts[record.op]];
    record.phase = pen->phase;
  }
  if (++pen->count > pen->capacity) fold(*at(mark));
  record.number = pen->count;
  record.entered_ns = now_ns();
  record.version_waited = record.version_issued;
  memcpy(at(mark), &record, sizeof record);
  // Only now does it count: whoever reads meanwhile sees whole records.
  __atomic_store_n(reinterpret_cast<uint64_t*>(pen->map + pen->count_at), pen->count, __ATOMIC_RELEASE);
  if (mark + 3 * sizeof(Record) <= pen->reserved_end) {  // the next one will find its place in the cache
    __builtin_prefetch(at(mark + sizeof(Record)), 1);
    __builtin_prefetch(at(mark + 2 * sizeof(Record)) - 1, 1);
  }
  return mark;
}

// Asking Python; all of these need the interpreter.

// A number, or -1 with an exception.
int64_t ask(const char* method, PyObject* argument) {
  PyObject* told = argument ? PyObject_CallMethod(pen->recorder, method, "(O)", argument)
                            : PyObject_CallMethod(pen->recorder, method, nullptr);
  if (!told) return -1;
  int64_t number = PyLong_AsLongLong(told);
  Py_DECREF(told);
  return number;
}

// The recorder must never be the end of the program.
void give_up() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject* done = PyObject_CallMethod(pen->recorder, "give_up", "(O)", value ? value : Py_None);
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

int64_t thread_number() {
  pthread_t self = pthread_self();
  if (pthread_equal(self, pen->main_thread)) return 0;
  auto found = pen->threads.find(self);
  if (found != pen->threads.end()) return found->second;
  int64_t number = ask("name_thread", nullptr);
  if (number >= 0) pen->threads[self] = number;
  return number;
}

// Frames from here outwards, as long as `visit(code, instruction)` says so.
#if KNOWS_FRAMES
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
  bool goes_on = true;
  while (frame && goes_on) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    goes_on = visit(reinterpret_cast<PyObject*>(code), uintptr_t(PyFrame_GetLasti(frame)));
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
}
#endif

// What kind of code it is, as sites.py has it; -1 with an exception. Asks once.
int kind_of(PyObject* code) {
  auto known = pen->kinds.find(code);
  if (known != pen->kinds.end()) return known->second;
  int64_t kind = ask("look_at", code);
  if (kind < 0) return -1;
  Py_INCREF(code);  // as long as it is here, its address is its own
  return pen->kinds[code] = kind;
}

// The user's frames from here outwards, innermost first; without any, the outermost frame. The whole way goes into the
// trail, if there is one.
int64_t site_number(Places* trail = nullptr) {
  Places places;
  places.reserve(2 * kMostFrames);
  uintptr_t here[2] = {0, 0};
  bool has_failed = false;
  if (trail) trail->clear();
  walk([&](PyObject* code, uintptr_t instruction) {
    int kind = kind_of(code);
    has_failed = kind < 0;
    here[0] = reinterpret_cast<uintptr_t>(code);
    here[1] = instruction;
    if (trail) trail->insert(trail->end(), here, here + 2);
    if (kind == kUsers) places.insert(places.end(), here, here + 2);
    bool is_floor = kind == kFloor && !places.empty();
    return !has_failed && !is_floor && places.size() < 2 * kMostFrames;
  });
  if (has_failed) return -1;
  bool has_users = !places.empty();
  if (!has_users && here[0]) places.assign(here, here + 2);
  auto found = pen->sites.find(places);
  if (found != pen->sites.end()) return found->second;
  PyObject* tuple = PyTuple_New(places.size());
  if (!tuple) return -1;
  for (size_t i = 0; i < places.size(); ++i) PyTuple_SET_ITEM(tuple, i, PyLong_FromUnsignedLongLong(places[i]));
  int64_t number = ask("name_site", tuple);
  Py_DECREF(tuple);
  // A thread without a line of the user's is said to be where the main one is, which changes.
  bool is_its_own = pthread_equal(pthread_self(), pen->main_thread) || has_users;
  if (number >= 0 && is_its_own) pen->sites[places] = number;
  return number;
}

// The site of a phase that begins. It mostly begins where it did before: to see that takes half as long.
int64_t phase_site_number(size_t place) {
  if (!pthread_equal(pthread_self(), pen->main_thread)) return site_number();
  const Places& trail = pen->named[place].trail;
  size_t seen = 0, size = trail.size();
  walk([&](PyObject* code, uintptr_t instruction) {
    bool is_same = seen < size && trail[seen] == reinterpret_cast<uintptr_t>(code) && trail[seen + 1] == instruction;
    seen = is_same ? seen + 2 : size + 1;
    return is_same && seen < size;
  });
  if (size && seen == size) return pen->named[place].site;
  Places walked;
  int64_t site = site_number(&walked);  // may run Python, and that may begin phases
  if (site < 0 || place >= pen->named.size()) return site;
  pen->named[place].trail.swap(walked);
  pen->named[place].site = site;
  return site;
}

void forget_phases() {
  std::vector<Phase> gone;
  gone.swap(pen->named);
  for (auto& each : gone) Py_DECREF(each.name);
}

// Where it is among those that are known; -1 with an exception.
int64_t phase_place(PyObject* name) {
  for (size_t place = 0; place < pen->named.size(); ++place)
    if (pen->named[place].name == name) return place;
  int64_t number = ask("name_phase", name);
  if (number < 0) return -1;
  if (pen->named.size() >= kMostPhases) forget_phases();  // somebody makes up names all the time
  Py_INCREF(name);
  pen->named.push_back({name, uint32_t(number), {}, 0});
  return pen->named.size() - 1;
}

// DDP's buckets.

uint32_t version(const at::Tensor& tensor) {
  if (tensor.is_inference()) return 0;
  if (tensor.is_view() && tensor._base().numel() > tensor.numel()) return 0;
  return tensor._version();
}

// As tensors.py has it, for those that DDP sends.
uint64_t size_bytes(const at::Tensor& tensor) {
  if (tensor.is_sparse()) return tensor._indices().nbytes() + tensor._values().nbytes();
  return tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
}

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

// With the numbers of its group and signature; asks Python once. The mutex is free meanwhile.
bool name_bucket(const at::Tensor& tensor, const c10d::ProcessGroup& group, Bucket& bucket) {
  {
    std::lock_guard<std::mutex> lock(pen->mutex);
    bucket = {&group, pen->pending.size(), tensor.numel(), tensor.scalar_type()};
    for (auto& known : pen->buckets) {
      if (!known.is_like(bucket)) continue;
      bucket = known;
      return true;
    }
  }
  Gil gil;
  PyObject* told = nullptr;
  PyObject* wrapped = THPVariable_Wrap(tensor);
  if (wrapped)
    told = PyObject_CallMethod(pen->recorder, "name_bucket", "Ons", wrapped, Py_ssize_t(bucket.index), group.getGroupName().c_str());
  Py_XDECREF(wrapped);
  bool is_named = told && PyArg_ParseTuple(told, "II", &bucket.group_number, &bucket.signature);
  Py_XDECREF(told);
  if (!is_named) {
    give_up();
    return false;
  }
  std::lock_guard<std::mutex> lock(pen->mutex);
  pen->buckets.push_back(bucket);
  return true;
}

// What was on its way, and is no more.
std::vector<Pending> take_pending() {
  std::vector<Pending> taken;
  std::lock_guard<std::mutex> lock(pen->mutex);
  taken.swap(pen->pending);
  pen->is_waiting = false;
  return taken;
}

void buckets_are_over() {
  std::vector<uint64_t> on_device;
  uint64_t over_ns = now_ns();
  for (auto& each : take_pending()) {
    if (each.tensor.is_cpu()) at(each.mark)->completed_ns = over_ns;
    else on_device.push_back(each.mark);
  }
  if (on_device.empty()) return;
  Gil gil;  // the host is past them; the GPU may not be
  PyObject* marks = PyTuple_New(on_device.size());
  for (size_t i = 0; marks && i < on_device.size(); ++i)
    PyTuple_SET_ITEM(marks, i, PyLong_FromUnsignedLongLong(on_device[i]));
  PyObject* done = marks ? PyObject_CallMethod(pen->recorder, "note_on_device", "(O)", marks) : nullptr;
  if (!done) give_up();
  Py_XDECREF(done);
  Py_XDECREF(marks);
}

// What fails while recording ends it here, and does not reach the program. The mutex is free by then.
template <typename Work>
void guarded(Work work) {
  std::string said = "an unknown error";
  try {
    work();
    return;
  } catch (const std::exception& error) {
    said = error.what();
  } catch (...) {
  }
  take_pending();
  Gil gil;
  PyErr_SetString(PyExc_RuntimeError, said.substr(0, said.find('\n')).c_str());
  give_up();
}

// Callbacks run at the end of backward, in their order. This one comes before the reducer's own, which waits for all
// buckets; the one that it adds comes after it.
void wait_for_buckets() {
  {
    std::lock_guard<std::mutex> lock(pen->mutex);
    uint64_t waited_ns = now_ns();
    for (auto& each : pen->pending) {
      Record* record = at(each.mark);
      record->waited_ns = waited_ns;
      record->flags = each.flags | kWaited;
      record->version_waited = version(each.tensor);
    }
    pen->is_waiting = !pen->pending.empty();
  }
  torch::autograd::Engine::get_default_engine().queue_callback([] { guarded(buckets_are_over); });
}

int64_t enter_bucket(const at::Tensor& tensor, const c10d::ProcessGroup& group) {
  Bucket bucket;
  if (!name_bucket(tensor, group, bucket)) return kNobody;
  int64_t thread = 0;
  if (!pthread_equal(pthread_self(), pen->main_thread)) {
    Gil gil;
    thread = thread_number();
    if (thread < 0) {
      give_up();
      return kNobody;
    }
  }
  Record record{};
  record.op = pen->all_reduce;
  record.flags = kAsync | kBucket;
  record.group = bucket.group_number;
  record.signature = bucket.signature;
  record.peer = -1;
  record.thread = thread;
  record.reduce = pen->sum;
  record.version_issued = version(tensor);
  record.size_bytes = size_bytes(tensor);
  std::lock_guard<std::mutex> lock(pen->mutex);
  record.site = pen->phase_site;  // that of the backward that it is a part of
  return write(record);
}

// It is on its way: keep it until the backward ends.
void follow_bucket(int64_t mark, const at::Tensor& tensor) {
  bool is_first;
  {
    std::lock_guard<std::mutex> lock(pen->mutex);
    at(mark)->issued_ns = now_ns();
    is_first = pen->pending.empty();
    pen->pending.push_back({uint64_t(mark), kAsync | kBucket, tensor});
  }
  if (!is_first) return;
  try {
    torch::autograd::Engine::get_default_engine().queue_callback([] { guarded(wait_for_buckets); });
  } catch (const std::exception&) {  // not in a backward: nobody tells us when it ends
    take_pending();
  }
}

void all_reduce(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto below = keys & c10::after_autograd_keyset;
  if (is_inside || !pen->is_on) {
    op.redispatchBoxed(below, stack);
    return;
  }
  int64_t mark = kNobody;
  at::Tensor tensor;
  guarded([&] {
    size_t arguments = op.schema().arguments().size();
    tensor = torch::jit::peek(*stack, 0, arguments).toTensorList().get(0);
    mark = enter_bucket(tensor, *torch::jit::peek(*stack, 1, arguments).toCustomClass<c10d::ProcessGroup>());
  });
  op.redispatchBoxed(below, stack);
  if (mark != kNobody) guarded([&] { follow_bucket(mark, tensor); });
}

// What Python calls.

PyObject* raise_errno() {
  errno = pen->failed_errno;
  pen->failed_errno = 0;
  return PyErr_SetFromErrno(PyExc_OSError);
}

PyObject* py_begin(PyObject*, PyObject* args) {
  PyObject *recorder, *map, *sorts;
  unsigned long long first, capacity, count_at, counters_at, counters_count_at, most_counters, record_bytes;
  int fd, phase_op, forward_op, all_reduce_op, sum;
  if (!PyArg_ParseTuple(args, "OOiKKKKKKKO!iiii", &recorder, &map, &fd, &first, &capacity, &record_bytes, &count_at, &counters_at,
                        &counters_count_at, &most_counters, &PyBytes_Type, &sorts, &phase_op, &forward_op, &all_reduce_op, &sum))
    return nullptr;
  if (record_bytes != sizeof(Record)) return PyErr_Format(PyExc_ValueError, "records of %llu bytes", record_bytes);
  Py_buffer view;  // never released: what it shows is written to until the process ends
  if (PyObject_GetBuffer(map, &view, PyBUF_WRITABLE)) return nullptr;
  take_pending();
  forget_phases();
  std::lock_guard<std::mutex> lock(pen->mutex);
  Py_INCREF(recorder);
  pen->recorder = recorder;
  pen->map = static_cast<char*>(view.buf);
  pen->fd = fd;
  pen->first = pen->reserved_end = first;
  pen->capacity = capacity;
  pen->count_at = count_at;
  pen->counters_at = counters_at;
  pen->counters_count_at = counters_count_at;
  pen->most_counters = most_counters;
  auto* bytes = reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(sorts));
  pen->sorts.assign(bytes, bytes + PyBytes_GET_SIZE(sorts));
  pen->phase_op = phase_op;
  pen->forward_op = forward_op;
  pen->all_reduce = all_reduce_op;
  pen->sum = sum;
  pen->main_thread = pthread_self();
  pen->count = pen->phase = pen->phase_site = pen->failed_errno = 0;
  pen->seqs.clear();
  pen->counters.clear();
  pen->phases.clear();
  pen->sites.clear();  // another ring has other numbers
  pen->steps.clear();
  pen->threads.clear();
  pen->buckets.clear();
  pen->is_on = true;
  Py_RETURN_NONE;
}

PyObject* py_stop(PyObject*, PyObject*) {
  pen->is_on = false;
  Py_RETURN_NONE;
}

// See every all_reduce that passes the autograd key, from now on. `count_gradients` says how many numbers a module averages.
PyObject* py_watch_reducer(PyObject*, PyObject* count_gradients) {
  Py_INCREF(count_gradients);
  Py_XSETREF(pen->count_gradients, count_gradients);
  pen->gradients.clear();  // a module that is new may have the address of one that is no more
  static std::vector<torch::Library>* libraries = nullptr;
  try {
    if (!libraries) {
      libraries = new std::vector<torch::Library>;
      for (auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
        libraries->emplace_back(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
        libraries->back().impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&all_reduce>());
      }
    }
  } catch (const std::exception& error) {
    return PyErr_Format(PyExc_RuntimeError, "%s", error.what());
  }
  std::lock_guard<std::mutex> lock(pen->mutex);
  pen->buckets.clear();  // a group of the same name may be another one by now
  Py_RETURN_NONE;
}

PyObject* py_inside(PyObject*, PyObject* is) {
  is_inside = is == Py_True;
  Py_RETURN_NONE;
}

// op, flags, group, site, signature, peer, tag, thread, reduce, version, size_bytes
PyObject* py_add(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t kFields = 11;
  if (count != kFields) return PyErr_Format(PyExc_TypeError, "add takes %zd numbers", kFields);
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
    std::lock_guard<std::mutex> lock(pen->mutex);
    mark = write(record);
  }
  if (mark == kNobody) return raise_errno();
  return PyLong_FromLongLong(mark);
}

PyObject* py_site(PyObject*, PyObject*) {
  int64_t number = site_number();
  return number < 0 ? nullptr : PyLong_FromLongLong(number);
}

PyObject* py_completed(PyObject*, PyObject* mark) {
  uint64_t place = PyLong_AsUnsignedLongLong(mark);
  if (place == uint64_t(-1) && PyErr_Occurred()) return nullptr;
  at(place)->completed_ns = now_ns();
  Py_RETURN_NONE;
}

int64_t begin_phase(PyObject* name, int64_t op, int64_t expected) {
  if (!pen->is_on) return kNobody;
  int64_t place = phase_place(name);
  uint32_t phase = place < 0 ? 0 : pen->named[place].number;
  int64_t site = place < 0 ? -1 : phase_site_number(place), thread = site < 0 ? -1 : thread_number();
  if (thread < 0) {
    give_up();
    return kNobody;
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
    std::lock_guard<std::mutex> lock(pen->mutex);
    mark = write(record);
    if (mark != kNobody) {
      pen->phases.emplace_back(mark, pen->phase);
      pen->phase = phase;
      pen->phase_site = site;
    }
  }
  if (mark == kNobody) {
    raise_errno();
    give_up();
  }
  return mark;
}

void end_phase(int64_t mark) {
  if (mark == kNobody || !pen->is_on) return;
  std::lock_guard<std::mutex> lock(pen->mutex);
  for (size_t i = pen->phases.size(); i-- > 0;) {  // mostly the newest
    if (pen->phases[i].first != uint64_t(mark)) continue;
    pen->phase = pen->phases[i].second;
    pen->phases.erase(pen->phases.begin() + i);
    break;
  }
  at(mark)->completed_ns = now_ns();
}

// name, and if it is no plain phase: op, expected
PyObject* py_begin_phase(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 1 && count != 3) return PyErr_Format(PyExc_TypeError, "begin_phase takes a name, an op and a number");
  int64_t op = count == 1 ? pen->phase_op : PyLong_AsLongLong(args[1]);
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

// Whether it has a true one; -1 with an exception.
int is_true(PyObject* owner, PyObject* name) {
  PyObject* value = PyObject_GetAttr(owner, name);
  int is = value ? PyObject_IsTrue(value) : -1;
  Py_XDECREF(value);
  return is;
}

// How many numbers the reducer will average after this forward of a DDP module: 0 where it will not, or where others do
// it; -1 with an exception.
int64_t expected_gradients(PyObject* ddp) {
  static PyObject* const syncs = PyUnicode_InternFromString("require_backward_grad_sync");
  static PyObject* const hooks = PyUnicode_InternFromString("_comm_hooks");
  if (!at::GradMode::is_enabled()) return 0;
  int does_sync = is_true(ddp, syncs), is_done_by_others = does_sync > 0 ? is_true(ddp, hooks) : 0;
  if (does_sync < 0 || is_done_by_others < 0) return -1;
  if (!does_sync || is_done_by_others) return 0;
  auto known = pen->gradients.find(ddp);
  if (known != pen->gradients.end()) return known->second;
  PyObject* told = PyObject_CallOneArg(pen->count_gradients, ddp);
  int64_t count = told ? PyLong_AsLongLong(told) : -1;
  Py_XDECREF(told);
  if (count >= 0) pen->gradients[ddp] = count;
  return count;
}

PyObject* py_forward_begins(PyObject*, PyObject* ddp) {
  static PyObject* const name = PyUnicode_InternFromString("forward");
  int64_t mark = kNobody;
  if (pen->is_on) {
    int64_t expected = expected_gradients(ddp);
    if (expected < 0) give_up();
    else mark = begin_phase(name, pen->forward_op, expected);
  }
  return PyLong_FromLongLong(mark);
}

// An optimizer's step: these are its hooks themselves, and get it first.
PyObject* py_step_begins(PyObject*, PyObject* const* args, Py_ssize_t count) {
  static PyObject* const name = PyUnicode_InternFromString("step");
  if (count) pen->steps[args[0]] = begin_phase(name, pen->phase_op, 0);
  Py_RETURN_NONE;
}

PyObject* py_step_ends(PyObject*, PyObject* const* args, Py_ssize_t count) {
  auto found = count ? pen->steps.find(args[0]) : pen->steps.end();
  if (found != pen->steps.end()) {
    end_phase(found->second);
    pen->steps.erase(found);
  }
  Py_RETURN_NONE;
}

// The backward that they were a part of has failed.
PyObject* py_fail_buckets(PyObject*, PyObject*) {
  for (auto& each : take_pending()) at(each.mark)->flags = each.flags | kFailed;
  Py_RETURN_NONE;
}

PyObject* py_is_waiting(PyObject*, PyObject*) { return PyBool_FromLong(pen->is_waiting); }

PyObject* py_count(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(pen->count); }

// Whether the rank is worth a look. Without the mutex: a rank that forks meanwhile would have it locked for ever.
bool is_idle(uint64_t idle_ns) {
  uint64_t count = __atomic_load_n(reinterpret_cast<uint64_t*>(pen->map + pen->count_at), __ATOMIC_ACQUIRE);
  if (!count || pen->is_waiting) return false;
  const Record& newest = *at(pen->first + ((count - 1) % pen->capacity) * sizeof(Record));
  bool is_in = !(newest.flags & kAsync) || newest.waited_ns;
  bool blocks = pen->sorts[newest.op] != kEvent && !newest.completed_ns && !(newest.flags & kFailed) && is_in;
  return !blocks && now_ns() - std::max(newest.entered_ns, newest.completed_ns) >= idle_ns;
}

// The sampler's rest, without the interpreter: a beat after the other, until the newest record has been idle for long
// enough to ask where the rank is, or somebody wakes it, or so many beats have passed.
PyObject* py_rest(PyObject*, PyObject* args) {
  unsigned long long beat_ns, idle_ns, beats;
  if (!PyArg_ParseTuple(args, "KKK", &beat_ns, &idle_ns, &beats)) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  std::unique_lock<std::mutex> lock(pen->nap_mutex);
  for (uint64_t beat = 0; beat < beats && !pen->is_woken; ++beat) {
    pen->woken.wait_for(lock, std::chrono::nanoseconds(beat_ns));
    if (is_idle(idle_ns)) break;
  }
  pen->is_woken = false;
  lock.unlock();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_wake(PyObject*, PyObject*) {
  std::lock_guard<std::mutex> lock(pen->nap_mutex);
  pen->is_woken = true;
  pen->woken.notify_all();
  Py_RETURN_NONE;
}

#define FAST(name) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(name))
PyMethodDef methods[] = {
    {"begin", py_begin, METH_VARARGS, "Write to this ring."},
    {"stop", py_stop, METH_NOARGS, "Write no more."},
    {"watch_reducer", py_watch_reducer, METH_O, "See the buckets of DDP."},
    {"inside", py_inside, METH_O, "Whether this thread is in an op that Python has recorded."},
    {"add", FAST(py_add), METH_FASTCALL, "Write a record; returns where it is."},
    {"site", py_site, METH_NOARGS, "The number of the site that this is called from."},
    {"completed", py_completed, METH_O, "An op is over."},
    {"begin_phase", FAST(py_begin_phase), METH_FASTCALL, "A part of the program begins; returns its mark."},
    {"end_phase", py_end_phase, METH_O, "It is over."},
    {"forward_begins", py_forward_begins, METH_O, "A DDP module begins its forward; returns the mark of that phase."},
    {"step_begins", FAST(py_step_begins), METH_FASTCALL, "A hook: an optimizer begins its step."},
    {"step_ends", FAST(py_step_ends), METH_FASTCALL, "A hook: it is over."},
    {"rest", py_rest, METH_VARARGS, "The sampler's rest, until there is something to look at."},
    {"wake", py_wake, METH_NOARGS, "Ends it."},
    {"fail_buckets", py_fail_buckets, METH_NOARGS, "The backward has failed."},
    {"is_waiting", py_is_waiting, METH_NOARGS, "Whether a backward waits for its buckets."},
    {"count", py_count, METH_NOARGS, "How many records have been written."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "recorder", "The recorder's hand in C++.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_recorder() { return PyModule_Create(&module); }
