/* Reads a node's attributes, and registers the kernels through TensorFlow's C API. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

static uint32_t attribute(TF_OpKernelConstruction *construction, const char *name, TF_Status *status)
{
    int32_t value = 0;
    if (npt_tf.GetCode(status) == TF_OK)
        npt_tf.OpKernelConstruction_GetAttrInt32(construction, name, &value, status);
    return (uint32_t)value;
}

static uint64_t halves(TF_OpKernelConstruction *construction, const char *high, const char *low, TF_Status *status)
{
    return (uint64_t)attribute(construction, high, status) << 32 | attribute(construction, low, status);
}

static double as_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

struct npt_kernel *npt_kernel_new(const struct npt_op *op, TF_OpKernelConstruction *construction)
{
    struct npt_kernel *kernel = calloc(1, sizeof *kernel);
    TF_Status *status = npt_tf.NewStatus();
    if (kernel != NULL) {
        kernel->kind = op->kind;
        kernel->reduction = (int)attribute(construction, "reduction", status);
        kernel->root = (int)attribute(construction, "root", status);
        kernel->slot = (int32_t)attribute(construction, "slot", status);
        kernel->blocking = attribute(construction, "blocking", status) != 0;
        kernel->key = halves(construction, "key_high", "key_low", status);
        kernel->comm = halves(construction, "comm_high", "comm_low", status);
        kernel->detail = halves(construction, "detail_high", "detail_low", status);
        kernel->prescale = as_double(halves(construction, "prescale_high", "prescale_low", status));
        kernel->postscale = as_double(halves(construction, "postscale_high", "postscale_low", status));
    } else {
        npt_tf.SetStatus(status, TF_RESOURCE_EXHAUSTED, "npucoll: no memory for a kernel");
    }
    if (npt_tf.GetCode(status) != TF_OK) {
        npt_tf.OpKernelConstruction_Failure(construction, status);
        free(kernel);
        kernel = NULL;
    }
    npt_tf.DeleteStatus(status);
    return kernel;
}

/* TensorFlow's create functions get nothing that says which operator they create, so each has its own. */
#define CREATE(i)                                                                                                      \
    static void *create_##i(TF_OpKernelConstruction *construction)                                                     \
    {                                                                                                                  \
        return npt_kernel_new(&npt_ops[i], construction);                                                              \
    }
CREATE(0)
CREATE(1)
CREATE(2)
CREATE(3)
CREATE(4)
CREATE(5)
static npt_create_fn *const CREATORS[NPT_OPS] = {create_0, create_1, create_2, create_3, create_4, create_5};

static void compute(void *kernel, TF_OpKernelContext *context)
{
    if (kernel != NULL)
        npt_compute(kernel, context, NULL);
}

static void compute_async(void *kernel, TF_OpKernelContext *context, TF_AsyncOpKernelDoneCallback *done)
{
    struct npt_done taken;
    if (kernel != NULL && npt_done_take(&taken, done)) {
        npt_compute(kernel, context, &taken);
        return;
    }
    compute(kernel, context);
    npt_tf.RunAsyncOpKernelDoneCallback(done);
}

static void delete(void *kernel)
{
    free(kernel);
}

enum npt_mode npt_kernels_register(TF_Status *status)
{
    if (npt_hand_made_register(status))
        return npt_tf.GetCode(status) == TF_OK ? NPT_MODE_HAND_MADE : NPT_MODE_NONE;
    bool async = npt_tf.NewAsyncKernelBuilder != NULL && npt_tf.RunAsyncOpKernelDoneCallback != NULL;
    for (int i = 0; i < NPT_OPS && npt_tf.GetCode(status) == TF_OK; i++) {
        TF_KernelBuilder *builder =
            async ? npt_tf.NewAsyncKernelBuilder(npt_ops[i].name, "CPU", CREATORS[i], compute_async, delete)
                  : npt_tf.NewKernelBuilder(npt_ops[i].name, "CPU", CREATORS[i], compute, delete);
        npt_tf.RegisterKernelBuilder(npt_ops[i].name, builder, status);
    }
    if (npt_tf.GetCode(status) != TF_OK)
        return NPT_MODE_NONE;
    return async ? NPT_MODE_C_API : NPT_MODE_BLOCKING;
}
