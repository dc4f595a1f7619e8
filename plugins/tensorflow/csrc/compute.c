/* Performs one collective: takes the tensors, hands the call to the engine, and reports how it ended. */
#include "call.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(const npc_api *) engine;

/* How many kernels wait inside their compute function because this TensorFlow has no other way. */
static atomic_int waiting;

/* How many calls the engine has, by the mark (npt_mark) that was set when they started. Counts only, so relaxed. */
enum { MARKS = 64 };
static atomic_int pending[MARKS];
static atomic_uint marks;

void npt_mark(void)
{
    atomic_fetch_add_explicit(&marks, 1, memory_order_relaxed);
}

int npt_pending_before_mark(void)
{
    unsigned now = atomic_load_explicit(&marks, memory_order_relaxed) % MARKS;
    int count = 0;
    for (unsigned i = 0; i < MARKS; i++)
        count += i != now ? atomic_load_explicit(&pending[i], memory_order_relaxed) : 0;
    return count;
}

void npt_bind(const npc_api *api)
{
    atomic_store_explicit(&engine, api, memory_order_release);
}

static const char *error_name(int status, int *code)
{
    /* Never UNAVAILABLE or ABORTED: a MonitoredSession takes those for a pre-empted worker and tries again for ever. */
    switch ((npc_status)status) {
    case NPC_ERR_MISMATCH:
        *code = TF_INVALID_ARGUMENT;
        return "MismatchError";
    case NPC_ERR_TIMEOUT:
        *code = TF_DEADLINE_EXCEEDED;
        return "CollectiveTimeout";
    case NPC_ERR_PEER_LOST:
        *code = TF_INTERNAL;
        return "PeerLost";
    case NPC_ERR_CLOSED:
    case NPC_ERR_FORKED:
        *code = TF_FAILED_PRECONDITION;
        return "NotInitialized";
    case NPC_ERR_UNSUPPORTED:
        *code = TF_UNIMPLEMENTED;
        return "UnsupportedError";
    case NPC_ERR_ARGUMENT:
    case NPC_ERR_BUSY:
        *code = TF_INVALID_ARGUMENT;
        return "ConfigError";
    case NPC_ERR_INTERRUPTED:
        *code = TF_CANCELLED;
        return "KeyboardInterrupt";
    case NPC_ERR_LIMIT:
    case NPC_ERR_MEMORY:
        *code = TF_RESOURCE_EXHAUSTED;
        return "NpucollError";
    case NPC_ERR_SYSTEM:
    case NPC_OK:
        break;
    }
    *code = TF_INTERNAL;
    return "NpucollError";
}

void npt_fail(struct npt_call *call, int status, const char *text)
{
    char message[NPC_ERROR_TEXT + 64];
    int code;
    const char *name = error_name(status, &code);
    snprintf(message, sizeof message, "npucoll.%s: %s", name, text);
    for (char *at = message; *at != '\0'; at++)
        if (*at == '\n' || *at == '\r')
            *at = ' ';
    npt_tf.SetStatus(call->status, code, message);
}

bool npt_failed(const struct npt_call *call)
{
    return npt_tf.GetCode(call->status) != TF_OK;
}

static void call_free(struct npt_call *call)
{
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] != NULL)
            npt_tf.DeleteTensor(call->in[i]);
    for (int i = 0; i < call->n_out; i++)
        npt_tf.DeleteTensor(call->out[i]);
    if (call->comm != NULL)
        call->api->comm_release(call->comm);
    npt_tf.DeleteStatus(call->status);
    free(call->in);
    free(call);
}

/* finish tells TensorFlow how the call ended, and frees it. */
static void finish(struct npt_call *call)
{
    /* TensorFlow 1.15's TF_AllocateOutput makes a tensor and leaves it to us to make it the output. */
    if (npt_tf.ForwardInputOrAllocateOutput == NULL)
        for (int i = 0; i < call->n_out && !npt_failed(call); i++)
            npt_tf.SetOutput(call->context, i, call->out[i], call->status);
    if (npt_failed(call))
        npt_tf.OpKernelContext_Failure(call->context, call->status);
    struct npt_done done = call->done;
    bool asynchronous = !call->waits;
    call_free(call);
    if (asynchronous)
        npt_done_run(&done); /* last: the context is gone when it returns */
}

