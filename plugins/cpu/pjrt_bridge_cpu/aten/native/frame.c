/* See frame.h. */

#include "frame.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int
fail(char *message, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, MESSAGE, format, values);
    va_end(values);
    return -1;
}

bool
is_text(const Span *span, const char *text)
{
    return span->size == strlen(text) && !memcmp(span->data, text, span->size);
}

const Span *
text_of(const Frame *frame, const char *name)
{
    const Attributes *attributes = &frame->attributes;
    const Span *text = NULL;
    for (int64_t i = 0; i < attributes->count; i++)
        if (attributes->types[i] == STRING && is_text(attributes->names[i], name))
            text = attributes->values[i];
    return text;
}

const void *
list_of(const Frame *frame, const char *name, int dtype, int64_t each, int64_t *count)
{
    const Attributes *attributes = &frame->attributes;
    for (int64_t i = 0; i < attributes->count; i++) {
        const Array *array = attributes->values[i];
        if (attributes->types[i] == ARRAY && is_text(attributes->names[i], name) &&
            array->dtype == dtype && array->size % (size_t)each == 0) {
            *count = (int64_t)array->size / each;
            return array->data;
        }
    }
    return NULL;
}

const void *
array_of(const Frame *frame, const char *name, int dtype, size_t size)
{
    int64_t count = 0;
    const void *data = list_of(frame, name, dtype, 1, &count);
    return count == (int64_t)size ? data : NULL;
}

int
read_where(const Frame *frame, const Span **where, char *message)
{
    *where = text_of(frame, "where");
    return *where ? 0 : fail(message, "its attributes are not those that the bridge writes");
}

int64_t
count_of(const Buffer *buffer)
{
    int64_t count = 1;
    for (int64_t i = 0; i < buffer->rank; i++)
        count *= buffer->dims[i];
    return count;
}

int
read_arrays(const Frame *frame, int operands, int results, const Buffer **all, char *message)
{
    static const char *const COUNTS[] = {"no", "one", "two", "three", "four",
                                         "five", "six", "seven", "eight", "nine"};
    const bool several = results > 1;
    if (frame->operands.count != operands || frame->results.count != results)
        return fail(message, "expected %s operand%s and %s result%s", COUNTS[operands],
                    operands == 1 ? "" : "s", COUNTS[results], several ? "s" : "");
    for (int i = 0; i < operands + results; i++) {
        const Buffers *side = i < operands ? &frame->operands : &frame->results;
        const int at = i < operands ? i : i - operands;
        if (side->types[at] != BUFFER)
            return fail(message, "its operands and its result%s are not all arrays",
                        several ? "s" : "");
        all[i] = side->buffers[at];
        if (!REACHES(all[i]->size, Buffer, dims))
            return fail(message, "an operand or %s result ends early", several ? "a" : "its");
    }
    return 0;
}

int64_t
size_of_type(int dtype)
{
    static const signed char SIZES[] = {
        [PRED] = 1, [S8] = 1, [S16] = 2, [S32] = 4, [S64] = 8,  [U8] = 1,   [U16] = 2,  [U32] = 4,
        [U64] = 8,  [F16] = 2, [F32] = 4, [F64] = 8, [C64] = 8, [BF16] = 2, [C128] = 16,
    };
    return dtype > 0 && dtype < (int)sizeof SIZES ? SIZES[dtype] : 0;
}

void
copy_array(const Buffer *to, const Buffer *from, int64_t width)
{
    if (to->data != from->data)
        memcpy(to->data, from->data, (size_t)(width * count_of(from)));
}

Error *
refuse(const Frame *frame, int code, const char *who, const char *message)
{
    char text[MESSAGE + 128];
    snprintf(text, sizeof text, "%s in a program for the CPU plugin: %s", who, message);
    ErrorArgs args = {sizeof args, NULL, text, code};
    return frame->api->create(&args);
}

static Error *
state_version(const Frame *frame, const char *who, const MetadataExtension *asked)
{
    const Version *theirs = &frame->api->version;
    if (!REACHES(asked->base.size, MetadataExtension, metadata) ||
        !REACHES(asked->metadata->size, Metadata, version))
        return refuse(frame, INVALID_ARGUMENT, who, "there is no room for its API version");
    int minor = theirs->major == MAJOR ? theirs->minor : NEWEST_MINOR;
    minor = minor < OLDEST_MINOR ? OLDEST_MINOR : minor;
    asked->metadata->version.major = MAJOR;
    asked->metadata->version.minor = minor > NEWEST_MINOR ? NEWEST_MINOR : minor;
    return NULL;
}

bool
asks_for_version(const Frame *frame, const char *who, Error **answer)
{
    for (Extension *found = frame->extension; found; found = found->next)
        if (found->type == METADATA) {
            *answer = state_version(frame, who, (MetadataExtension *)found);
            return true;
        }
    return false;
}

int
check_caller(const Frame *frame, char *message)
{
    const Api *api = frame->api;
    if (api->version.major != MAJOR || api->version.minor < OLDEST_MINOR)
        return fail(message, "found version %d.%d of XLA's FFI API, expected %d.%d or a later %d.x",
                    api->version.major, api->version.minor, MAJOR, OLDEST_MINOR, MAJOR);
    if (!REACHES(api->size, Api, threads))
        return fail(message, "found a function table of %zu bytes, expected %zu or more", api->size,
                    sizeof *api);
    if (!REACHES(frame->size, Frame, attributes))
        return fail(message, "found a call frame of %zu bytes, expected %zu or more", frame->size,
                    sizeof *frame);
    if (!REACHES(frame->operands.size, Buffers, buffers) ||
        !REACHES(frame->results.size, Buffers, buffers) ||
        !REACHES(frame->attributes.size, Attributes, values))
        return fail(message, "its operands, results or attributes end early");
    return 0;
}
