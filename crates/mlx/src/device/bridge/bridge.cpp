// An MLX primitive whose CPU evaluation is a call of a Rust function, and arrays over
// memory that Rust owns.
//
// The bridge contains only the code that must be C++: a primitive derives from an MLX class,
// and preparing its outputs uses methods of MLX's array. The Rust half, in bridge.rs, gives it
// a safe interface and documents it. The two change together, and motet_bridge_version() lets
// each check the other.
//
// Rust functions are passed in as pointers, so this file looks up nothing in the program.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/private/array.h"
#include "mlx/c/private/stream.h"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"

namespace mx = mlx::core;

extern "C" {

// One array as the kernel sees it.
struct motet_view {
  float* data;
  const int64_t* shape;
  // In elements. In-place arrays and outputs are row-contiguous.
  const int64_t* strides;
  size_t dims;
};

struct motet_kernel {
  void* context;
  // `views` are the inputs, then the in-place arrays, then the outputs. Returns 0, or writes
  // the reason of a failure into `error`. Called on the stream's thread.
  int (*run)(void* context, const motet_view* views, char* error, size_t error_len);
  // Called exactly once, after the last call of `run`.
  void (*drop)(void* context);
};

struct motet_shape {
  const int32_t* sizes;
  size_t dims;
};

} // extern "C"

namespace {

constexpr size_t ERROR_LEN = 512;
constexpr size_t ALIGNMENT = 64; // a cache line, and the widest vector

// Owns the kernel's context. Shared by the primitive and the tasks it has dispatched.
class Kernel {
 public:
  explicit Kernel(const motet_kernel& raw) : raw_(raw) {}
  ~Kernel() {
    raw_.drop(raw_.context);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // MLX keeps an exception that a task throws, and rethrows it where the stream is waited for.
  void run(const std::vector<motet_view>& views) const {
    char error[ERROR_LEN] = "";
    if (raw_.run(raw_.context, views.data(), error, ERROR_LEN) != 0) {
      throw std::runtime_error(error);
    }
  }

 private:
  motet_kernel raw_;
};

// One call of a kernel: its views, and the numbers that they point to.
class Call {
 public:
  Call(std::shared_ptr<Kernel> kernel, size_t views) : kernel_(std::move(kernel)) {
    views_.reserve(views);
    shapes_.reserve(views);
    strides_.reserve(views);
  }

  void add(const mx::array& a, float* data) {
    shapes_.emplace_back(a.shape().begin(), a.shape().end());
    strides_.emplace_back(a.strides().begin(), a.strides().end());
    views_.push_back({data, shapes_.back().data(), strides_.back().data(), a.ndim()});
  }

  void run() const {
    kernel_->run(views_);
  }

 private:
  std::shared_ptr<Kernel> kernel_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<std::vector<int64_t>> strides_;
  std::vector<motet_view> views_;
};

float* data_of(const mx::array& a) {
  return a.size() == 0 ? nullptr : const_cast<mx::array&>(a).data<float>();
}

// Memory for `a`, aligned; MLX's own allocations are 8 bytes past a multiple of 16.
void allocate(mx::array& a) {
  auto buffer = mx::allocator::malloc(a.nbytes() + ALIGNMENT);
  auto start = reinterpret_cast<uintptr_t>(buffer.raw_ptr());
  int64_t offset = (ALIGNMENT - start % ALIGNMENT) % ALIGNMENT;
  mx::Strides strides(a.ndim());
  int64_t stride = 1;
  int64_t longest = 1;
  for (int i = static_cast<int>(a.ndim()) - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= a.shape(i);
    longest = std::max<int64_t>(longest, a.shape(i));
  }
  mx::array::Flags flags;
  flags.contiguous = true;
  flags.row_contiguous = true;
  flags.col_contiguous = static_cast<int64_t>(a.size()) <= longest;
  a.set_data(buffer, a.size(), std::move(strides), flags, offset, mx::allocator::free);
}

class RustKernel : public mx::Primitive {
 public:
  // The kernel changes the last `in_place` inputs.
  RustKernel(mx::Stream stream, std::shared_ptr<Kernel> kernel, size_t in_place)
      : mx::Primitive(stream), kernel_(std::move(kernel)), in_place_(in_place) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto call = std::make_shared<Call>(kernel_, inputs.size() + outputs.size());
    const size_t plain = inputs.size() - in_place_;
    for (size_t i = 0; i < inputs.size(); ++i) {
      // MLX treats an in-place array as an ordinary input and keeps it alive until the kernel
      // has run. The Rust half promises that the change is harmless.
      if (i >= plain && !inputs[i].flags().row_contiguous) {
        throw std::runtime_error("[RustKernel] an in-place array is not row-contiguous");
      }
      call->add(inputs[i], data_of(inputs[i]));
    }
    for (auto& output : outputs) {
      allocate(output);
      call->add(output, data_of(output));
    }
    mx::cpu::get_command_encoder(stream()).dispatch([call] { call->run(); });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[RustKernel] runs on CPU streams only");
  }

  const char* name() const override {
    return "RustKernel";
  }

