// Matrix products on OpenBLAS, without touching a file of MLX's wheel.
//
// The wheel links the reference BLAS (about 4 GFLOP/s). MLX calls three functions of
// it: cblas_sgemm, cblas_dgemm and cblas_cgemm. The loader takes a symbol from the
// first library that has it, so defining the three here wins, both
//   - linked into libmlxc.so, which comes before libmlx.so in a Rust program, and
//   - alone in libmotet_blas.so, LD_PRELOADed into a Python that uses the same wheel.
// OpenBLAS is opened at the first product. It reads its settings from the environment when it is
// opened. Ours are put there before main() runs, while there is one thread, because setenv()
// beside a getenv() of another thread is a data race. Settings of the user are kept:
// OPENBLAS_CORETYPE, OPENBLAS_NUM_THREADS, OMP_NUM_THREADS.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MOTET_OPENBLAS_PATH
#error "MOTET_OPENBLAS_PATH must name the OpenBLAS library to open"
#endif
#ifndef MOTET_OPENBLAS_BESIDE
#error "MOTET_OPENBLAS_BESIDE must name it relative to this library, where both are shipped"
#endif

// ---------------------------------------------------------------- settings

// Cores, not hyperthreads, that this process may run on: a CPU counts when no
// lower-numbered CPU that we may use shares its core.
static int physical_cores(void) {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) {
    return 1;
  }
  int cores = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &usable)) {
      continue;
    }
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE* file = fopen(path, "r");
    int first_sibling = cpu;
    if (file != NULL) {
      if (fscanf(file, "%d", &first_sibling) != 1) {
        first_sibling = cpu;
      }
      fclose(file);
    }
    if (first_sibling < 0 || first_sibling >= cpu || !CPU_ISSET(first_sibling, &usable)) {
      cores++;
    }
  }
  return cores > 0 ? cores : 1;
}

// The container's CPU limit (cgroup v2), rounded up; `otherwise` when there is none.
static int container_limit(int otherwise) {
  FILE* file = fopen("/sys/fs/cgroup/cpu.max", "r");
  if (file == NULL) {
    return otherwise;
  }
  long quota_us, period_us;
  int fields = fscanf(file, "%ld %ld", &quota_us, &period_us); // "max 100000" when unlimited
  fclose(file);
  if (fields != 2 || quota_us <= 0 || period_us <= 0) {
    return otherwise;
  }
  return (int)((quota_us + period_us - 1) / period_us);
}

static void bound_threads(void) {
  if (getenv("OPENBLAS_NUM_THREADS") != NULL || getenv("OMP_NUM_THREADS") != NULL) {
    return;
  }
  int threads = physical_cores();
  int limit = container_limit(threads);
  char text[16];
  snprintf(text, sizeof text, "%d", limit < threads ? limit : threads);
  setenv("OPENBLAS_NUM_THREADS", text, 1);
}

// OpenBLAS runs its AVX2 kernels on AMD's AVX-512 cores; the SkylakeX ones were
// measured 1.5 times faster there at 128 rows. It chooses well for Intel.
static void choose_kernels(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
  }
#endif
}

__attribute__((constructor)) static void set_openblas_up(void) {
  bound_threads();
  choose_kernels();
}

// ---------------------------------------------------------------- products

// CBLAS enumerations are passed through as int; complex scalars by address.
typedef void sgemm_fn(int, int, int, int, int, int, float, const float*, int, const float*, int,
                      float, float*, int);
typedef void dgemm_fn(int, int, int, int, int, int, double, const double*, int, const double*, int,
                      double, double*, int);
typedef void cgemm_fn(int, int, int, int, int, int, const void*, const void*, int, const void*, int,
                      const void*, void*, int);

static sgemm_fn* sgemm;
static dgemm_fn* dgemm;
static cgemm_fn* cgemm;

// OpenBLAS' function, or else the one that would have been called without us.
static void* product(void* openblas, const char* name) {
  char prefixed[64];
  snprintf(prefixed, sizeof prefixed, "scipy_%s", name); // the wheel's symbols carry a prefix
  void* found = openblas != NULL ? dlsym(openblas, prefixed) : NULL;
  if (found == NULL) {
    found = dlsym(RTLD_NEXT, name);
  }
  if (found == NULL) {
    fprintf(stderr, "motet: no BLAS has %s\n", name);
    abort();
  }
  return found;
}

// OpenBLAS below the folder of this library, where `cargo xtask bundle` puts it, or NULL.
static void* open_beside(void) {
  Dl_info own;
  if (dladdr((void*)open_beside, &own) == 0 || own.dli_fname == NULL) {
    return NULL;
  }
  const char* slash = strrchr(own.dli_fname, '/');
  int folder = slash != NULL ? (int)(slash - own.dli_fname) : 0;
  char path[4096];
  int length = snprintf(path, sizeof path, "%.*s/%s", folder, own.dli_fname, MOTET_OPENBLAS_BESIDE);
  if (slash == NULL || length < 0 || (size_t)length >= sizeof path) {
    return NULL;
  }
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void open_openblas(void) {
  void* openblas = open_beside();
  if (openblas == NULL) {
    openblas = dlopen(MOTET_OPENBLAS_PATH, RTLD_NOW | RTLD_LOCAL);
  }
  if (openblas == NULL) {
    fprintf(stderr, "motet: OpenBLAS cannot be loaded (%s); matrix products will be slow. "
                    "Run `cargo xtask setup`.\n", dlerror());
  }
  sgemm = (sgemm_fn*)product(openblas, "cblas_sgemm");
  dgemm = (dgemm_fn*)product(openblas, "cblas_dgemm");
  cgemm = (cgemm_fn*)product(openblas, "cblas_cgemm");
}

static pthread_once_t opened = PTHREAD_ONCE_INIT;

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                 const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  pthread_once(&opened, open_openblas);
  sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(int order, int trans_a, int trans_b, int m, int n, int k, double alpha,
                 const double* a, int lda, const double* b, int ldb, double beta, double* c,
                 int ldc) {
  pthread_once(&opened, open_openblas);
  dgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k, const void* alpha,
                 const void* a, int lda, const void* b, int ldb, const void* beta, void* c,
                 int ldc) {
  pthread_once(&opened, open_openblas);
  cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
