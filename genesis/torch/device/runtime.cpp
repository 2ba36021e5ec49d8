// What PyTorch wants from a device in C++: an allocator, a guard, hooks, generators, and the
// operators that only look at metadata. Everything that computes is Python, but for operators that
// were called before: their graphs are copied here.
//
// Storages are real, but their addresses are handles: they lie in a reserved range that nobody can
// read or write. What a handle stands for is in a Python dictionary, {address: (contents, layout)},
// where the layout numbers a dtype, sizes, strides and an offset. A tensor of the same layout sees
// the contents as they are; `find` answers that question for most tensors, without Python.
//
// Freeing runs anywhere, also without the interpreter's lock or while an exception is pending, so it
// only queues the handle; `collect` forgets what is queued when Python next comes by.

#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/HIPHooksInterface.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/detail/MTIAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <structmember.h>  // before Python 3.12 slots are described there

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::SymInt;
using c10::SymIntArrayRef;

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

DeviceIndex device_count = 0;
thread_local DeviceIndex current = 0;

// The Python side, set once by `start` and never released.
PyObject* contents = nullptr;         // {address: (contents, layout)}
PyObject* synchronize = nullptr;      // (device index)
PyObject* seed_generator = nullptr;   // (address, device index, key, offset)
PyObject* generator_state = nullptr;  // (address, device index) -> (key, offset)

Device checked(Device device) {
  DeviceIndex index = device.has_index() ? device.index() : current;
  TORCH_CHECK(index >= 0 && index < device_count, "genesis:", int(index), " does not exist: there ",
              device_count == 1 ? "is" : "are", " ", int(device_count), " device",
              device_count == 1 ? "" : "s");
  return Device(kDevice, index);
}

// ---- handles

constexpr size_t kMost = size_t(1) << 46, kLeast = size_t(1) << 32;  // bytes to reserve
constexpr int kSmallest = 6;  // log2 of the bytes between neighbouring handles

struct Handle {
  uintptr_t address;
  int size_class;  // log2 of the bytes it stands for
  DeviceIndex device = -1;
  size_t bytes = 0;  // of a storage; none is counted for others
};

struct Change {  // the contents of a handle move to another, or to nobody
  Handle* from;
  uintptr_t to;
};

class Handles {
 public:
  Handle* take(size_t bytes) {
    int size_class = std::max(kSmallest, int(std::bit_width(bytes - 1)));
    std::lock_guard<std::mutex> hold(mutex_);
    auto& free = free_[size_class];
    if (!free.empty()) {
      Handle* found = free.back();
      free.pop_back();
      return found;
    }
    if (!next_) reserve();
    size_t size = size_t(1) << size_class;
    TORCH_CHECK(size <= end_ - next_, "genesis: out of addresses for ", bytes, " bytes");
    auto* handle = new Handle{next_, size_class};
    next_ += size;
    return handle;
  }

  void queue(Change change) {
    std::lock_guard<std::mutex> hold(mutex_);
    changes_.push_back(change);
    waiting_.store(true, std::memory_order_release);
  }

  // Needs the interpreter's lock, as what is forgotten may be Python's last reference to it.
  void collect() {
    if (!waiting_.exchange(false, std::memory_order_acquire)) return;
    std::vector<Change> changes;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      changes.swap(changes_);
    }
    if (changes.empty() || !contents) return;
    for (auto [from, to] : changes) {
      auto key = py::int_(from->address);
      py::object held = py::reinterpret_borrow<py::object>(PyDict_GetItem(contents, key.ptr()));
      if (held && to) PyDict_SetItem(contents, py::int_(to).ptr(), held.ptr());
      if (held && !to) PyDict_DelItem(contents, key.ptr());
    }
    std::lock_guard<std::mutex> hold(mutex_);
    for (auto [from, to] : changes)
      if (!to) free_[from->size_class].push_back(from);
  }

 private:
  void reserve() {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* range = MAP_FAILED;
    size_t bytes = kMost;
    for (; range == MAP_FAILED && bytes >= kLeast; bytes /= 2)
      range = mmap(nullptr, bytes, PROT_NONE, flags, -1, 0);
    TORCH_CHECK(range != MAP_FAILED, "genesis: the process has no range of addresses for handles");
    next_ = reinterpret_cast<uintptr_t>(range);
    end_ = next_ + 2 * bytes;  // the loop has halved it once more
  }

  std::mutex mutex_;
  uintptr_t next_ = 0, end_ = 0;
  std::unordered_map<int, std::vector<Handle*>> free_;
  std::vector<Change> changes_;
  std::atomic<bool> waiting_ = false;  // whether there are any
};

Handles& handles = *new Handles;  // outlives whatever is freed when the process ends

void release(void* handle);

// The storages that there are, whether their contents are computed or still pending.
struct Storages {
  c10::CachingDeviceAllocator::Stat bytes, count;
};

py::object torch_genesis() { return py::module_::import("torch").attr("genesis"); }

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, Device(kDevice, current)};
    Handle* handle = handles.take(bytes);
    handle->bytes = bytes, handle->device = current;
    {
      std::lock_guard<std::mutex> hold(mutex);
      storages[current].bytes.increase(bytes), storages[current].count.increase(1);
    }
    return {reinterpret_cast<void*>(handle->address), handle, &release, Device(kDevice, current)};
  }
  void forget(const Handle& handle) {
    std::lock_guard<std::mutex> hold(mutex);
    auto& there = storages[handle.device];
    there.bytes.decrease(handle.bytes), there.count.decrease(1);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  // What `torch.accelerator` asks for is what `torch.genesis` answers.
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    py::gil_scoped_acquire hold;
    torch_genesis().attr("empty_cache")();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex index) override {
    py::gil_scoped_acquire hold;
    py::dict found = torch_genesis().attr("memory_stats")(int(index));
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto fill = [&](c10::CachingDeviceAllocator::StatArray& array, const std::string& name) {
      for (auto [key, field] : {std::pair{"current", &array[0].current}, {"peak", &array[0].peak},
                                {"allocated", &array[0].allocated}})
        *field = found[py::str(name + ".all." + key)].cast<int64_t>();
      array[0].freed = array[0].allocated - array[0].current;
    };
    fill(stats.allocated_bytes, "allocated_bytes");
    fill(stats.reserved_bytes, "reserved_bytes");
    fill(stats.allocation, "allocation");
    stats.active_bytes = stats.requested_bytes = stats.allocated_bytes;
    stats.active = stats.allocation;
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex index) override {
    std::lock_guard<std::mutex> hold(mutex);
    storages[index].bytes.reset_accumulated(), storages[index].count.reset_accumulated();
  }
  void resetPeakStats(DeviceIndex index) override {
    py::gil_scoped_acquire hold;
    torch_genesis().attr("reset_peak_memory_stats")(int(index));
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex index) {  // PyTorch 2.11 does not have it
    py::gil_scoped_acquire hold;
    return torch_genesis().attr("mem_get_info")(int(index)).cast<std::pair<size_t, size_t>>();
  }

  std::mutex mutex;
  std::unordered_map<DeviceIndex, Storages> storages;
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "genesis: handles are no memory to copy");
  }
};

