/* kernel.h: one node of a graph, as TensorFlow creates it, and the ways to register such kernels. */
#ifndef NPT_KERNEL_H
#define NPT_KERNEL_H

#include "done.h"
#include "npucoll.h"
#include "tf.h"

/* npt_kernel holds what a node's attributes say. */
struct npt_kernel {
    int kind; /* npc_kind */
    int reduction;
    int root;
    int32_t slot; /* of plan.h, or 0 */
    bool blocking;
    uint64_t key; /* 0 and no slot: the communicator's next call number */
    uint64_t comm;
    uint64_t detail;
    double prescale, postscale;
};

/* npt_op is one operator: its name in graphs and what its kernels do. */
struct npt_op {
    const char *name;
    int kind;
    const char *const *attributes; /* besides the ones that all have; NULL ends the lists */
    const char *const *inputs;
    const char *const *outputs;
    bool same_shapes; /* output i has the shape of input i */
};

enum { NPT_OPS = 6 };
extern const struct npt_op npt_ops[NPT_OPS];

/* npt_op_define registers the operator. On failure it sets `status`. */
void npt_op_define(const struct npt_op *op, TF_Status *status);

/* npt_kernel_new reads a node's attributes; NULL, with the construction failed, where that goes wrong. */
struct npt_kernel *npt_kernel_new(const struct npt_op *op, TF_OpKernelConstruction *construction);

/* npt_compute performs one call. Where `done` is not NULL it may return before the call is complete, and runs `done`
 * when it is, from any thread; where it is NULL it returns when the call is complete. */
void npt_compute(const struct npt_kernel *kernel, TF_OpKernelContext *context, struct npt_done *done);

/* npt_bind tells where the engine is. NULL takes it away. */
void npt_bind(const npc_api *api);

/* npt_mark sets a mark in time; npt_pending_before_mark returns how many calls that started before the last one are not
 * complete. */
void npt_mark(void);
int npt_pending_before_mark(void);

enum npt_mode {
    NPT_MODE_NONE = 0,       /* nothing is registered */
    NPT_MODE_C_API = 1,      /* asynchronous, through the C API */
    NPT_MODE_HAND_MADE = 2,  /* asynchronous, built on the C++ class of TensorFlow 1.15 */
    NPT_MODE_BLOCKING = 3    /* kernels wait; one at a time */
};

/* npt_kernels_register registers the kernels of all operators in the best way that this TensorFlow has. On failure it
 * sets `status` and returns NPT_MODE_NONE. */
enum npt_mode npt_kernels_register(TF_Status *status);

/* npt_hand_made_register registers kernels made from TensorFlow 1.15's AsyncOpKernel; false in other versions. */
bool npt_hand_made_register(TF_Status *status);

#endif
