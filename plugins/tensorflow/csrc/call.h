/* call.h: one execution of a node, shared by the files that take it from TensorFlow to the engine and back. */
#ifndef NPT_CALL_H
#define NPT_CALL_H

#include "kernel.h"
#include "plan.h"

#include <pthread.h>

/* npt_call is one execution of a node; it lives until the engine has completed it and TensorFlow has been told. */
struct npt_call {
    const struct npt_kernel *kernel;
    TF_OpKernelContext *context;
    TF_Status *status;
    const npc_api *api;
    npc_comm *comm;
    npc_desc desc;
    struct npt_match match;
    struct npt_done done;
    unsigned mark;
    int n_in, n_out; /* tensors held */
    TF_Tensor **in, **out;
    npc_buf *in_bufs, *out_bufs;
    int64_t shape[NPC_MAX_DIMS];
    pthread_mutex_t mutex; /* these three only where the kernel waits */
    pthread_cond_t completed;
    bool waits, complete;
};

/* npt_fail gives TensorFlow the engine's words behind a mark that Python finds again (errors.py), on one line. */
void npt_fail(struct npt_call *call, int status, const char *text);
bool npt_failed(const struct npt_call *call);

/* npt_describe fills in the engine's description of the call, and provides the outputs whose size is known. It reads
 * the inputs, the communicator and the match, and fails the call where they do not fit together. */
void npt_describe(struct npt_call *call);

/* npt_elements returns how many numbers a tensor holds. */
int64_t npt_elements(const TF_Tensor *tensor);

/* npt_output allocates output `index` like the tensor `model`, with dimension 0 replaced unless `rows` is negative. The
 * caller passes it to npt_keep_output, unless the call failed. */
TF_Tensor *npt_output(struct npt_call *call, int index, const TF_Tensor *model, int64_t rows);
void npt_keep_output(struct npt_call *call, TF_Tensor *tensor);

/* npt_make_outputs provides an output for each input, of the same shape. */
void npt_make_outputs(struct npt_call *call);
/* npt_pass_inputs makes every output its input: the root of a broadcast has what it sends. */
void npt_pass_inputs(struct npt_call *call);
void npt_clear_outputs(struct npt_call *call);

/* npt_allocate is npc_alloc_fn: the ranks have met, and the result's rows are known. */
void *npt_allocate(void *user, int dtype, int n_dims, const int64_t *shape, const int64_t *counts);

#endif