Allocator& allocator = *new Allocator;  // outlives whatever is freed when the process ends
REGISTER_ALLOCATOR(kDevice, &allocator);

void release(void* context) {
  auto* handle = static_cast<Handle*>(context);
  if (handle->bytes) allocator.forget(*handle);
  handle->bytes = 0;
  handles.queue({handle, 0});
}

// Bytes of storages, now, at most and ever; how many storages, likewise.
py::tuple storages_of(DeviceIndex index) {
  std::lock_guard<std::mutex> hold(allocator.mutex);
  auto& [bytes, count] = allocator.storages[index];
  return py::make_tuple(bytes.current, bytes.peak, bytes.allocated, count.current, count.peak,
                        count.allocated);
}

void reset_peak(DeviceIndex index) {
  std::lock_guard<std::mutex> hold(allocator.mutex);
  allocator.storages[index].bytes.reset_peak(), allocator.storages[index].count.reset_peak();
}

// ---- layouts: dtype, conjugated + 2 * negated, offset, sizes, strides

using Words = std::vector<int64_t>;

struct HashWords {
  size_t operator()(const Words& words) const {
    size_t hash = words.size();
    for (int64_t w : words) hash = (hash ^ size_t(w)) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
    return hash;
  }
};

// Only the layouts of contents are numbered. Views have others, too many to remember.
std::unordered_map<Words, int64_t, HashWords> numbers;
std::vector<Words> layouts;

const Words& words_of(const Tensor& t) {
  static Words words;  // the interpreter's lock is held
  auto sizes = t.sizes(), strides = t.strides();
  words.assign({int64_t(t.scalar_type()), t.is_conj() + 2 * t.is_neg(), t.storage_offset()});
  words.insert(words.end(), sizes.begin(), sizes.end());
  words.insert(words.end(), strides.begin(), strides.end());
  return words;
}

int64_t number_of(const Words& words) {
  auto [found, fresh] = numbers.try_emplace(words, int64_t(layouts.size()));
  if (fresh) layouts.push_back(words);
  return found->second;
}

py::tuple described(const Words& words) {
  size_t rank = (words.size() - 3) / 2;
  py::tuple sizes(rank), strides(rank);
  for (size_t d = 0; d < rank; d++) {
    sizes[d] = words[3 + d];
    strides[d] = words[3 + rank + d];
  }
  auto dtype = py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(at::ScalarType(words[0]))));
  return py::make_tuple(dtype, words[1], words[2], sizes, strides);
}

// ---- contents

// What graphs are made of is in no reference cycle: it refers to what it was computed from, and to
// nothing that refers back. Python's cycle collector need not look at it, as it otherwise would again
// and again, at all that is pending: half the time of a step of many small operators.
template <typename Object>
Object acyclic(Object x) {
  PyObject_GC_UnTrack(x.ptr());
  return x;
}

uintptr_t address_of(const Tensor& t) {
  TORCH_CHECK(t.device().type() == kDevice, "a tensor on ", t.device(), " has no handle");
  return reinterpret_cast<uintptr_t>(t.storage().data());
}

void keep(const Tensor& t, py::handle what) {
  py::int_ key(address_of(t));
  auto entry = acyclic(py::make_tuple(what, number_of(words_of(t))));
  if (PyDict_SetItem(contents, key.ptr(), entry.ptr())) throw py::error_already_set();
}

// The contents of a tensor's storage if the tensor sees them as they are, else None.
py::object find(const Tensor& t) {
  if (t.device().type() != kDevice || !t.has_storage()) return py::none();
  py::int_ key(address_of(t));
  PyObject* entry = PyDict_GetItem(contents, key.ptr());
  if (!entry || layouts[PyLong_AsLongLong(PyTuple_GET_ITEM(entry, 1))] != words_of(t))
    return py::none();
  return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(entry, 0));
}

// Whether a tensor sees every element of contents once, and nothing else.
bool shows_all(const Tensor& t, const Words& layout) {
  if (t.storage_offset() || layout[2] || t.is_conj() || t.is_neg() || layout[1] || !t.numel())
    return false;
  size_t rank = (layout.size() - 3) / 2;
  int64_t count = 1;
  for (size_t d = 0; d < rank; d++) count *= layout[3 + d];
  return int64_t(t.scalar_type()) == layout[0] && t.numel() == count;
}

// ---- forms: all that the graph of an operator depends on, of its arguments

enum Tag : int64_t { kNone, kBool, kInt, kFloat, kText, kList, kWhole, kSeen, kView, kObject };

// Whether a tensor has a form, which is added to the words, and its contents: what a tensor that
// shows all of them, perhaps in another shape or order, is a look at; else nothing.
bool note_tensor(const Tensor& t, Words& words, PyObject** seen) {
  if (t.device().type() != kDevice || !t.has_storage() || t.layout() != at::kStrided) return false;
  auto add = [&](std::initializer_list<int64_t> more) { words.insert(words.end(), more); };
  py::int_ key(address_of(t));
  PyObject* entry = PyDict_GetItem(contents, key.ptr());
  int64_t number = entry ? PyLong_AsLongLong(PyTuple_GET_ITEM(entry, 1)) : -1;
  *seen = entry ? PyTuple_GET_ITEM(entry, 0) : nullptr;
  const Words& own = words_of(t);
  if (entry && layouts[number] == own) {
    add({kWhole, t.device().index(), number});
    return true;
  }
  bool all = entry && shows_all(t, layouts[number]);
  if (all)
    add({kSeen, t.device().index(), number, t.dim()});
  else
    add({kView, t.device().index(), int64_t(t.scalar_type()), t.dim()}), *seen = nullptr;
  words.insert(words.end(), own.begin() + 3, own.end());
  return true;
}

void note_text(PyObject* text, Words& words) {
  Py_ssize_t length;
  const char* characters = PyUnicode_AsUTF8AndSize(text, &length);
  if (!characters) throw py::error_already_set();
  words.push_back(kText), words.push_back(length);
  for (Py_ssize_t i = 0; i < length; i++) words.push_back(characters[i]);
}

