/* Provides the memory for a call's results. */
#include "call.h"

#include <string.h>

enum { MAX_DIMS = 256 };          /* TensorFlow allows 254 */
enum { WORTH_REUSING = 1 << 15 }; /* bytes; smaller outputs are cheap to allocate */

TF_Tensor *npt_output(struct npt_call *call, int index, const TF_Tensor *model, int64_t rows)
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
static TF_Tensor *vector(struct npt_call *call, int index, int dtype, int64_t length)
{
    size_t bytes = (size_t)(length < 0 ? 1 : length) * npt_tf.DataTypeSize(dtype);
    return npt_tf.AllocateOutput(call->context, index, dtype, &length, length < 0 ? 0 : 1, bytes, call->status);
}

void npt_keep_output(struct npt_call *call, TF_Tensor *tensor)
{
    if (tensor != NULL)
        call->out[call->n_out++] = tensor;
}

void *npt_allocate(void *user, int dtype, int n_dims, const int64_t *shape, const int64_t *counts)
{
    struct npt_call *call = user;
    int size = call->api->comm_size(call->comm);
    (void)dtype;
    TF_Tensor *result = npt_output(call, 0, call->in[0], n_dims > 0 ? shape[0] : -1);
    if (npt_failed(call))
        return NULL;
    npt_keep_output(call, result);
    TF_Tensor *rows = vector(call, 1, TF_INT64, size);
    if (npt_failed(call))
        return NULL;
    npt_keep_output(call, rows);
    memcpy(npt_tf.TensorData(rows), counts, (size_t)size * sizeof *counts);
    if (call->kernel->kind == NPC_ALLGATHER) {
        TF_Tensor *rank = vector(call, 2, TF_INT32, -1);
        if (npt_failed(call))
            return NULL;
        npt_keep_output(call, rank);
        *(int32_t *)npt_tf.TensorData(rank) = call->api->comm_rank(call->comm);
    }
    void *data = npt_tf.TensorData(result);
    /* NULL would mean failure; an empty tensor has no memory, and nothing is written to it. */
    return data != NULL ? data : call;
}

/* reuse_input tries to make input `index` also the output, which saves the memory and touching it for the first time.
 * It is possible where nobody else holds the tensor, us included, so our hold on it is given up for the moment. */
static TF_Tensor *reuse_input(struct npt_call *call, int index)
{
    int64_t dims[MAX_DIMS];
    int n_dims = npt_tf.NumDims(call->in[index]), reused = -1;
    for (int i = 0; i < n_dims; i++)
        dims[i] = npt_tf.Dim(call->in[index], i);
    npt_tf.DeleteTensor(call->in[index]);
    call->in[index] = NULL;
    TF_Tensor *tensor = npt_tf.ForwardInputOrAllocateOutput(call->context, &index, 1, index, dims, n_dims, &reused,
                                                           call->status);
    if (!npt_failed(call)) {
        npt_tf.GetInput(call->context, index, &call->in[index], call->status);
        npt_keep_output(call, tensor);
    }
    return tensor;
}

void npt_make_outputs(struct npt_call *call)
{
    int count = npt_tf.NumInputs(call->context);
    bool may_reuse = call->kernel->kind == NPC_ALLREDUCE && npt_tf.ForwardInputOrAllocateOutput != NULL;
    for (int i = 0; i < count && !npt_failed(call); i++) {
        TF_Tensor *tensor;
        if (may_reuse && npt_tf.TensorByteSize(call->in[i]) >= WORTH_REUSING) {
            tensor = reuse_input(call, i);
        } else {
            tensor = npt_output(call, i, call->in[i], -1);
            if (!npt_failed(call))
                npt_keep_output(call, tensor);
        }
        if (!npt_failed(call))
            call->out_bufs[i] = (npc_buf){npt_tf.TensorData(tensor), call->in_bufs[i].count};
    }
    call->desc.n_out = count;
}

void npt_pass_inputs(struct npt_call *call)
{
    for (int i = 0; i < call->n_in && !npt_failed(call); i++)
        npt_tf.SetOutput(call->context, i, call->in[i], call->status);
}

void npt_clear_outputs(struct npt_call *call)
{
    for (int i = 0; i < call->n_out; i++)
        if (npt_tf.TensorByteSize(call->out[i]) != 0)
            memset(npt_tf.TensorData(call->out[i]), 0, npt_tf.TensorByteSize(call->out[i]));
}
