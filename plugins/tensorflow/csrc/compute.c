/* Performs one collective: gathers the tensors, hands the call to the engine, and reports how it ended. */
#include "kernel.h"
#include "plan.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(const npc_api *) engine;

enum { MAX_DIMS = 256 };         /* TensorFlow allows 254 */
enum { WORTH_REUSING = 1 << 15 }; /* bytes; smaller outputs are cheap to allocate */

/* How many kernels wait inside their compute function because this TensorFlow has no other way. */
static atomic_int waiting;

/* How many calls the engine has, for npt_pending. */
static atomic_int pending;

int npt_pending(void)
{
    return atomic_load_explicit(&pending, memory_order_relaxed);
}

void npt_bind(const npc_api *api)
{
    atomic_store_explicit(&engine, api, memory_order_release);
}

/* call is one execution of a node; it lives until the engine has completed it and TensorFlow has been told. */
struct call {
    const struct npt_kernel *kernel;
    TF_OpKernelContext *context;
    TF_Status *status;
    const npc_api *api;
    npc_comm *comm;
    npc_desc desc;
    struct npt_match match;
    struct npt_done done;
    int n_in, n_out; /* tensors held */
    TF_Tensor **in, **out;
    npc_buf *in_bufs, *out_bufs;
    int64_t shape[NPC_MAX_DIMS];
    pthread_mutex_t mutex; /* these three only where the kernel waits */
    pthread_cond_t completed;
    bool waits, complete;
};

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

/* fail gives TensorFlow the engine's words behind a mark that Python finds again (errors.py), on one line. */
static void fail(struct call *call, int status, const char *text)
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

static bool failed(const struct call *call)
{
    return npt_tf.GetCode(call->status) != TF_OK;
}

static void call_free(struct call *call)
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
static void finish(struct call *call)
{
    /* TensorFlow 1.15's TF_AllocateOutput makes a tensor and leaves it to us to make it the output. */
    if (npt_tf.ForwardInputOrAllocateOutput == NULL)
        for (int i = 0; i < call->n_out && !failed(call); i++)
            npt_tf.SetOutput(call->context, i, call->out[i], call->status);
    if (failed(call))
        npt_tf.OpKernelContext_Failure(call->context, call->status);
    struct npt_done done = call->done;
    bool asynchronous = !call->waits;
    call_free(call);
    if (asynchronous)
        npt_done_run(&done); /* last: the context is gone when it returns */
}

static int npc_dtype_of(int dtype)
{
    switch (dtype) {
    case TF_BOOL:
        return NPC_BOOL;
    case TF_INT8:
        return NPC_INT8;
    case TF_UINT8:
        return NPC_UINT8;
    case TF_INT16:
        return NPC_INT16;
    case TF_UINT16:
        return NPC_UINT16;
    case TF_INT32:
        return NPC_INT32;
    case TF_UINT32:
        return NPC_UINT32;
    case TF_INT64:
        return NPC_INT64;
    case TF_UINT64:
        return NPC_UINT64;
    case TF_HALF:
        return NPC_FLOAT16;
    case TF_BFLOAT16:
        return NPC_BFLOAT16;
    case TF_FLOAT:
        return NPC_FLOAT32;
    case TF_DOUBLE:
        return NPC_FLOAT64;
    case TF_COMPLEX64:
        return NPC_COMPLEX64;
    case TF_COMPLEX128:
        return NPC_COMPLEX128;
    default:
        return 0;
    }
}

static int64_t elements(const TF_Tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < npt_tf.NumDims(tensor); i++)
        count *= npt_tf.Dim(tensor, i);
    return count;
}

/* output allocates output `index` like the tensor `model`, with dimension 0 replaced unless it is negative. */
static TF_Tensor *output(struct call *call, int index, const TF_Tensor *model, int64_t rows)
{
    int64_t dims[MAX_DIMS], count = 1;
    int n_dims = npt_tf.NumDims(model), dtype = npt_tf.TensorType(model);
    for (int i = 0; i < n_dims; i++) {
        dims[i] = i == 0 && rows >= 0 ? rows : npt_tf.Dim(model, i);
        count *= dims[i];
    }
    size_t bytes = (size_t)count * npt_tf.DataTypeSize(dtype);
    return npt_tf.AllocateOutput(call->context, index, dtype, dims, n_dims, bytes, call->status);
}

