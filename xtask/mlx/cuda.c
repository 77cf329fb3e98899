// Settings of MLX for CUDA, which it reads from the environment when a stream is made.
#include <stdlib.h>

// MLX keeps the CUDA graphs of a stream's last 400 kinds of evaluation. After 800 kinds that it did
// not know it takes the cache for useless, and fails each evaluation of another new kind from then
// on. Steps of a batch have no end of kinds: the program has to go on, and makes the graph again. A
// value that the user has set stays. This runs when the library is loaded, before any thread of the
// program.
__attribute__((constructor)) static void motet_keep_evaluating(void) {
  setenv("MLX_ENABLE_CACHE_THRASHING_CHECK", "0", 0);
}