// Whether an argument has a form. Tensors are added to the inputs: the contents that they see all
// of, else themselves.
bool note(PyObject* x, Words& words, PyObject* inputs) {
  auto add = [&](std::initializer_list<int64_t> more) { words.insert(words.end(), more); };
  if (THPVariable_Check(x)) {
    PyObject* seen;
    return note_tensor(THPVariable_Unpack(x), words, &seen) &&
           !PyList_Append(inputs, seen ? seen : x);
  }
  if (x == Py_None) {
    add({kNone});
  } else if (PyBool_Check(x)) {
    add({kBool, x == Py_True});
  } else if (PyLong_CheckExact(x)) {
    int overflow = 0;
    add({kInt, PyLong_AsLongLongAndOverflow(x, &overflow)});
    return !overflow;
  } else if (PyFloat_CheckExact(x)) {
    add({kFloat, std::bit_cast<int64_t>(PyFloat_AS_DOUBLE(x))});
  } else if (PyUnicode_CheckExact(x)) {
    note_text(x, words);
  } else if (PyList_CheckExact(x) || PyTuple_CheckExact(x)) {
    Py_ssize_t length = PySequence_Fast_GET_SIZE(x);
    add({kList, length});
    for (Py_ssize_t i = 0; i < length; i++)
      if (!note(PySequence_Fast_GET_ITEM(x, i), words, inputs)) return false;
  } else if (THPDtype_Check(x) || THPLayout_Check(x) || THPMemoryFormat_Check(x)) {
    add({kObject, reinterpret_cast<int64_t>(x)});  // there is one of each
  } else {
    return false;
  }
  return true;
}

// The form of the arguments of a call, as bytes, and their tensors; None if they have none.
py::object form(const py::tuple& args, const py::dict& named, const py::list& inputs) {
  static Words words;  // the interpreter's lock is held
  words.assign({int64_t(c10::get_default_dtype_as_scalartype())});
  for (auto x : args)
    if (!note(x.ptr(), words, inputs.ptr())) return py::none();
  for (auto [name, x] : named) {
    note_text(name.ptr(), words);
    if (!note(x.ptr(), words, inputs.ptr())) return py::none();
  }
  return py::bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t));
}

// Let PyTorch run backward passes of this thread in it, as it does those of the CPU. A thread of the
// device's own would gain nothing, since kernels only extend graphs. It does not exist if the process
// ran a backward pass before the device was known; and it drops the last reference to a pass, which
// holds a Python object, late: if Python is ending by then, the process crashes. Threads that do not
// use the device are left alone.
void backward_in_this_thread() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

Tensor empty_on(const Words& sizes, const std::optional<Words>& strides, at::ScalarType dtype,
                DeviceIndex index) {
  handles.collect();
  backward_in_this_thread();
  c10::DeviceGuard guard(checked(Device(kDevice, index)));
  using namespace at::detail;
  return strides ? empty_strided_generic(sizes, *strides, &allocator, kKeys, dtype)
                 : empty_generic(sizes, &allocator, kKeys, dtype, {});
}

Tensor create(py::handle what, const Words& sizes, const std::optional<Words>& strides,
              at::ScalarType dtype, DeviceIndex index) {
  Tensor t = empty_on(sizes, strides, dtype, index);
  if (t.numel()) keep(t, what);
  return t;
}

// ---- operators that were called before
//
// What Python would do about a call that `graph_cache` has recorded, without Python: the arguments'
// form is found among those known, a block of the graph is made of what their storages contain, and
// tensors of its parts. Everything else goes on to the Python function. It is registered under a
// key that no tensor has, PrivateUse2, so that PyTorch makes Python's arguments of its own. If it
// finds a recording for the call, it says so by `remember`.

// Where the objects of a Python class have a slot.
class Slot {
 public:
  Slot(py::handle type, const char* name) {
    py::object descriptor = type.attr(name);
    TORCH_CHECK(Py_IS_TYPE(descriptor.ptr(), &PyMemberDescr_Type), name, " is no slot");
    offset_ = reinterpret_cast<PyMemberDescrObject*>(descriptor.ptr())->d_member->offset;
  }
  PyObject* of(py::handle x) const { return *place(x); }  // borrowed
  void set(py::handle x, py::handle to) const {
    PyObject* before = *place(x);
    *place(x) = to.inc_ref().ptr();
    Py_XDECREF(before);
  }

 private:
  PyObject** place(py::handle x) const {
    return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(x.ptr()) + offset_);
  }
  Py_ssize_t offset_;
};

py::object made(py::handle type) {
  auto* t = reinterpret_cast<PyTypeObject*>(type.ptr());
  return acyclic(py::reinterpret_steal<py::object>(t->tp_alloc(t, 0)));
}

// What graphs are made of, in Python; set once by `build_with` and never released.
struct Graphs {
  py::object value, part, block, storage, array, thread, progress, ours, read, bound;
  int64_t max_depth;  // where arrays are cut: Python knows how
  int64_t max_pending, most_pending;  // where those are that were written again, and at any write
  Slot op{value, "op"}, inputs{value, "inputs"}, sources{value, "sources"}, attr{value, "attr"},
      dtype{value, "dtype"}, shape{value, "shape"}, device{value, "device"}, depth{value, "depth"},
      memory{value, "memory"}, code{value, "code"}, instruction{value, "instruction"},
      form{value, "form"};
  Slot template_of{block, "template"}, sources_of{block, "sources"}, parts{block, "parts"},
      device_of{block, "device"}, depth_of{block, "depth"}, code_of{block, "code"},
      instruction_of{block, "instruction"}, form_of{block, "form"}, passed{block, "passed"};
  Slot actual{storage, "actual"}, version{storage, "version"};
  Slot array_storage{array, "storage"}, array_steps{array, "steps"}, array_dtype{array, "dtype"},
      array_shape{array, "shape"}, array_device{array, "device"}, array_cached{array, "_cached"};
  Slot operators{py::type::of(progress), "operators"}, written{py::type::of(progress), "written"};
  py::object eager = py::str("eager"), recorder = py::str("recorder"), nothing = py::tuple(0);
  py::object zero = py::int_(0);

  // An array of its own for a value, as `wrap` gives it.
  py::object wrapped(py::handle v) const {
    py::object holder = made(storage), x = made(array);
    actual.set(holder, v), version.set(holder, zero);
    array_storage.set(x, holder), array_steps.set(x, nothing), array_dtype.set(x, dtype.of(v));
    array_shape.set(x, shape.of(v)), array_device.set(x, device.of(v));
    array_cached.set(x, py::none());
    return x;
  }

  // What `storage_contents.write` does with a value that a storage is to contain.
  void write(py::handle holder, py::handle v) const {
    actual.set(holder, v);
    version.set(holder, py::int_(PyLong_AsLongLong(version.of(holder)) + 1));
    auto mark = acyclic(py::reinterpret_steal<py::object>(PyWeakref_NewRef(holder.ptr(), nullptr)));
    PyObject* noted = written.of(progress);
    int again = PyDict_Contains(noted, mark.ptr());
    if (again < 0 || PyDict_SetItem(noted, mark.ptr(), Py_None)) throw py::error_already_set();
    int64_t pending = std::max(PyLong_AsLong(operators.of(progress)), PyLong_AsLong(depth.of(v)));
    if (pending > (again ? max_pending : most_pending)) bound(holder, pending);
  }