/* vector allocates output `index` as a vector of numbers, or as a scalar where `length` is negative. */
static TF_Tensor *vector(struct call *call, int index, int dtype, int64_t length)
{
    size_t bytes = (size_t)(length < 0 ? 1 : length) * npt_tf.DataTypeSize(dtype);
    return npt_tf.AllocateOutput(call->context, index, dtype, &length, length < 0 ? 0 : 1, bytes, call->status);
}

static void keep_output(struct call *call, TF_Tensor *tensor)
{
    if (tensor != NULL)
        call->out[call->n_out++] = tensor;
}

/* allocate is npc_alloc_fn: the ranks have met, and the result's rows are known. */
static void *allocate(void *user, int dtype, int n_dims, const int64_t *shape, const int64_t *counts)
{
    struct call *call = user;
    int size = call->api->comm_size(call->comm);
    (void)dtype;
    TF_Tensor *result = output(call, 0, call->in[0], n_dims > 0 ? shape[0] : -1);
    if (failed(call))
        return NULL;
    keep_output(call, result);
    TF_Tensor *rows = vector(call, 1, TF_INT64, size);
    if (failed(call))
        return NULL;
    keep_output(call, rows);
    memcpy(npt_tf.TensorData(rows), counts, (size_t)size * sizeof *counts);
    if (call->kernel->kind == NPC_ALLGATHER) {
        TF_Tensor *rank = vector(call, 2, TF_INT32, -1);
        if (failed(call))
            return NULL;
        keep_output(call, rank);
        *(int32_t *)npt_tf.TensorData(rank) = call->api->comm_rank(call->comm);
    }
    void *data = npt_tf.TensorData(result);
    /* NULL would mean failure; an empty tensor has no memory, and nothing is written to it. */
    return data != NULL ? data : call;
}

/* take_inputs holds the node's input tensors. */
static void take_inputs(struct call *call)
{
    int count = npt_tf.NumInputs(call->context);
    /* One block: inputs, at least three outputs, and a buffer for each. */
    size_t room = (size_t)(count > 3 ? count : 3);
    char *block = calloc(room, 2 * sizeof *call->in + 2 * sizeof *call->in_bufs);
    if (block == NULL) {
        fail(call, NPC_ERR_MEMORY, "no memory for a call");
        return;
    }
    call->in = (TF_Tensor **)block;
    call->out = call->in + room;
    call->in_bufs = (npc_buf *)(call->out + room);
    call->out_bufs = call->in_bufs + room;
    for (int i = 0; i < count && !failed(call); i++) {
        npt_tf.GetInput(call->context, i, &call->in[i], call->status);
        if (!failed(call))
            call->n_in = i + 1;
    }
}

/* describe_one fills in the description of a call on one tensor: dtype and shape as the user sees them. */
static void describe_one(struct call *call)
{
    const TF_Tensor *tensor = call->in[0];
    int n_dims = npt_tf.NumDims(tensor);
    call->desc.dtype = npc_dtype_of(npt_tf.TensorType(tensor));
    call->in_bufs[0] = (npc_buf){npt_tf.TensorData(tensor), elements(tensor)};
    call->desc.n_in = 1;
    for (int i = 0; i < n_dims; i++) {
        int64_t dim = npt_tf.Dim(tensor, i);
        if (i < NPC_MAX_DIMS)
            call->shape[i] = dim;
        else
            call->shape[NPC_MAX_DIMS - 1] *= dim; /* TensorFlow allows more dimensions; the last ones count as one */
        if (i >= NPC_MAX_DIMS - 1)
            call->desc.detail = npt_mix(call->desc.detail, (uint64_t)dim);
    }
    call->desc.ndim = n_dims < NPC_MAX_DIMS ? n_dims : NPC_MAX_DIMS;
}

