/* What every custom call does with the caller: state the API, look at its structs, refuse. */

#ifndef PJRT_BRIDGE_CPU_FRAME_H
#define PJRT_BRIDGE_CPU_FRAME_H

#include "xla.h"

#include <stdbool.h>

#define MESSAGE 512

/* Write a reason; -1. */
int fail(char *message, const char *format, ...);

/* An error for the caller. */
Error *refuse(const Frame *frame, int code, const char *who, const char *message);

/* Whether a frame asks for the version of the API instead of calling; *answer is what to return.
 * The version is the newest that both know. A caller of another major version gets one that it
 * does not speak, and registers nothing. */
bool asks_for_version(const Frame *frame, const char *who, Error **answer);

/* Whether the caller's structs are those that the rest reads. */
int check_caller(const Frame *frame, char *message);

/* The attribute of a name that is a text; NULL where there is none. */
const Span *text_of(const Frame *frame, const char *name);

/* The data of an attribute that is an array of groups of `each` elements, and how many groups it
 * has; NULL where there is none such. */
const void *list_of(const Frame *frame, const char *name, int dtype, int64_t each, int64_t *count);

/* The data of an attribute that is an array; NULL where there is none such. */
const void *array_of(const Frame *frame, const char *name, int dtype, size_t size);

/* Where a check is in the user's program, from the attribute `where`. */
int read_where(const Frame *frame, const Span **where, char *message);

/* The bytes of an element; 0 where it has no whole ones. */
int64_t size_of_type(int dtype);

/* How many elements a buffer has. */
int64_t count_of(const Buffer *buffer);

/* The arrays of a call with so many operands and results, at most nine of each: the operands, and
 * then the results. */
int read_arrays(const Frame *frame, int operands, int results, const Buffer **all, char *message);

/* Copy an array into another one of its size, if that is not in its memory; width: of an element,
 * in bytes. */
void copy_array(const Buffer *to, const Buffer *from, int64_t width);

bool is_text(const Span *span, const char *text);

#endif