  // Whether graphs are built as usual: nothing is computed at once, and nobody records.
  bool lazy() const {
    thread_local uint64_t known = 0;  // Python's number of the thread whose state this is
    thread_local PyObject* state = nullptr;  // the thread holds it
    uint64_t id = PyThreadState_GetID(PyThreadState_Get());
    if (id != known) state = thread.attr("__dict__").ptr(), known = id;
    return PyDict_GetItem(state, eager.ptr()) == Py_False &&
           PyDict_GetItem(state, recorder.ptr()) == Py_None;
  }

  // What a value, or a block of them, refers to: a tuple.
  PyObject* below(PyObject* x) const {
    PyObject* found = (Py_TYPE(x) == block_type() ? sources_of : sources).of(x);
    TORCH_INTERNAL_ASSERT(found && PyTuple_CheckExact(found));
    return found;
  }
  PyTypeObject* block_type() const { return reinterpret_cast<PyTypeObject*>(block.ptr()); }

  // The innermost frame outside of the package: its code and instruction.
  std::pair<py::object, py::object> caller() const {
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame) {
      auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
      auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
      PyObject* file = reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename;
      PyObject* known = PyDict_GetItem(ours.ptr(), file);
      if ((known ? known : ours[file].cast<py::object>().ptr()) != Py_True)
        return {std::move(code), py::int_(PyFrame_GetLasti(f))};
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
    }
    return {py::none(), zero};
  }
};

Graphs* graphs = nullptr;

// Values by their places in a list.
class Places {
 public:
  explicit Places(size_t expected) : slots_(std::bit_ceil(4 * expected + 16)) {}

  // Where a value is, or where it was put if it is new.
  Py_ssize_t find(PyObject* x, Py_ssize_t next) {
    if (4 * size_ >= 3 * slots_.size()) grow();
    auto& slot = slots_[slot_of(x)];
    if (!slot.first) slot = {x, next}, size_++;
    return slot.second;
  }

 private:
  size_t slot_of(PyObject* x) const {
    size_t i = (reinterpret_cast<size_t>(x) * 0x9E3779B97F4A7C15ull) >> 20;
    while (slots_[i &= slots_.size() - 1].first && slots_[i].first != x) i++;
    return i;
  }
  void grow() {
    std::vector<std::pair<PyObject*, Py_ssize_t>> before(2 * slots_.size());
    before.swap(slots_);
    for (auto& slot : before)
      if (slot.first) slots_[slot_of(slot.first)] = slot;
  }
  std::vector<std::pair<PyObject*, Py_ssize_t>> slots_;
  size_t size_ = 0;
};

py::bytes bytes_of(const Words& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t)};
}

// Words as Python has them.
py::object array_of(const Words& words) {
  static auto& type = *new py::object(py::module_::import("array").attr("array"));
  return type("q", bytes_of(words));
}

// `pending_graph.walk`: add what is below the values from the first one on, and where that is.
py::set walk(const py::list& order, const py::object& wiring, Py_ssize_t first) {
  PyObject* list = order.ptr();
  Words wires;
  Places places(2 * PyList_GET_SIZE(list));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) places.find(PyList_GET_ITEM(list, i), i);
  for (Py_ssize_t i = first; i < PyList_GET_SIZE(list); i++) {
    PyObject* sources = graphs->below(PyList_GET_ITEM(list, i));
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(sources); k++) {
      PyObject* x = PyTuple_GET_ITEM(sources, k);
      Py_ssize_t next = PyList_GET_SIZE(list), place = places.find(x, next);
      if (place == next && PyList_Append(list, x)) throw py::error_already_set();
      wires.push_back(place);
    }
  }
  wiring.attr("frombytes")(bytes_of(wires));
  py::set kinds;
  PyTypeObject* last = nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
    PyTypeObject* kind = Py_TYPE(PyList_GET_ITEM(list, i));
    if (kind != last) kinds.add(py::handle(reinterpret_cast<PyObject*>(kind)));
    last = kind;
  }
  return kinds;
}

// `pending_graph.of_kind`: those of the values that are of a kind.
py::list of_kind(const py::handle& kind, const py::list& order) {
  py::list found;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(order.ptr()); i++) {
    PyObject* x = PyList_GET_ITEM(order.ptr(), i);
    if (reinterpret_cast<PyObject*>(Py_TYPE(x)) == kind.ptr()) found.append(py::handle(x));
  }
  return found;
}

// References to what is in a list, as `liveness.references` counts them: asking adds one.
py::object references(const py::list& objects) {
  Words counts(PyList_GET_SIZE(objects.ptr()));
  for (size_t i = 0; i < counts.size(); i++)
    counts[i] = Py_REFCNT(PyList_GET_ITEM(objects.ptr(), i)) + 1;
  return array_of(counts);
}

// `pending_graph.survey`: memories and forms of values, and references to those and these.
py::tuple survey(const py::list& order) {
  Py_ssize_t length = PyList_GET_SIZE(order.ptr());
  py::list memories;
  Words forms(length);
  for (Py_ssize_t i = 0; i < length; i++) {
    PyObject* x = PyList_GET_ITEM(order.ptr(), i);
    bool is_block = Py_TYPE(x) == graphs->block_type();
    PyObject* memory = is_block ? Py_None : graphs->memory.of(x);
    if (memory != Py_None && PyList_Append(memories.ptr(), memory)) throw py::error_already_set();
    forms[i] = PyLong_AsLongLong((is_block ? graphs->form_of : graphs->form).of(x));
  }
  return py::make_tuple(memories, array_of(forms), references(order), references(memories));
}

constexpr size_t kMostForms = 1 << 10;  // of one operator

// A recorded operator.
class Recorded {
 public:
  explicit Recorded(const py::tuple& r)
      : template_(r[0]), form_(r[1]), height_(r[2].cast<int64_t>()) {
    if (!r[3].is_none()) single_ = r[3].cast<py::tuple>();
    for (auto x : r[4].cast<py::list>()) {
      auto part = x.cast<py::tuple>();
      parts_.push_back({part[0], part[2], part[3], part[1].cast<int64_t>()});
    }
    for (auto x : r[5].cast<py::list>()) {
      if (x.is_none()) {
        results_.emplace_back();
        continue;
      }
      auto result = x.cast<py::tuple>();
      results_.push_back({result[0].cast<int>(), result[1].cast<Words>(),
                          result[2].cast<std::optional<Words>>(), result[3].cast<at::ScalarType>(),
                          result[4].cast<DeviceIndex>()});
    }
    writes_ = r[6].cast<std::vector<size_t>>(), written = r[7].cast<std::vector<size_t>>();
    if (!r[8].is_none()) returned = r[8].cast<size_t>();
  }

  std::vector<size_t> written;     // which arguments are written: tensors, or lists of them
  std::optional<size_t> returned;  // the argument that is the result