/* describe_fused describes a call on several tensors: their concatenation, with every dtype and shape in the detail. */
static void describe_fused(struct call *call, bool bytes)
{
    call->desc.dtype = bytes ? NPC_UINT8 : npc_dtype_of(npt_tf.TensorType(call->in[0]));
    call->desc.n_in = call->n_in;
    call->desc.ndim = 1;
    for (int i = 0; i < call->n_in; i++) {
        const TF_Tensor *tensor = call->in[i];
        int n_dims = npt_tf.NumDims(tensor), dtype = npt_tf.TensorType(tensor);
        uint64_t hash = npt_mix(call->desc.detail, (uint64_t)dtype << 32 | (uint32_t)n_dims);
        for (int d = 0; d < n_dims; d++)
            hash = npt_mix(hash, (uint64_t)npt_tf.Dim(tensor, d));
        call->desc.detail = hash;
        int64_t count = bytes ? (int64_t)npt_tf.TensorByteSize(tensor) : elements(tensor);
        call->in_bufs[i] = (npc_buf){npt_tf.TensorData(tensor), count};
        call->shape[0] += count;
    }
}

/* reuse_input tries to make input `index` also the output, which saves the memory and touching it for the first time. It is
 * possible where nobody else holds the tensor, us included, so our hold on it is given up for the moment. */
static TF_Tensor *reuse_input(struct call *call, int index)
{
    int64_t dims[MAX_DIMS];
    int n_dims = npt_tf.NumDims(call->in[index]), reused = -1;
    for (int i = 0; i < n_dims; i++)
        dims[i] = npt_tf.Dim(call->in[index], i);
    npt_tf.DeleteTensor(call->in[index]);
    call->in[index] = NULL;
    TF_Tensor *tensor = npt_tf.ForwardInputOrAllocateOutput(call->context, &index, 1, index, dims, n_dims, &reused,
                                                           call->status);
    if (!failed(call)) {
        npt_tf.GetInput(call->context, index, &call->in[index], call->status);
        keep_output(call, tensor);
    }
    return tensor;
}

/* make_outputs provides an output for each input, of the same shape. */
static void make_outputs(struct call *call)
{
    int count = npt_tf.NumInputs(call->context);
    bool may_reuse = call->kernel->kind == NPC_ALLREDUCE && npt_tf.ForwardInputOrAllocateOutput != NULL;
    for (int i = 0; i < count && !failed(call); i++) {
        TF_Tensor *tensor;
        if (may_reuse && npt_tf.TensorByteSize(call->in[i]) >= WORTH_REUSING) {
            tensor = reuse_input(call, i);
        } else {
            tensor = output(call, i, call->in[i], -1);
            if (!failed(call))
                keep_output(call, tensor);
        }
        if (!failed(call))
            call->out_bufs[i] = (npc_buf){npt_tf.TensorData(tensor), call->in_bufs[i].count};
    }
    call->desc.n_out = count;
}

/* pass_inputs makes every output its input: the root of a broadcast has what it sends. */
static void pass_inputs(struct call *call)
{
    for (int i = 0; i < call->n_in && !failed(call); i++)
        npt_tf.SetOutput(call->context, i, call->in[i], call->status);
}

static void clear_outputs(struct call *call)
{
    for (int i = 0; i < call->n_out; i++)
        if (npt_tf.TensorByteSize(call->out[i]) != 0)
            memset(npt_tf.TensorData(call->out[i]), 0, npt_tf.TensorByteSize(call->out[i]));
}

static void describe_reduce_scatter(struct call *call)
{
    describe_one(call);
    int64_t size = call->api->comm_size(call->comm);
    if (call->desc.ndim == 0 || call->shape[0] % size != 0) {
        char text[160];
        snprintf(text, sizeof text, "reduce_scatter needs a first dimension that %lld ranks can share evenly; found %lld",
                 (long long)size, call->desc.ndim == 0 ? 0LL : (long long)call->shape[0]);
        fail(call, NPC_ERR_ARGUMENT, text);
        return;
    }
    TF_Tensor *tensor = output(call, 0, call->in[0], call->shape[0] / size);
    if (failed(call))
        return;
    keep_output(call, tensor);
    call->out_bufs[0] = (npc_buf){npt_tf.TensorData(tensor), call->in_bufs[0].count / size};
    call->desc.n_out = 1;
}

static void describe_alltoall(struct call *call)
{
    describe_one(call);
    int64_t given = elements(call->in[1]);
    int size = call->api->comm_size(call->comm);
    if (given != 0 && given != size) {
        char text[120];
        snprintf(text, sizeof text, "alltoall's splits have one entry for each of %d ranks; found %lld", size,
                 (long long)given);
        fail(call, NPC_ERR_ARGUMENT, text);
        return;
    }
    call->desc.splits = given != 0 ? npt_tf.TensorData(call->in[1]) : NULL;
    call->desc.alloc = allocate;
    call->desc.alloc_user = call;
}

