/* See torch.h. */

#define _GNU_SOURCE
#include "torch.h"

#include <dlfcn.h>

struct Torch torch;

static const struct {
    const char *name;
    void *where;
} FUNCTIONS[] = {
    {"aoti_torch_create_tensor_from_blob", &torch.from_blob},
    {"aoti_torch_delete_tensor_object", &torch.release},
    {"aoti_torch_copy_", &torch.copy},
    {"aoti_torch_get_dim", &torch.rank},
    {"aoti_torch_get_sizes", &torch.sizes},
    {"aoti_torch_get_dtype", &torch.dtype},
    {"torch_call_dispatcher", &torch.dispatch},
    {"torch_new_list_reserve_size", &torch.new_list},
    {"torch_list_push_back", &torch.push},
    {"torch_delete_list", &torch.delete_list},
    {"torch_new_stable_ivalue", &torch.new_word},
    {"torch_delete_stable_ivalue", &torch.delete_word},
    {"torch_exception_get_what_without_backtrace", &torch.what},
    {"torch_get_num_threads", &torch.threads},
    {"omp_get_max_threads", &torch.max_threads},
    {"omp_set_num_threads", &torch.set_threads},
};

const char *
find_torch(void *library)
{
    size_t count = sizeof FUNCTIONS / sizeof *FUNCTIONS;
    for (size_t i = 0; i < count; i++)
        if (!dlsym(library, FUNCTIONS[i].name))
            return FUNCTIONS[i].name;
    for (size_t i = 0; i < count; i++)
        *(void **)FUNCTIONS[i].where = dlsym(library, FUNCTIONS[i].name);
    *(void **)&torch.set_blas_threads = dlsym(library, "MKL_Set_Num_Threads_Local");
    *(void **)&torch.any_modes =
        dlsym(library, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb");
    return NULL;
}
