/* The functions of libtorch that a call uses: its stable C interface.
 *
 * Sources: torch/csrc/stable/c/shim.h and torch/csrc/inductor/aoti_torch/c/shim.h of PyTorch 2.13.
 */

#ifndef PJRT_BRIDGE_CPU_TORCH_H
#define PJRT_BRIDGE_CPU_TORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void *Tensor;
typedef uint64_t Word;

#define BUILT_FOR ((UINT64_C(2) << 56) | (UINT64_C(13) << 48))

extern struct Torch {
    int (*from_blob)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t,
                     int32_t, Tensor *);
    int (*release)(Tensor);
    int (*copy)(Tensor, Tensor, int32_t);
    int (*rank)(Tensor, int64_t *);
    int (*sizes)(Tensor, int64_t **);
    int (*dtype)(Tensor, int32_t *);
    int (*dispatch)(const char *, const char *, Word *, uint64_t);
    int (*new_list)(size_t, void **);
    int (*push)(void *, Word);
    int (*delete_list)(void *);
    int (*new_word)(Word **);
    int (*delete_word)(Word *);
    const char *(*what)(void);
    int (*threads)(uint32_t *);
    int (*max_threads)(void);
    void (*set_threads)(int);
    int (*set_blas_threads)(int); /* May be missing: not every build has MKL. */
    bool (*any_modes)(bool);      /* May be missing: no part of the stable interface. */
} torch;

/* Find them in a library. The name of one that it lacks, or NULL. */
const char *find_torch(void *library);

#endif
