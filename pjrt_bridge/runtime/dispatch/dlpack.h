/* The structs of DLPack in which frameworks describe tensors.
 *
 * Source: dlpack.h 1.3.
 */

#ifndef PJRT_BRIDGE_DLPACK_H
#define PJRT_BRIDGE_DLPACK_H

#include <stddef.h>
#include <stdint.h>

enum { DL_CPU = 1 };

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    struct {
        int32_t device_type, device_id;
    } device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

/* The name of a capsule that holds a DLManagedTensor; taking the tensor over renames it. */
#define CAPSULE_NAME "dltensor"

typedef struct DLManagedTensor {
    DLTensor tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *);
} DLManagedTensor;

typedef struct {
    uint32_t major, minor;
} DLPackVersion;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *);
    uint64_t flags;
    DLTensor tensor;
} DLManagedTensorVersioned;

typedef struct {
    DLPackVersion version;
    void *previous;
    void *allocate;
    void *managed_from_object;
    int (*object_from_managed)(DLManagedTensorVersioned *, void **object);
    int (*tensor_from_object)(void *object, DLTensor *out); /* NULL where it is not offered. */
    void *work_stream;
} DLPackExchangeAPI;

_Static_assert(sizeof(void *) != 8 || sizeof(DLTensor) == 48, "DLTensor");
_Static_assert(sizeof(void *) != 8 || sizeof(DLManagedTensorVersioned) == 80, "versioned tensor");

#endif
