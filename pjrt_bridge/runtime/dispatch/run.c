/* See run.h. */

#include "run.h"

#include "await.h"

#include <stdlib.h>
#include <string.h>

static const char *const NOTHING = "a NULL";

/* -- what a run owns ------------------------------------------------------------------------- */

static Workspace *
new_workspace(const Plan *plan)
{
    size_t parameters = (size_t)plan->num_parameters, results = (size_t)plan->num_results;
    size_t size = sizeof(HostInput) + sizeof(Input) + 2 * sizeof(void *) + sizeof(PyObject *);
    Workspace *self = malloc(sizeof *self + parameters * size +
                             results * (sizeof(Update) + sizeof(void *) + sizeof(Output *) +
                                        sizeof(PyObject *)));
    if (self) {
        self->host_inputs = (HostInput *)(self + 1);
        self->inputs = (Input *)(self->host_inputs + parameters);
        self->updates = (Update *)(self->inputs + parameters);
        self->arguments = (void **)(self->updates + results);
        self->memories = (const void **)(self->arguments + parameters);
        self->owners = (PyObject **)(self->memories + parameters);
        self->results = (void **)(self->owners + parameters + results);
        self->outputs = (Output **)(self->results + results);
    }
    return self;
}

int
open_run(Run *self, Plan *plan, PyObject *lease)
{
    Workspace *workspace = plan->workspace ? plan->workspace : new_workspace(plan);
    if (!workspace) {
        PyErr_NoMemory();
        return -1;
    }
    plan->workspace = NULL;
    self->workspace = workspace;
    self->execution = (Execution){
        .plan = (Plan *)Py_NewRef((PyObject *)plan),
        .lease = Py_NewRef(lease),
        .inputs = workspace->inputs,
        .owners = workspace->owners,
    };
    while (self->num_outputs < plan->num_results) {
        Output *output = new_output(plan, lease, &plan->results[self->num_outputs]);
        if (!output)
            return -1;
        workspace->outputs[self->num_outputs++] = output;
    }
    return 0;
}

void
close_run(Run *self)
{
    if (!self->workspace)
        return;
    Plan *plan = (Plan *)Py_NewRef((PyObject *)self->execution.plan);
    close_execution(&self->execution);
    while (self->num_outputs > 0)
        Py_DECREF((PyObject *)self->workspace->outputs[--self->num_outputs]);
    if (plan->workspace)
        free(self->workspace);
    else
        plan->workspace = self->workspace;
    self->workspace = NULL;
    Py_DECREF((PyObject *)plan);
}

PyObject *
tensors_of(const Run *self)
{
    PyObject *tensors = PyList_New(self->num_outputs - self->num_updates);
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; tensors && i < self->num_outputs; i++) {
        Output *output = self->workspace->outputs[i];
        if (self->num_updates && output->form->position >= 0)
            continue;
        PyObject *tensor = tensor_of(output);
        if (!tensor || PyList_SetItem(tensors, at++, tensor))
            Py_CLEAR(tensors);
    }
    return tensors;
}

/* -- the end --------------------------------------------------------------------------------- */

/* Where the values of a result are; NULL where the plugin failed. */
static void *
data_of(const Output *output, Ending *ending)
{
    Plan *plan = output->plan;
    ARGS(plan, Buffer_OpaqueDeviceMemoryDataPointer, .buffer = output->buffer);
    ending->function = "Buffer_OpaqueDeviceMemoryDataPointer";
    ending->error = CALL(plan, Buffer_OpaqueDeviceMemoryDataPointer);
    if (ending->error)
        return NULL;
    void *data = output->form->nbytes ? args.device_memory_ptr : no_elements;
    if (data && !plan->exchange && !is_aligned(data)) {
        ending->made = "memory that is not aligned to 64 bytes";
        return NULL;
    }
    return data;
}

Ending
await_end(Run *self, void *done, PyThreadState **state)
{
    Execution *execution = &self->execution;
    Plan *plan = execution->plan;
    Ending ending = {.function = "Event_Await", .made = NOTHING};
    const bool waits = execution->began && !is_ready(plan, done);
    if (!await_event(plan, done, state)) {
        ending.interrupted = true;
        return ending;
    }
    if (execution->began)
        note_duration(&plan->idle, execution->began, waits);
    {
        ARGS(plan, Event_Await, .event = done);
        ending.error = CALL(plan, Event_Await);
    }
    destroy_event(plan, done);
    ending.dropped = drop_inputs(execution);
    ending.dropped.events++;
    ending.complete = !ending.error;
    for (Py_ssize_t i = 0; ending.complete && i < self->num_outputs; i++) {
        Output *output = self->workspace->outputs[i];
        output->data = data_of(output, &ending);
        ending.complete = output->data != NULL;
    }
    for (Py_ssize_t i = 0; ending.complete && i < self->num_updates; i++) {
        const Update *update = &self->workspace->updates[i];
        const Output *output = self->workspace->outputs[update->result];
        /* A program that was given the memory may have written there. */
        if (output->data != update->data)
            memmove(update->data, output->data, (size_t)output->form->nbytes);
    }
    return ending;
}

