// Writes the ring of records, and lets the sampler sleep while they are new. ../ring_format.py defines the file; ../ring.py does
// the same in Python.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "device_clock.h"
#include "state.h"

namespace rollcall {
namespace {

constexpr uint16_t kAsync = 1, kFailed = 2, kWaited = 4, kBucket = 8;
constexpr uint64_t kChunkBytes = 64 << 10, kPageBytes = 4 << 10;
constexpr int64_t kNoRecord = -1;
constexpr uint8_t kPair = 1, kEvent = 2;  // sorts of records: sends and receives, what is no op: ring_format.py

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

struct Counter {
  uint32_t group;
  uint16_t op, nothing;
  uint64_t count, bytes, blocked_ns;
};
static_assert(sizeof(Counter) == 32, "the size that ring_format.py defines");

Record* at(uint64_t mark) { return reinterpret_cast<Record*>(state->map + mark); }

void complete(uint64_t mark, uint64_t completed_ns) { at(mark)->completed_ns = completed_ns; }

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

// No record could be written: the exception of Python that says why.
PyObject* raise_errno() {
  errno = state->failed_errno;
  state->failed_errno = 0;
  return PyErr_SetFromErrno(PyExc_OSError);
}

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

PyObject* py_completed(PyObject*, PyObject* number) {
  uint64_t mark = PyLong_AsUnsignedLongLong(number);
  if (mark == uint64_t(-1) && PyErr_Occurred()) return nullptr;
  complete(mark, now_ns());
  Py_RETURN_NONE;
}

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

}  // namespace
}  // namespace rollcall