  // One more call: adds what is made to a stack, and writes storages; false if the graph has become
  // too deep.
  bool copy(std::vector<py::object>& values, const std::vector<py::object>& storages,
            torch::jit::Stack& stack) {
    int64_t below = 0;
    for (auto& v : values) below = std::max<int64_t>(below, PyLong_AsLong(graphs->depth.of(v)));
    if (below + height_ >= graphs->max_depth) return false;
    auto operators = PyLong_AsLong(graphs->operators.of(graphs->progress));
    graphs->operators.set(graphs->progress, py::int_(operators + 1));
    py::tuple sources = acyclic(py::tuple(values.size()));
    for (size_t i = 0; i < values.size(); i++)
      PyTuple_SET_ITEM(sources.ptr(), i, values[i].inc_ref().ptr());
    auto device = py::reinterpret_borrow<py::object>(graphs->device.of(values[0]));
    auto [code, instruction] = graphs->caller();
    if (single_)
      values.push_back(alone(sources, device, below, code, instruction));
    else
      block(values, sources, device, below, code, instruction);
    for (auto& result : results_) stack.emplace_back(tensor(result, values));
    for (size_t i = 0; i < storages.size(); i++) graphs->write(storages[i], values[writes_[i]]);
    return true;
  }

 private:
  struct Part {
    py::object form, dtype, shape;
    int64_t height;
  };
  struct Result {
    int place = -1;  // among the values; -1: no tensor
    Words sizes;
    std::optional<Words> strides;
    at::ScalarType dtype;
    DeviceIndex index;
    py::object number;  // of the layout, once it is known
  };

  void fill(py::handle v, const Part& part, py::handle sources, py::handle device, int64_t below,
            py::handle code, py::handle instruction) const {
    graphs->sources.set(v, sources), graphs->dtype.set(v, part.dtype);
    graphs->shape.set(v, part.shape), graphs->device.set(v, device);
    graphs->depth.set(v, py::int_(below + part.height)), graphs->memory.set(v, py::none());
    graphs->code.set(v, code), graphs->instruction.set(v, instruction);
    graphs->form.set(v, part.form);
  }

  // A block would be more than what it stands for.
  py::object alone(const py::tuple& all, py::handle device, int64_t below, py::handle code,
                   py::handle instruction) const {
    py::object op = (*single_)[0], attr = (*single_)[1], picked = (*single_)[2], sources;
    if ((*single_)[3].ptr() == Py_True)
      sources = acyclic(picked(all));
    else if (picked.is_none())
      sources = graphs->nothing;
    else
      sources = acyclic(py::make_tuple(all[picked.cast<size_t>()]));
    py::object v = made(graphs->value);
    fill(v, parts_[0], sources, device, below, code, instruction);
    graphs->inputs.set(v, sources), graphs->op.set(v, op), graphs->attr.set(v, attr);
    return v;
  }

  void block(std::vector<py::object>& values, py::handle sources, py::handle device, int64_t below,
             py::handle code, py::handle instruction) const {
    py::object b = made(graphs->block);
    py::list living = acyclic(py::list(parts_.size()));
    py::tuple whole = acyclic(py::make_tuple(b));
    graphs->template_of.set(b, template_), graphs->sources_of.set(b, sources);
    graphs->device_of.set(b, device), graphs->parts.set(b, living);
    graphs->depth_of.set(b, py::int_(below)), graphs->code_of.set(b, code);
    graphs->instruction_of.set(b, instruction), graphs->form_of.set(b, form_);
    graphs->passed.set(b, py::bool_(true));
    for (size_t i = 0; i < parts_.size(); i++) {
      py::object v = made(graphs->part);
      fill(v, parts_[i], whole, device, below, code, instruction);
      py::object reference = py::reinterpret_steal<py::object>(PyWeakref_NewRef(v.ptr(), nullptr));
      PyList_SET_ITEM(living.ptr(), i, acyclic(std::move(reference)).release().ptr());
      values.push_back(std::move(v));
    }
  }

  Tensor tensor(Result& result, const std::vector<py::object>& values) const {
    if (result.place < 0) return {};
    Tensor t = empty_on(result.sizes, result.strides, result.dtype, result.index);
    if (!t.numel()) return t;
    if (!result.number) result.number = py::int_(number_of(words_of(t)));
    py::int_ key(address_of(t));
    py::object entry =
        acyclic(py::make_tuple(graphs->wrapped(values[result.place]), result.number));
    if (PyDict_SetItem(contents, key.ptr(), entry.ptr())) throw py::error_already_set();
    return t;
  }

  py::object template_, form_;
  int64_t height_;
  std::optional<py::tuple> single_;
  std::vector<Part> parts_;
  std::vector<Result> results_;
  std::vector<size_t> writes_;  // places among the values, of what is written
};

// A tensor among the arguments of a call: the contents that it sees all of, or the tensor itself.
struct Input {
  PyObject* seen;
  Tensor tensor;
  uintptr_t address;
};

// Whether an argument has a form, as `note` says. Tensors that have no contents are noted, too.
bool note(const c10::IValue& x, Words& words, std::vector<Input>& inputs) {
  auto add = [&](std::initializer_list<int64_t> more) { words.insert(words.end(), more); };
  if (x.isTensor()) {
    const Tensor& t = x.toTensor();
    if (!t.defined()) return add({kNone}), true;
    PyObject* seen;
    if (!note_tensor(t, words, &seen)) return false;
    inputs.push_back({seen, seen ? Tensor() : t, address_of(t)});
  } else if (x.isNone()) {
    add({kNone});
  } else if (x.isBool()) {
    add({kBool, x.toBool()});
  } else if (x.isInt()) {
    add({kInt, x.toInt()});
  } else if (x.isDouble()) {
    add({kFloat, std::bit_cast<int64_t>(x.toDouble())});
  } else if (x.isString()) {
    const std::string& text = x.toStringRef();
    add({kText, int64_t(text.size())});
    words.insert(words.end(), text.begin(), text.end());
  } else if (x.isList()) {
    auto list = x.toListRef();
    add({kList, int64_t(list.size())});
    for (const auto& y : list)
      if (!note(y, words, inputs)) return false;
  } else {
    return false;
  }
  return true;
}

class Remembering;

// The call that a thread has handed on to Python.
struct Call {
  Remembering* kernel;
  const c10::OperatorHandle& op;
  Words words;
  Call* outer;
};

thread_local Call* call = nullptr;

