// What the parts of the recorder share: the ring, the numbers that Python has given, and what is under way. There is one state
// for the process; each thread also has two flags.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <sys/stat.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "device_clock.h"

namespace rollcall {
namespace {

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

}  // namespace
}  // namespace rollcall
