// Makes gloo's listening thread yield instead of spinning.
//
// When data arrives while another thread holds the connection's lock, gloo's listener leaves the data to that thread and
// calls epoll_wait again, which returns at once, since the data is still there. So the listener spins until the other
// thread releases the lock. Where no core is free, it spins on the core that the other thread waits for, until the end of
// its time slice: 3 ms, for an all_reduce that takes 0.3 ms. Here, a thread that polls again at once, several times, yields.
//
// torch calls epoll_wait through a slot of its library (its PLT). The address in that slot is replaced; calls of other
// libraries do not change.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

namespace {

constexpr uint64_t kAtOnceNs = 5000;  // too short to have read anything in between
constexpr int kMostAtOnce = 2;
constexpr std::string_view kFunction = "epoll_wait";

std::atomic<uint64_t> yields{0};

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000000000u + now.tv_nsec;
}

int wait(int fd, epoll_event* events, int most, int timeout_ms) {
  thread_local uint64_t returned_ns = 0;
  thread_local int at_once = 0;
  at_once = now_ns() - returned_ns < kAtOnceNs ? at_once + 1 : 0;
  if (at_once > kMostAtOnce) {
    yields.fetch_add(1, std::memory_order_relaxed);
    sched_yield();
  }
  int ready = epoll_wait(fd, events, most, timeout_ms);
  returned_ns = now_ns();
  return ready;
}

struct Sought {
  std::string_view library;
  void** slot;
};

// The tables that the dynamic section of a loaded library points to.
struct Tables {
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const uint32_t* hashes = nullptr;
  const ElfW(Rela)* slots = nullptr;
  size_t slots_bytes = 0;

  Tables(ElfW(Addr) base, const ElfW(Dyn)* entry) {
    for (; entry->d_tag != DT_NULL; ++entry) {
      ElfW(Addr) place = entry->d_un.d_ptr;
      if (place < base) place += base;  // some loaders leave file offsets here
      switch (entry->d_tag) {
        case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(place); break;
        case DT_STRTAB: names = reinterpret_cast<const char*>(place); break;
        case DT_GNU_HASH: hashes = reinterpret_cast<const uint32_t*>(place); break;
        case DT_JMPREL: slots = reinterpret_cast<const ElfW(Rela)*>(place); break;
        case DT_PLTRELSZ: slots_bytes = entry->d_un.d_val; break;
      }
    }
  }

  bool are_complete() const { return symbols && names && hashes && slots; }

  // The number of a symbol, or 0. Imported symbols come first, and are not hashed.
  size_t number_of(std::string_view name) const {
    size_t first_hashed = hashes[1];
    for (size_t number = 1; number < first_hashed; ++number)
      if (name == names + symbols[number].st_name) return number;
    return 0;
  }

  void** slot_of(ElfW(Addr) base, size_t number) const {
    for (auto* each = slots; each < slots + slots_bytes / sizeof *each; ++each)
      if (ELF64_R_SYM(each->r_info) == number) return reinterpret_cast<void**>(base + each->r_offset);
    return nullptr;
  }
};

int find_slot(dl_phdr_info* library, size_t, void* data) {
  auto* sought = static_cast<Sought*>(data);
  if (!std::string_view(library->dlpi_name).ends_with(sought->library)) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    if (library->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    ElfW(Addr) base = library->dlpi_addr;
    Tables tables(base, reinterpret_cast<const ElfW(Dyn)*>(base + library->dlpi_phdr[i].p_vaddr));
    size_t number = tables.are_complete() ? tables.number_of(kFunction) : 0;
    if (number) sought->slot = tables.slot_of(base, number);
  }
  return 1;
}

// Whether the slot still leads to epoll_wait, directly or through the library's own stub that looks it up: another tool
// may have put a function of its own there, which is left alone.
bool is_unchanged(const Sought& sought) {
  void* address = __atomic_load_n(sought.slot, __ATOMIC_ACQUIRE);
  if (address == reinterpret_cast<void*>(epoll_wait) || address == reinterpret_cast<void*>(wait)) return true;
  Dl_info found;
  return dladdr(address, &found) && std::string_view(found.dli_fname).ends_with(sought.library);
}

PyObject* py_install(PyObject*, PyObject* library) {
  Py_ssize_t length;
  const char* text = PyUnicode_AsUTF8AndSize(library, &length);
  if (!text) return nullptr;
  Sought sought{{text, size_t(length)}, nullptr};
  dl_iterate_phdr(find_slot, &sought);
  if (!sought.slot || !is_unchanged(sought)) Py_RETURN_FALSE;
  size_t page_bytes = sysconf(_SC_PAGESIZE);
  auto page = reinterpret_cast<uintptr_t>(sought.slot) & ~(page_bytes - 1);
  if (mprotect(reinterpret_cast<void*>(page), page_bytes, PROT_READ | PROT_WRITE)) Py_RETURN_FALSE;
  __atomic_store_n(sought.slot, reinterpret_cast<void*>(wait), __ATOMIC_RELEASE);
  Py_RETURN_TRUE;
}

PyObject* py_count(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(yields.load()); }

PyMethodDef methods[] = {
    {"install", py_install, METH_O, "Replace epoll_wait for this library; returns whether it calls it."},
    {"count", py_count, METH_NOARGS, "How often a thread has yielded."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "gloo_listener", "Makes gloo's listening thread yield.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_gloo_listener() { return PyModule_Create(&module); }