class Remembering final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    py::gil_scoped_acquire hold;
    Call here{this, op, {}, call};
    if (!recalled(op, here.words, *stack)) {
      call = &here;
      auto leave = c10::make_scope_exit([&] { call = here.outer; });
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse2), stack);
    }
  }

  void remember(const Words& words, const py::tuple& recorded) {
    if (known_.size() >= kMostForms) known_.clear();
    known_[words] = std::make_shared<Recorded>(recorded);
  }

 private:
  // Writes of a tensor PyTorch counts itself; those of a list are left to the device.
  static void bump_versions(const c10::IValue& written) {
    if (!written.isTensorList()) return;
    for (const Tensor& t : written.toTensorVector()) t.unsafeGetTensorImpl()->bump_version();
  }

  // Whether at one place of lists what another place writes is read or written. Such places are
  // computed one after another, by Python. What is written is contents as they are here, so that
  // storages tell.
  static bool depends_on_order(const std::vector<Input>& inputs, const std::vector<size_t>& begins,
                               const std::vector<size_t>& written) {
    std::unordered_map<uintptr_t, size_t> writers;  // the place of a storage that is written
    for (size_t argument : written) {
      size_t begin = begins[argument], end = begins[argument + 1];
      for (size_t i = begin; end - begin > 1 && i < end; i++) {
        auto [writer, fresh] = writers.try_emplace(inputs[i].address, i - begin);
        if (!fresh && writer->second != i - begin) return true;
      }
    }
    if (writers.empty()) return false;
    for (size_t argument = 0; argument + 1 < begins.size(); argument++) {
      size_t begin = begins[argument], end = begins[argument + 1];
      for (size_t i = begin; i < end; i++) {
        auto writer = writers.find(inputs[i].address);
        if (writer == writers.end()) continue;
        if (end - begin == 1 || writer->second != i - begin) return true;  // one is for all places
      }
    }
    return false;
  }

  // Whether a call was met before; its arguments on the stack are replaced by the results then.
  bool recalled(const c10::OperatorHandle& op, Words& words, torch::jit::Stack& stack) {
    std::vector<Input> inputs;
    size_t count = op.schema().arguments().size();
    std::vector<size_t> begins;  // of each argument's tensors among the inputs
    words.push_back(int64_t(c10::get_default_dtype_as_scalartype()));  // of numbers and integers
    for (size_t i = stack.size() - count; i < stack.size(); i++) {
      begins.push_back(inputs.size());
      if (!note(stack[i], words, inputs)) return words.clear(), false;
    }
    begins.push_back(inputs.size());
    auto found = known_.find(words);
    if (found == known_.end() || !graphs->lazy()) return false;
    auto recorded = found->second;  // held: reading a view calls Python
    if (depends_on_order(inputs, begins, recorded->written)) return false;
    std::vector<py::object> values;
    for (auto& input : inputs) {
      PyObject* v = input.seen ? graphs->actual.of(graphs->array_storage.of(input.seen)) : Py_None;
      values.push_back(py::reinterpret_borrow<py::object>(v));
    }
    for (size_t i = 0; i < inputs.size(); i++)
      if (!inputs[i].seen) values[i] = graphs->read(inputs[i].tensor).attr("value");
    std::vector<py::object> storages;  // what is written is contents as they are
    for (size_t argument : recorded->written)
      for (size_t i = begins[argument]; i < begins[argument + 1]; i++)
        storages.push_back(
            py::reinterpret_borrow<py::object>(graphs->array_storage.of(inputs[i].seen)));
    torch::jit::Stack results;
    if (!recorded->copy(values, storages, results)) return false;
    for (size_t argument : recorded->written) bump_versions(stack[stack.size() - count + argument]);
    if (recorded->returned) results.push_back(stack[stack.size() - count + *recorded->returned]);
    torch::jit::drop(stack, count);
    for (auto& x : results) stack.push_back(std::move(x));
    return true;
  }

  using Known = std::unordered_map<Words, std::shared_ptr<Recorded>, HashWords>;
  Known& known_ = *new Known;  // PyTorch destroys kernels when Python has ended: it outlives them
};

void build_with(py::object value, py::object part, py::object block, py::object storage,
                py::object array, py::object thread, py::object progress, py::object ours,
                py::object read, py::object bound, int64_t max_depth, int64_t max_pending,
                int64_t most_pending) {
  graphs = new Graphs{value, part, block, storage,   array,       thread,      progress,
                      ours,  read, bound, max_depth, max_pending, most_pending};
}

void implement(const py::object& library, const std::string& name, const py::function& function) {
  static auto& kernels = *new torch::Library(torch::Library::IMPL, "aten",
                                             c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library.attr("impl")(name, "PrivateUse2", function, false);
  kernels.impl(name.c_str(),
               torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Remembering>()));
}

void remember(const std::string& name, const py::tuple& recorded) {
  if (!call || call->words.empty() || c10::toString(call->op.operator_name()) != name) return;
  auto& returns = call->op.schema().returns();
  for (auto& result : returns)
    if (result.type()->kind() != c10::TypeKind::TensorType) return;
  if (py::len(recorded[5]) + !recorded[8].is_none() == returns.size())
    call->kernel->remember(call->words, recorded);
}

// What `tensor.data = other` does, between devices too: the object stays, with its history's end.
void adopt(const Tensor& t, const Tensor& other) {
  if (auto* meta = torch::autograd::impl::get_autograd_meta(t)) {
    std::lock_guard<std::mutex> hold(meta->mutex_);
    meta->grad_accumulator_.reset();  // it accumulates on the device it was made for
  }
  t.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
}

// ---- nested tensors: a buffer, and the sizes, strides and offsets of the tensors in it

py::tuple nested_parts(const Tensor& t) {
  auto* nested = at::native::get_nested_tensor_impl(t);
  return py::make_tuple(nested->get_unsafe_storage_as_tensor(), nested->get_nested_sizes(),
                        nested->get_nested_strides(), nested->get_storage_offsets());
}

Tensor nest(const Tensor& buffer, const Tensor& sizes, const Tensor& strides,
            const Tensor& offsets) {
  return at::detail::make_tensor<at::native::NestedTensorImpl>(buffer, sizes, strides, offsets);
}

// ---- the guard: there is one stream, and an event is the time at which work was done

double now() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

void call_synchronize(DeviceIndex index) {
  py::gil_scoped_acquire hold;
  py::reinterpret_borrow<py::object>(synchronize)(int(index));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  Device exchangeDevice(Device device) const override {
    Device before(kDevice, current);
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(kDevice, current); }
  void setDevice(Device device) const override { current = checked(device).index(); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, checked(device));
  }
  c10::Stream getDefaultStream(Device device) const override { return getStream(device); }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  void record(void** event, const c10::Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    call_synchronize(stream.device_index());
    if (!*event) *event = new double;
    *static_cast<double*>(*event) = now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<double*>(event);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& s) const override {
    call_synchronize(s.device_index());
  }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex index) const override { call_synchronize(index); }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    return *static_cast<double*>(second) - *static_cast<double*>(first);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- beside other devices
//
// PyTorch has one accelerator in a process: a device that has a name, before any other. Its autograd
// engine knows the streams of that one only, and the backward passes of every other accelerator die.
// So where there is another, or the user says so, two of PyTorch's questions are answered here: is
// there a device with a name, and is the device an accelerator, whose streams must be waited for? It
// has none to wait for.

bool others_exist() {  // as PyTorch decides it, without waking a GPU
  using namespace at::detail;
  return getCUDAHooks().isBuilt() || getXPUHooks().isBuilt() || getHIPHooks().isBuilt() ||
         getMPSHooks().isBuilt() || getMTIAHooks().hasMTIA() || getHPUHooks().hasHPU();
}