static void describe(struct call *call)
{
    const struct npt_kernel *kernel = call->kernel;
    npc_desc *desc = &call->desc;
    desc->size = sizeof *desc;
    desc->kind = kernel->kind;
    desc->op = kernel->kind == NPC_ALLREDUCE || kernel->kind == NPC_REDUCE || kernel->kind == NPC_REDUCE_SCATTER
                   ? kernel->reduction
                   : 0;
    desc->root = kernel->root;
    desc->key = call->match.key;
    desc->detail = kernel->detail != 0 ? npt_mix(call->match.detail, kernel->detail) : call->match.detail;
    desc->name = call->match.name;
    desc->prescale = kernel->prescale;
    desc->postscale = kernel->postscale;
    desc->in = call->in_bufs;
    desc->out = call->out_bufs;
    desc->shape = call->shape;
    bool is_root = call->api->comm_rank(call->comm) == kernel->root;
    switch (kernel->kind) {
    case NPC_ALLREDUCE:
    case NPC_REDUCE:
        if (call->n_in == 1)
            describe_one(call);
        else
            describe_fused(call, false);
        make_outputs(call);
        if (kernel->kind == NPC_REDUCE && !is_root) {
            clear_outputs(call);
            desc->n_out = 0;
        }
        break;
    case NPC_BROADCAST:
        if (call->n_in == 1 && npc_dtype_of(npt_tf.TensorType(call->in[0])) != 0)
            describe_one(call);
        else
            describe_fused(call, true);
        if (is_root)
            pass_inputs(call);
        else
            make_outputs(call);
        break;
    case NPC_ALLGATHER:
        describe_one(call);
        desc->alloc = allocate;
        desc->alloc_user = call;
        break;
    case NPC_REDUCE_SCATTER:
        describe_reduce_scatter(call);
        break;
    default:
        describe_alltoall(call);
        break;
    }
    if (!failed(call) && desc->dtype == 0)
        fail(call, NPC_ERR_UNSUPPORTED, "this dtype cannot be sent");
}

/* connect finds the engine and the communicator. */
static void connect(struct call *call)
{
    call->api = atomic_load_explicit(&engine, memory_order_acquire);
    if (call->api == NULL) {
        fail(call, NPC_ERR_UNSUPPORTED,
             "graph collectives need npucoll's native engine, which this process does not have");
        return;
    }
    call->comm = call->api->comm_acquire(call->kernel->comm);
    if (call->comm == NULL)
        fail(call, NPC_ERR_CLOSED,
             call->kernel->comm == 0 ? "npucoll is not initialized, or was shut down; call npucoll.init()"
                                     : "this group does not exist, or was closed with the communicator it came from");
}

static void on_done(void *user, int status, const char *text)
{
    struct call *call = user;
    atomic_fetch_sub_explicit(&pending, 1, memory_order_relaxed);
    if (status != NPC_OK && !failed(call))
        fail(call, status, text);
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
static void start(struct call *call)
{
    npc_error error = {{0}};
    int status;
    atomic_fetch_add_explicit(&pending, 1, memory_order_relaxed);
    if (call->kernel->blocking) {
        status = call->api->run(call->comm, &call->desc, &error);
        on_done(call, status, error.text);
        return;
    }
    status = call->api->submit(call->comm, &call->desc, on_done, call, &error);
    if (status != NPC_OK)
        on_done(call, status, error.text);
}

/* wait_inside keeps the compute function until the call is complete. Two that wait at once can keep TensorFlow's threads
 * from the very call that another rank waits for, so the second is refused in words. */
static void wait_inside(struct call *call)
{
    if (!call->kernel->blocking && atomic_fetch_add(&waiting, 1) > 0) {
        fail(call, NPC_ERR_UNSUPPORTED,
             "in this TensorFlow a graph can run one collective at a time; use one grouped call, or control dependencies");
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
    struct call *call = calloc(1, sizeof *call);
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
    if (!failed(call))
        take_inputs(call);
    if (!failed(call))
        describe(call);
    if (failed(call)) {
        finish(call);
    } else if (call->waits) {
        wait_inside(call);
        finish(call);
    } else {
        start(call);
    }
}