 private:
  std::shared_ptr<Kernel> kernel_;
  size_t in_place_;
};

// Whether MLX's CPU allocator lays its buffers out as `motet_bridge_adopt` does: their number
// of bytes, then the bytes. A GPU's allocator has buffers of another form.
bool buffers_are_plain() {
  auto buffer = mx::allocator::malloc(ALIGNMENT);
  const auto start = static_cast<size_t*>(buffer.ptr());
  const bool plain = start != nullptr && buffer.raw_ptr() == start + 1 &&
      *start == mx::allocator::allocator().size(buffer);
  mx::allocator::free(buffer);
  return plain;
}

void fail(const std::exception& failure, char* error) {
  std::strncpy(error, failure.what(), ERROR_LEN - 1);
  error[ERROR_LEN - 1] = '\0';
}

void check_inputs(const std::vector<mx::array>& inputs, mx::Stream stream) {
  if (stream.device != mx::Device::cpu) {
    throw std::invalid_argument("a Rust kernel needs a CPU stream");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype() != mx::float32) {
      throw std::invalid_argument("input " + std::to_string(i) + " of a Rust kernel is not float32");
    }
  }
}

} // namespace

extern "C" int motet_bridge_version(void) {
  return 3;
}

#ifndef MOTET_MLX_SYS
#define MOTET_MLX_SYS ""
#endif

// The version of mlx-sys whose mlx-c this library was built from, if `cargo xtask setup` has
// built it. Empty if mlx-sys itself has.
extern "C" const char* motet_bridge_mlx_sys(void) {
  return MOTET_MLX_SYS;
}

// Raises the number of tasks (of ten operations each) that MLX queues, in this whole process,
// before it blocks the evaluating thread. MLX's own limit of ten is about a quarter of a
// forward pass, and cannot be set. MLX counts unfinished tasks, so this reports some of them as
// finished.
extern "C" void motet_bridge_queue_more(mlx_stream stream, int tasks) {
  for (int i = 0; i < tasks; ++i) {
    mx::scheduler::notify_task_completion(mlx_stream_get_(stream));
  }
}

// Puts a kernel into the graph: `outputs` gets `shapes_len` new arrays. Takes ownership of the
// kernel's context, also on failure. Returns 0, or writes the reason of a failure into `error`,
// of at least 512 bytes.
extern "C" int motet_bridge_apply(
    const motet_kernel* kernel,
    const mlx_array* inputs,
    size_t inputs_len,
    size_t in_place,
    const motet_shape* shapes,
    size_t shapes_len,
    mlx_stream stream,
    mlx_array* outputs,
    char* error) {
  try {
    auto owned = std::make_shared<Kernel>(*kernel);
    std::vector<mx::array> arrays;
    arrays.reserve(inputs_len);
    for (size_t i = 0; i < inputs_len; ++i) {
      arrays.push_back(mlx_array_get_(inputs[i]));
    }
    const mx::Stream on = mlx_stream_get_(stream);
    check_inputs(arrays, on);
    auto primitive = std::make_shared<RustKernel>(on, std::move(owned), in_place);
    std::vector<mx::Shape> sizes;
    for (size_t i = 0; i < shapes_len; ++i) {
      sizes.emplace_back(shapes[i].sizes, shapes[i].sizes + shapes[i].dims);
    }
    const std::vector<mx::Dtype> dtypes(shapes_len, mx::float32);
    auto made = mx::array::make_arrays(std::move(sizes), dtypes, primitive, arrays);
    for (size_t i = 0; i < shapes_len; ++i) {
      outputs[i] = mlx_array_new_(std::move(made[i]));
    }
    return 0;
  } catch (const std::exception& failure) {
    fail(failure, error);
    return 1;
  }
}

// Whether `motet_bridge_adopt` can work with this MLX.
extern "C" int motet_bridge_can_adopt(void) {
  return buffers_are_plain();
}

// Makes an array of the numbers at `data`, without a copy. The eight bytes before them get the
// header of MLX's allocator. The memory belongs to `owner`. `drop` frees `owner` exactly once,
// when no array uses the memory any more, also if this call fails. Returns 0, or writes the
// reason of a failure into `error`, of at least 512 bytes.
extern "C" int motet_bridge_adopt(
    float* data,
    const motet_shape* shape,
    void* owner,
    void (*drop)(void*),
    mlx_array* output,
    char* error) {
  try {
    const std::shared_ptr<void> held(owner, drop);
    mx::Shape sizes(shape->sizes, shape->sizes + shape->dims);
    size_t bytes = sizeof(float);
    for (const auto size : sizes) {
      bytes *= static_cast<size_t>(size);
    }
    const auto header = reinterpret_cast<size_t*>(data) - 1;
    *header = bytes;
    mx::array adopted(
        mx::allocator::Buffer(header), std::move(sizes), mx::float32, [held](mx::allocator::Buffer) {});
    *output = mlx_array_new_(std::move(adopted));
    return 0;
  } catch (const std::exception& failure) {
    fail(failure, error);
    return 1;
  }
}