bool is_the_accelerator() {
  static const bool chosen = [] {
    const char* setting = std::getenv("GENESIS_TORCH_ACCELERATOR");
    return !others_exist() && !(setting && std::string(setting) == "0");
  }();
  return chosen;
}

bool is_accelerator(c10::DeviceType type) {
  return type == kDevice ? is_the_accelerator() : at::accelerator::isAccelerator(type);
}

struct Answer {
  const char* question;
  void* function;
  bool given = false;
};

// The tables of a library by which it calls functions that others could define.
struct Calls {
  uintptr_t base = 0, locked = 0, locked_end = 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela)* tables[2] = {};  // calls, and addresses of functions
  size_t bytes[2] = {};
};

int find_calls(dl_phdr_info* info, size_t, void* found) {
  auto& calls = *static_cast<Calls*>(found);
  if (info->dlpi_addr != calls.base) return 0;
  auto at = [&](ElfW(Addr) place) { return place < calls.base ? place + calls.base : place; };
  for (int i = 0; i < info->dlpi_phnum; i++) {
    auto& header = info->dlpi_phdr[i];
    uintptr_t start = calls.base + header.p_vaddr;
    if (header.p_type == PT_GNU_RELRO) {
      calls.locked = start, calls.locked_end = start + header.p_memsz;
    } else if (header.p_type == PT_DYNAMIC) {
      for (auto* d = reinterpret_cast<const ElfW(Dyn)*>(start); d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
          calls.symbols = reinterpret_cast<const ElfW(Sym)*>(at(d->d_un.d_ptr));
        else if (d->d_tag == DT_STRTAB)
          calls.names = reinterpret_cast<const char*>(at(d->d_un.d_ptr));
        else if (d->d_tag == DT_JMPREL)
          calls.tables[0] = reinterpret_cast<const ElfW(Rela)*>(at(d->d_un.d_ptr));
        else if (d->d_tag == DT_PLTRELSZ)
          calls.bytes[0] = d->d_un.d_val;
        else if (d->d_tag == DT_RELA)
          calls.tables[1] = reinterpret_cast<const ElfW(Rela)*>(at(d->d_un.d_ptr));
        else if (d->d_tag == DT_RELASZ)
          calls.bytes[1] = d->d_un.d_val;
      }
    }
  }
  return 1;
}

void redirect(const Calls& calls, uintptr_t slot, void* function) {
  uintptr_t page = slot & ~uintptr_t(sysconf(_SC_PAGESIZE) - 1);
  size_t length = slot + sizeof(void*) - page;
  bool locked = slot >= calls.locked && slot < calls.locked_end;
  if (locked && mprotect(reinterpret_cast<void*>(page), length, PROT_READ | PROT_WRITE)) return;
  __atomic_store_n(reinterpret_cast<void**>(slot), function, __ATOMIC_RELEASE);
  if (locked) mprotect(reinterpret_cast<void*>(page), length, PROT_READ);
}

// Whether PyTorch's library, where these questions are asked, gets these answers from now on.
bool live_with_others() {
  static const bool done = [] {
    Dl_info library;
    Calls calls;
    if (!dladdr(reinterpret_cast<void*>(&at::accelerator::isAccelerator), &library)) return false;
    calls.base = reinterpret_cast<uintptr_t>(library.dli_fbase);
    if (!dl_iterate_phdr(find_calls, &calls) || !calls.symbols || !calls.names) return false;
    Answer answers[] = {
        {"_ZN3c1033is_privateuse1_backend_registeredEv",
         reinterpret_cast<void*>(&is_the_accelerator)},
        {"_ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE",
         reinterpret_cast<void*>(&is_accelerator)},
    };
    auto answered = [&] { return answers[0].given && answers[1].given; };
    is_the_accelerator();
    for (int t = 0; t < 2 && !answered(); t++) {
      for (size_t i = 0; i < calls.bytes[t] / sizeof(ElfW(Rela)); i++) {
        auto& entry = calls.tables[t][i];
        auto symbol = entry.r_info >> (sizeof(void*) == 8 ? 32 : 8);
        if (!symbol) continue;
        const char* name = calls.names + calls.symbols[symbol].st_name;
        for (auto& answer : answers) {
          if (std::strcmp(name, answer.question)) continue;
          redirect(calls, calls.base + entry.r_offset, answer.function);
          answer.given = true;
        }
      }
    }
    return answered();
  }();
  return done;
}

// ---- generators: a key and a count, in Python under the generator's own handle

struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex index)
      : c10::GeneratorImpl(Device(kDevice, index), kKeys), handle(handles.take(1)) {}
  ~Generator() override { release(handle); }

  std::pair<uint64_t, uint64_t> get() const {
    py::gil_scoped_acquire hold;
    auto state = py::reinterpret_borrow<py::object>(generator_state);
    return state(handle->address, int(device().index())).cast<std::pair<uint64_t, uint64_t>>();
  }
  void set(uint64_t key, uint64_t offset) const {
    py::gil_scoped_acquire hold;
    py::reinterpret_borrow<py::object>(seed_generator)(handle->address, int(device().index()), key,
                                                       offset);
  }
  void set_current_seed(uint64_t seed) override { set(seed, 0); }
  uint64_t current_seed() const override { return get().first; }
  uint64_t seed() override {
    uint64_t fresh = c10::detail::getNonDeterministicRandom();
    set(fresh, 0);
    return fresh;
  }
  void set_offset(uint64_t offset) override { set(get().first, offset); }
  uint64_t get_offset() const override { return get().second; }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto [key, offset] = get();
    Tensor state = at::empty({16}, at::kByte);
    auto* words = reinterpret_cast<uint64_t*>(state.mutable_data_ptr<uint8_t>());
    words[0] = key, words[1] = offset;
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device().is_cpu() && state.numel() == 16 && state.is_contiguous(),
                "the state of a genesis generator is 16 bytes on the CPU");
    auto* words = static_cast<const uint64_t*>(state.data());
    set(words[0], words[1]);
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    auto [key, offset] = get();
    copy->set(key, offset);
    return copy;
  }

  Handle* handle;
};

std::vector<at::Generator>& default_generators = *new std::vector<at::Generator>;

const at::Generator& default_generator(DeviceIndex index) {
  return default_generators.at(checked(Device(kDevice, index)).index());
}

uintptr_t generator_address(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kDevice, "Expected a 'genesis' device type for generator ",
              "but found '", generator.device().type(), "'");
  return generator.get<Generator>()->handle->address;
}

// ---- pinned memory is memory that remembers that it was asked for as such

class Pinned final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = c10::alloc_cpu(std::max<size_t>(bytes, 1));
    std::lock_guard<std::mutex> hold(mutex_);
    pinned_.insert(memory);
    return {memory, memory, &free, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool holds(const void* memory) {
    std::lock_guard<std::mutex> hold(mutex_);
    return pinned_.count(memory);
  }

 private:
  static void free(void* memory);
  std::mutex mutex_;
  std::unordered_set<const void*> pinned_;
};

