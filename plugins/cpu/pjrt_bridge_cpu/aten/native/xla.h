/* What XLA hands to a custom call, as it lies in memory.
 *
 * Source: xla/ffi/api/c_api.h 0.3. What is declared here is the same since 0.1.
 */

#ifndef PJRT_BRIDGE_CPU_XLA_H
#define PJRT_BRIDGE_CPU_XLA_H

#include <stddef.h>
#include <stdint.h>

typedef struct Error Error;

typedef struct {
    size_t size;
    void *extension;
    int major, minor;
} Version;

typedef struct Extension {
    size_t size;
    int type;
    struct Extension *next;
} Extension;

typedef struct {
    size_t size;
    Version version;
} Metadata;

typedef struct {
    Extension base;
    Metadata *metadata;
} MetadataExtension;

typedef struct {
    size_t size;
    void *extension;
    const char *message;
    int code;
} ErrorArgs;

typedef struct {
    size_t size;
    void *extension, *context;
    int64_t *count;
} ThreadsArgs;

typedef struct {
    size_t size;
    void *extension;
    Version version;
    void *internal;
    Error *(*create)(ErrorArgs *);
    void *get_message;
    void (*destroy)(void *);
    void *others[9];
    Error *(*threads)(ThreadsArgs *);
} Api;

typedef struct {
    size_t size;
    void *extension;
    int dtype;
    char *data;
    int64_t rank;
    const int64_t *dims;
} Buffer;

typedef struct {
    const char *data;
    size_t size;
} Span;

typedef struct {
    int dtype;
    size_t size;
    const void *data;
} Array;

typedef struct {
    size_t size;
    void *extension;
    int64_t count;
    int *types;
    Buffer **buffers;
} Buffers;

typedef struct {
    size_t size;
    void *extension;
    int64_t count;
    int *types;
    Span **names;
    void **values;
} Attributes;

typedef struct {
    size_t size;
    Extension *extension;
    const Api *api;
    void *context;
    int stage;
    Buffers operands, results;
    Attributes attributes;
} Frame;

/* Of the API: the oldest and the newest that the declarations above are right for. */
enum { MAJOR = 0, OLDEST_MINOR = 1, NEWEST_MINOR = 3 };

/* Whether a struct of a size that its writer states reaches as far as a field. */
#define REACHES(size, type, field) \
    ((size) >= offsetof(type, field) + sizeof(((type *)NULL)->field))

enum { METADATA = 1, ARRAY = 1, BUFFER = 1, STRING = 4 };
/* Element types. */
enum { PRED = 1, S8, S16, S32, S64, U8, U16, U32, U64, F16, F32, F64, C64 = 15, BF16, C128 = 18 };
enum { INVALID_ARGUMENT = 3, OUT_OF_RANGE = 11, INTERNAL = 13 };

#endif
