/* Describes a call to the engine: its buffers, dtype and shape, and what else must be equal on all ranks. */
#include "call.h"

#include <stdio.h>

static int dtype_of(int dtype)
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

int64_t npt_elements(const TF_Tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < npt_tf.NumDims(tensor); i++)
        count *= npt_tf.Dim(tensor, i);
    return count;
}

/* describe_one fills in the description of a call on one tensor: dtype and shape as the user sees them. */
static void describe_one(struct npt_call *call)
{
    const TF_Tensor *tensor = call->in[0];
    int n_dims = npt_tf.NumDims(tensor);
    call->desc.dtype = dtype_of(npt_tf.TensorType(tensor));
    call->in_bufs[0] = (npc_buf){npt_tf.TensorData(tensor), npt_elements(tensor)};
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
static void describe_fused(struct npt_call *call, bool bytes)
{
    call->desc.dtype = bytes ? NPC_UINT8 : dtype_of(npt_tf.TensorType(call->in[0]));
    call->desc.n_in = call->n_in;
    call->desc.ndim = 1;
    for (int i = 0; i < call->n_in; i++) {
        const TF_Tensor *tensor = call->in[i];
        int n_dims = npt_tf.NumDims(tensor), dtype = npt_tf.TensorType(tensor);
        uint64_t hash = npt_mix(call->desc.detail, (uint64_t)dtype << 32 | (uint32_t)n_dims);
        for (int d = 0; d < n_dims; d++)
            hash = npt_mix(hash, (uint64_t)npt_tf.Dim(tensor, d));
        call->desc.detail = hash;
        int64_t count = bytes ? (int64_t)npt_tf.TensorByteSize(tensor) : npt_elements(tensor);
        call->in_bufs[i] = (npc_buf){npt_tf.TensorData(tensor), count};
        call->shape[0] += count;
    }
}

static void describe_reduce_scatter(struct npt_call *call)
{
    describe_one(call);
    int64_t size = call->api->comm_size(call->comm);
    if (call->desc.ndim == 0 || call->shape[0] % size != 0) {
        char text[160];
        snprintf(text, sizeof text,
                 "reduce_scatter needs a first dimension that %lld ranks can share evenly; found %lld", (long long)size,
                 call->desc.ndim == 0 ? 0LL : (long long)call->shape[0]);
        npt_fail(call, NPC_ERR_ARGUMENT, text);
        return;
    }
    TF_Tensor *tensor = npt_output(call, 0, call->in[0], call->shape[0] / size);
    if (npt_failed(call))
        return;
    npt_keep_output(call, tensor);
    call->out_bufs[0] = (npc_buf){npt_tf.TensorData(tensor), call->in_bufs[0].count / size};
    call->desc.n_out = 1;
}

static void describe_alltoall(struct npt_call *call)
{
    describe_one(call);
    int64_t given = npt_elements(call->in[1]);
    int size = call->api->comm_size(call->comm);
    if (given != 0 && given != size) {
        char text[120];
        snprintf(text, sizeof text, "alltoall's splits have one entry for each of %d ranks; found %lld", size,
                 (long long)given);
        npt_fail(call, NPC_ERR_ARGUMENT, text);
        return;
    }
    call->desc.splits = given != 0 ? npt_tf.TensorData(call->in[1]) : NULL;
    call->desc.alloc = npt_allocate;
    call->desc.alloc_user = call;
}

void npt_describe(struct npt_call *call)
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
        npt_make_outputs(call);
        if (kernel->kind == NPC_REDUCE && !is_root) {
            npt_clear_outputs(call);
            desc->n_out = 0;
        }
        break;
    case NPC_BROADCAST:
        if (call->n_in == 1 && dtype_of(npt_tf.TensorType(call->in[0])) != 0)
            describe_one(call);
        else
            describe_fused(call, true);
        if (is_root)
            npt_pass_inputs(call);
        else
            npt_make_outputs(call);
        break;
    case NPC_ALLGATHER:
        describe_one(call);
        desc->alloc = npt_allocate;
        desc->alloc_user = call;
        break;
    case NPC_REDUCE_SCATTER:
        describe_reduce_scatter(call);
        break;
    default:
        describe_alltoall(call);
        break;
    }
    if (!npt_failed(call) && desc->dtype == 0)
        npt_fail(call, NPC_ERR_UNSUPPORTED, "this dtype cannot be sent");
}