Pinned& pinned = *new Pinned;

void Pinned::free(void* memory) {
  {
    std::lock_guard<std::mutex> hold(pinned.mutex_);
    pinned.pinned_.erase(memory);
  }
  c10::free_cpu(memory);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return device_count; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override {
    current = checked(Device(kDevice, index)).index();
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    DeviceIndex before = current;
    setCurrentDevice(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<Generator>(checked(Device(kDevice, index)).index());
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  bool isPinnedPtr(const void* memory) const override { return pinned.holds(memory); }
  Device getDeviceFromPtr(void*) const override { return Device(kDevice, current); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    auto fresh = allocator.allocate(bytes);
    auto* before = static_cast<Handle*>(storage.data_ptr().get_context());
    if (before && bytes) handles.queue({before, reinterpret_cast<uintptr_t>(fresh.get())});
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

// ---- operators on metadata

Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  backward_in_this_thread();
  c10::DeviceGuard guard(checked(device.value_or(Device(kDevice, current))));
  return at::detail::empty_generic(sizes, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  backward_in_this_thread();
  c10::DeviceGuard guard(checked(device.value_or(Device(kDevice, current))));
  return at::detail::empty_strided_generic(sizes, strides, &allocator, kKeys,
                                           c10::dtype_or_default(dtype));
}

Tensor as_strided(const Tensor& t, SymIntArrayRef sizes, SymIntArrayRef strides,
                  std::optional<SymInt> offset) {
  return at::cpu::as_strided_symint(t, sizes, strides, offset);
}

Tensor view(const Tensor& t, SymIntArrayRef sizes) {
  return at::native::view(t, C10_AS_INTARRAYREF_SLOW(sizes));
}

Tensor reshape_alias(const Tensor& t, SymIntArrayRef sizes, SymIntArrayRef strides) {
  return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(sizes),
                                    C10_AS_INTARRAYREF_SLOW(strides));
}

Tensor unfold(const Tensor& t, int64_t dimension, int64_t size, int64_t step) {
  return at::cpu::unfold(t, dimension, size, step);
}

const Tensor& resize_(const Tensor& t, SymIntArrayRef symbolic,
                      std::optional<at::MemoryFormat> format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  if (t.sizes() != sizes) {
    auto* impl = t.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(sizes);
    size_t bytes = (t.storage_offset() + t.numel()) * t.itemsize();
    if (t.numel() && t.storage().nbytes() < bytes)
      at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(t.storage(), bytes);
  }
  if (format) t.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return t;
}

Tensor& set_tensor(Tensor& t, const Tensor& source) { return at::native::set_tensor_(t, source); }

Tensor& set_storage(Tensor& t, at::Storage source) { return at::native::set_(t, source); }

Tensor& set_storage_offset(Tensor& t, at::Storage source, SymInt offset, SymIntArrayRef sizes,
                           SymIntArrayRef strides) {
  return at::cpu::set__symint(t, source, offset, sizes, strides);
}

Tensor& set_nothing(Tensor& t) {
  c10::DeviceGuard guard(t.device());
  at::Storage nothing(c10::Storage::use_byte_size_t(), 0, &allocator, /*resizable=*/true);
  return at::cpu::set__symint(t, nothing, 0, SymIntArrayRef({SymInt(0)}),
                              SymIntArrayRef({SymInt(1)}));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", resize_);
  m.impl("set_", set_nothing);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("is_set_to", at::native::is_set_to);
}

// Sparse tensors are made of two others; what is computed with them PyTorch's CPU kernels compute.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_coalesced_", at::native::_coalesced_sparse_);
  m.impl("_indices", at::native::_indices_sparse);
  m.impl("_nnz", at::native::_nnz_sparse);
  m.impl("_sparse_coo_tensor_with_dims", at::native::new_with_dims_sparse);
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         at::native::new_with_dims_and_tensor_sparse_symint);
  m.impl("_values", at::native::_values_sparse);
  m.impl("clone", at::native::clone_sparse);
  m.impl("copy_", at::native::copy_sparse_wrapper_);
  m.impl("copy_sparse_to_sparse_", at::native::copy_sparse_);
  m.impl("dense_dim", at::native::dense_dim_sparse);
  m.impl("indices", at::native::indices_sparse);
  m.impl("is_coalesced", at::native::is_coalesced_sparse);
  m.impl("sparse_dim", at::native::sparse_dim_sparse);
  m.impl("values", at::native::values_sparse);
}

// Compressed ones (CSR and its relatives) are made of three.
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_nnz", at::native::_nnz_sparse_csr);
  m.impl("ccol_indices", at::native::ccol_indices_sparse_csr);
  m.impl("clone", at::native::clone_sparse_compressed);
  m.impl("col_indices", at::native::col_indices_sparse_csr);
  m.impl("copy_", at::native::copy_sparse_compressed_);
  m.impl("crow_indices", at::native::crow_indices_sparse_csr);
  m.impl("dense_dim", at::native::dense_dim_sparse_csr);
  m.impl("empty.memory_format", at::native::empty_sparse_compressed_symint);
  m.impl("empty_like", at::native::empty_like_sparse_csr);
  m.impl("row_indices", at::native::row_indices_sparse_csr);
  m.impl("sparse_dim", at::native::sparse_dim_sparse_csr);
  m.impl("values", at::native::values_sparse_csr);
}

// ---- what Python sees

void start(DeviceIndex count, py::dict dictionary, py::function synchronized, py::function seed,
           py::function state) {
  contents = dictionary.release().ptr();
  synchronize = synchronized.release().ptr();
  seed_generator = seed.release().ptr();
  generator_state = state.release().ptr();
  device_count = count;
  for (DeviceIndex i = 0; i < count; i++)
    default_generators.push_back(at::make_generator<Generator>(i));
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("start", start);
  m.def("collect", [] { handles.collect(); });
  m.def("find", find);
  m.def("form", form);
  m.def("keep", keep);
  m.def("create", create);
  m.def("build_with", build_with);
  m.def("walk", walk);
  m.def("survey", survey);
  m.def("of_kind", of_kind);
  m.def("implement", implement);
  m.def("remember", remember);
  m.def("adopt", adopt);
  m.def("storages", storages_of);
  m.def("reset_peak", reset_peak);
  m.def("others_exist", others_exist);
  m.def("live_with_others", live_with_others);
  m.def("nested_parts", nested_parts);
  m.def("nest", nest);
  m.def("address", address_of);
  m.def("describe", [](const Tensor& t) { return described(words_of(t)); });
  m.def("layout", [](int64_t number) { return described(layouts.at(number)); });
  m.def("device_count", [] { return int(device_count); });
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](DeviceIndex i) { current = checked(Device(kDevice, i)).index(); });
  m.def("default_generator", default_generator);
  m.def("generator_address", generator_address);
}