/* take_inputs holds the node's input tensors. */
static void take_inputs(struct npt_call *call)
{
    int count = npt_tf.NumInputs(call->context);
    /* One block: inputs, at least three outputs, and a buffer for each. */
    size_t room = (size_t)(count > 3 ? count : 3);
    char *block = calloc(room, 2 * sizeof *call->in + 2 * sizeof *call->in_bufs);
    if (block == NULL) {
        npt_fail(call, NPC_ERR_MEMORY, "no memory for a call");
        return;
    }
    call->in = (TF_Tensor **)block;
    call->out = call->in + room;
    call->in_bufs = (npc_buf *)(call->out + room);
    call->out_bufs = call->in_bufs + room;
    for (int i = 0; i < count && !npt_failed(call); i++) {
        npt_tf.GetInput(call->context, i, &call->in[i], call->status);
        if (!npt_failed(call))
            call->n_in = i + 1;
    }
}

/* connect finds the engine and the communicator. */
static void connect(struct npt_call *call)
{
    call->api = atomic_load_explicit(&engine, memory_order_acquire);
    if (call->api == NULL) {
        npt_fail(call, NPC_ERR_UNSUPPORTED, "graph collectives need npucoll's native engine, which this process lacks");
        return;
    }
    call->comm = call->api->comm_acquire(call->kernel->comm);
    if (call->comm == NULL)
        npt_fail(call, NPC_ERR_CLOSED,
                 call->kernel->comm == 0
                     ? "npucoll is not initialized, or was shut down; call npucoll.init()"
                     : "this group does not exist, or was closed with the communicator it came from");
}

static void on_done(void *user, int status, const char *text)
{
    struct npt_call *call = user;
    atomic_fetch_sub_explicit(&pending[call->mark], 1, memory_order_relaxed);
    if (status != NPC_OK && !npt_failed(call))
        npt_fail(call, status, text);
    if (!call->waits) {
        finish(call);
        return;
    }
    pthread_mutex_lock(&call->mutex);
    call->complete = true;
    pthread_cond_signal(&call->completed);
    pthread_mutex_unlock(&call->mutex);
}

/* start hands the call to the engine; the call may be complete, and gone, when it returns. */
static void start(struct npt_call *call)
{
    npc_error error = {{0}};
    int status;
    call->mark = atomic_load_explicit(&marks, memory_order_relaxed) % MARKS;
    atomic_fetch_add_explicit(&pending[call->mark], 1, memory_order_relaxed);
    if (call->kernel->blocking) {
        status = call->api->run(call->comm, &call->desc, &error);
        on_done(call, status, error.text);
        return;
    }
    status = call->api->submit(call->comm, &call->desc, on_done, call, &error);
    if (status != NPC_OK)
        on_done(call, status, error.text);
}

/* wait_inside keeps the compute function until the call is complete. Two that wait at once can keep TensorFlow's
 * threads from the very call that another rank waits for, so the second is refused in words. */
static void wait_inside(struct npt_call *call)
{
    if (!call->kernel->blocking && atomic_fetch_add(&waiting, 1) > 0) {
        npt_fail(call, NPC_ERR_UNSUPPORTED,
                 "in this TensorFlow a graph can run one collective at a time; use one grouped call, or control "
                 "dependencies");
    } else {
        pthread_mutex_init(&call->mutex, NULL);
        pthread_cond_init(&call->completed, NULL);
        start(call);
        pthread_mutex_lock(&call->mutex);
        while (!call->complete)
            pthread_cond_wait(&call->completed, &call->mutex);
        pthread_mutex_unlock(&call->mutex);
        pthread_cond_destroy(&call->completed);
        pthread_mutex_destroy(&call->mutex);
    }
    if (!call->kernel->blocking)
        atomic_fetch_sub(&waiting, 1);
}

void npt_compute(const struct npt_kernel *kernel, TF_OpKernelContext *context, struct npt_done *done)
{
    struct npt_call *call = calloc(1, sizeof *call);
    if (call == NULL)
        abort(); /* with no memory there is no way to tell TensorFlow either */
    call->kernel = kernel;
    call->context = context;
    call->status = npt_tf.NewStatus();
    call->waits = done == NULL;
    if (done != NULL)
        call->done = *done;
    call->match = npt_plan_match(kernel->slot, kernel->key);
    if (npt_tf.GetIterId != NULL && call->match.key != 0) {
        /* Iterations of a loop overlap, on each rank differently: each has its own key. */
        int64_t iteration = npt_tf.GetIterId(context);
        if (iteration > 0)
            call->match.key = npt_mix(call->match.key, (uint64_t)iteration);
    }
    connect(call);
    if (!npt_failed(call))
        take_inputs(call);
    if (!npt_failed(call))
        npt_describe(call);
    if (npt_failed(call)) {
        finish(call);
    } else if (call->waits) {
        wait_inside(call);
        finish(call);
    } else {
        start(call);
    }
}
