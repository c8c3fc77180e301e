/* The functions of the PJRT C API that are called here: their args structs, and how to call them.
 *
 * Source: pjrt_c_api.h. Slots and sizes come from Python, which knows them from `pjrt_bridge.abi`;
 * a test compares the structs with the declarations there.
 */

#ifndef PJRT_BRIDGE_ABI_H
#define PJRT_BRIDGE_ABI_H

#include "process.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* PJRT_Event_OnReadyCallback: gets the PJRT_Error of what failed, which it destroys, or NULL. */
typedef void EventCallback(void *error, void *user_arg);

#define FIELDS_Error_Destroy(X) X(void *, error)
#define FIELDS_Client_BufferFromHostBuffer(X)                                                     \
    X(void *, client) X(const void *, data) X(int, type) X(const int64_t *, dims)                 \
    X(size_t, num_dims) X(const int64_t *, byte_strides) X(size_t, num_byte_strides)              \
    X(int, host_buffer_semantics) X(void *, device) X(void *, memory) X(void *, device_layout)    \
    X(void *, done_with_host_buffer) X(void *, buffer)
#define FIELDS_LoadedExecutable_Execute(X)                                                        \
    X(void *, executable) X(void *, options) X(void *const *const *, argument_lists)              \
    X(size_t, num_devices) X(size_t, num_args) X(void **const *, output_lists)                    \
    X(void **, device_complete_events) X(void *, execute_device)
#define FIELDS_Event_Await(X) X(void *, event)
#define FIELDS_Event_Destroy(X) X(void *, event)
#define FIELDS_Event_OnReady(X)                                                                   \
    X(void *, event) X(EventCallback *, callback) X(void *, user_arg)
#define FIELDS_Event_IsReady(X) X(void *, event) X(bool, is_ready)
#define FIELDS_Buffer_Destroy(X) X(void *, buffer)
#define FIELDS_Buffer_ReadyEvent(X) X(void *, buffer) X(void *, event)
#define FIELDS_Buffer_OpaqueDeviceMemoryDataPointer(X) X(void *, buffer) X(void *, device_memory_ptr)

#define FUNCTIONS(X)                                                                              \
    X(Error_Destroy)                                                                              \
    X(Client_BufferFromHostBuffer)                                                                \
    X(LoadedExecutable_Execute)                                                                   \
    X(Event_Await)                                                                                \
    X(Event_Destroy)                                                                              \
    X(Event_IsReady)                                                                              \
    X(Event_OnReady)                                                                              \
    X(Buffer_Destroy)                                                                             \
    X(Buffer_ReadyEvent)                                                                          \
    X(Buffer_OpaqueDeviceMemoryDataPointer)

#define DECLARE_FIELD(type, name) type name;
#define DECLARE_ARGS(function)                                                                    \
    typedef struct {                                                                              \
        size_t struct_size;                                                                       \
        void *extension_start;                                                                    \
        FIELDS_##function(DECLARE_FIELD)                                                          \
    } function##_Args;
#define DECLARE_INDEX(function) AT_##function,
FUNCTIONS(DECLARE_ARGS)
enum { FUNCTIONS(DECLARE_INDEX) NUM_FUNCTIONS };

/* PJRT_HostBufferSemantics: kImmutableOnlyDuringCall, kImmutableZeroCopy and kMutableZeroCopy. */
enum { COPY_DURING_CALL = 0, SHARE = 2, GIVE = 3 };

typedef struct {
    void *(*call)(void *args); /* Returns a PJRT_Error, or NULL. */
    size_t size;               /* Of its args struct. */
} Function;

/* Declare the args struct of a function of a plan's table as `args`, and call the function on it. */
#define ARGS(plan, function, ...)                                                                 \
    function##_Args args = {.struct_size = (plan)->table[AT_##function].size, __VA_ARGS__}
#define CALL(plan, function) (plan)->table[AT_##function].call(&args)

/* Fill a table from a tuple of (address, size of the args struct), in the order of FUNCTIONS. -1
 * with an exception where it is something else. */
int read_table(PyObject *tuple, Function *table);

/* The names of FUNCTIONS, a tuple. */
PyObject *function_names(void);

/* {function: {field: (offset, size)}} of the args structs. */
PyObject *struct_layouts(void);

#endif