int
settle(Run *self, Ending ending)
{
    count_dropped(ending.dropped);
    hand_over(&self->execution);
    drop_owners(&self->execution);
    if (ending.complete)
        return 0;
    raise_failure(self->execution.plan, ending.error, ending.function, ending.made);
    return -1;
}

/* -- the start ------------------------------------------------------------------------------- */

/* Make a buffer of host memory. Without the GIL. NULL where the plugin failed. */
static void *
put(Plan *plan, const HostInput *host_input, Input *input, void **error)
{
    const Form *form = &plan->parameters[host_input->parameter];
    int semantics = !host_input->share ? COPY_DURING_CALL : form->written ? GIVE : SHARE;
    ARGS(plan, Client_BufferFromHostBuffer, .client = plan->client, .data = host_input->data,
         .type = form->type, .dims = form->dims, .num_dims = (size_t)form->rank,
         .host_buffer_semantics = semantics, .device = plan->device);
    *error = CALL(plan, Client_BufferFromHostBuffer);
    *input = (Input){args.buffer, args.done_with_host_buffer};
    return *error ? NULL : args.buffer;
}

/* Make buffers of what is given, and execute. Without the GIL. False, with the error and the
 * function's name, where the plugin failed. */
static bool
execute(Run *self, Py_ssize_t num_host_inputs, void **error, const char **function)
{
    Execution *execution = &self->execution;
    Plan *plan = execution->plan;
    Workspace *workspace = self->workspace;
    *function = "Client_BufferFromHostBuffer";
    for (Py_ssize_t i = 0; i < num_host_inputs; i++) {
        const HostInput *host_input = &workspace->host_inputs[i];
        void *buffer = put(plan, host_input, &workspace->inputs[i], error);
        if (!buffer)
            return false;
        workspace->arguments[host_input->parameter] = buffer;
        execution->num_inputs++;
    }
    *function = "LoadedExecutable_Execute";
    for (Py_ssize_t i = 0; i < plan->num_results; i++)
        workspace->results[i] = NULL;
    void *const *argument_lists[] = {workspace->arguments};
    void **output_lists[] = {workspace->results};
    ARGS(plan, LoadedExecutable_Execute, .executable = self->executable, .options = plan->options,
         .argument_lists = argument_lists, .num_devices = 1,
         .num_args = (size_t)plan->num_parameters, .output_lists = output_lists,
         .device_complete_events = &execution->done);
    int64_t began = end_idle_threads(&plan->idle);
    *error = CALL(plan, LoadedExecutable_Execute);
    /* What a call that failed has written to its outputs means nothing. */
    if (*error)
        execution->done = NULL;
    /* Some plugins run small programs, and programs of calls, on this thread. */
    const bool is_over = began && execution->done && is_ready(plan, execution->done);
    if (is_over)
        note_duration(&plan->idle, began, true);
    execution->began = is_over ? 0 : began;
    return !*error;
}

int
start_run(Run *self, Py_ssize_t num_host_inputs, bool wait)
{
    Execution *execution = &self->execution;
    Workspace *workspace = self->workspace;
    void *error = NULL;
    const char *function;
    Dropped dropped = {0, 0};
    Ending ending = {0};
    /* Here, and not before the arguments are read: that may take the GIL away. */
    if (check_may_call(execution->plan))
        return -1;
    PyThreadState *state = enter_plugin();
    bool started = execute(self, num_host_inputs, &error, &function);
    Py_ssize_t inputs = execution->num_inputs, results = 0;
    long events = execution->done != NULL;
    for (Py_ssize_t i = 0; i < inputs; i++)
        events += execution->inputs[i].done != NULL;
    bool complete = started && execution->done;
    for (Py_ssize_t i = 0; started && i < self->num_outputs; i++) {
        workspace->outputs[i]->buffer = workspace->results[i];
        results += workspace->results[i] != NULL;
        complete = complete && workspace->results[i];
    }
    if (!started)
        dropped = drop_inputs(execution);
    if (complete && wait) {
        void *done = execution->done;
        execution->done = NULL;
        ending = await_end(self, done, &state);
        if (ending.interrupted)
            execution->done = done;
    }
    leave_plugin(state);
    process.num_buffers += inputs + results;
    process.num_events += events;
    count_dropped(dropped);
    if (!complete) {
        raise_failure(execution->plan, error, function, NOTHING);
        return -1;
    }
    if (ending.interrupted)
        return -1;
    return wait ? settle(self, ending) : 0;
}
