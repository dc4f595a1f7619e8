/* tf.h: the part of TensorFlow's C API that we use, declared by ourselves and looked up when the library is loaded.
 *
 * One binary serves TensorFlow 1.15 and every 2.x because it links nothing of TensorFlow: a symbol that a version lacks
 * is NULL in the table, and whoever needs it looks first. */
#ifndef NPT_TF_H
#define NPT_TF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;

/* The numbers of TF_Code and TF_DataType, which TensorFlow never changes. */
enum {
    TF_OK = 0,
    TF_CANCELLED = 1,
    TF_INVALID_ARGUMENT = 3,
    TF_DEADLINE_EXCEEDED = 4,
    TF_RESOURCE_EXHAUSTED = 8,
    TF_FAILED_PRECONDITION = 9,
    TF_UNIMPLEMENTED = 12,
    TF_INTERNAL = 13
};
enum {
    TF_FLOAT = 1,
    TF_DOUBLE = 2,
    TF_INT32 = 3,
    TF_UINT8 = 4,
    TF_INT16 = 5,
    TF_INT8 = 6,
    TF_STRING = 7,
    TF_COMPLEX64 = 8,
    TF_INT64 = 9,
    TF_BOOL = 10,
    TF_BFLOAT16 = 14,
    TF_UINT16 = 17,
    TF_COMPLEX128 = 18,
    TF_HALF = 19,
    TF_RESOURCE = 20,
    TF_VARIANT = 21,
    TF_UINT32 = 22,
    TF_UINT64 = 23
};

typedef void *npt_create_fn(TF_OpKernelConstruction *construction);
typedef void npt_compute_fn(void *kernel, TF_OpKernelContext *context);
typedef void npt_compute_async_fn(void *kernel, TF_OpKernelContext *context, TF_AsyncOpKernelDoneCallback *done);
typedef void npt_delete_fn(void *kernel);

/* NPT_TF_SYMBOLS lists result, name and arguments of each function; the second list may be absent. */
#define NPT_TF_SYMBOLS(X)                                                                                              \
    X(TF_Status *, NewStatus, (void))                                                                                  \
    X(void, DeleteStatus, (TF_Status *))                                                                               \
    X(void, SetStatus, (TF_Status *, int code, const char *message))                                                   \
    X(int, GetCode, (const TF_Status *))                                                                               \
    X(const char *, Message, (const TF_Status *))                                                                      \
    X(void, DeleteTensor, (TF_Tensor *))                                                                               \
    X(int, TensorType, (const TF_Tensor *))                                                                            \
    X(int, NumDims, (const TF_Tensor *))                                                                               \
    X(int64_t, Dim, (const TF_Tensor *, int))                                                                          \
    X(size_t, TensorByteSize, (const TF_Tensor *))                                                                     \
    X(void *, TensorData, (const TF_Tensor *))                                                                         \
    X(size_t, DataTypeSize, (int))                                                                                     \
    X(TF_OpDefinitionBuilder *, NewOpDefinitionBuilder, (const char *))                                                \
    X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder *, TF_Status *))                                             \
    X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder *, const char *))                                      \
    X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder *, const char *))                                     \
    X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder *, const char *))                                    \
    X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder *, bool))                                        \
    X(void, OpDefinitionBuilderSetShapeInferenceFunction,                                                              \
      (TF_OpDefinitionBuilder *, void (*)(TF_ShapeInferenceContext *, TF_Status *)))                                   \
    X(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext *))                                           \
    X(TF_ShapeHandle *, NewShapeHandle, (void))                                                                        \
    X(void, DeleteShapeHandle, (TF_ShapeHandle *))                                                                     \
    X(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext *, int, TF_ShapeHandle *, TF_Status *))           \
    X(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext *, int, TF_ShapeHandle *, TF_Status *))          \
    X(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext *, TF_Status *))                           \
    X(TF_KernelBuilder *, NewKernelBuilder,                                                                            \
      (const char *op, const char *device, npt_create_fn *, npt_compute_fn *, npt_delete_fn *))                        \
    X(void, RegisterKernelBuilder, (const char *name, TF_KernelBuilder *, TF_Status *))                                \
    X(void, OpKernelConstruction_GetAttrInt32, (TF_OpKernelConstruction *, const char *, int32_t *, TF_Status *))      \
    X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction *, TF_Status *))                                    \
    X(int, NumInputs, (TF_OpKernelContext *))                                                                          \
    X(void, GetInput, (TF_OpKernelContext *, int, TF_Tensor **, TF_Status *))                                          \
    X(void, SetOutput, (TF_OpKernelContext *, int, const TF_Tensor *, TF_Status *))                                    \
    X(TF_Tensor *, AllocateOutput,                                                                                     \
      (TF_OpKernelContext *, int index, int dtype, const int64_t *dims, int n_dims, size_t bytes, TF_Status *))        \
    X(void, OpKernelContext_Failure, (TF_OpKernelContext *, TF_Status *))

#define NPT_TF_OPTIONAL(X)                                                                                             \
    X(TF_KernelBuilder *, NewAsyncKernelBuilder,                                                                       \
      (const char *op, const char *device, npt_create_fn *, npt_compute_async_fn *, npt_delete_fn *))                  \
    X(void, RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback *))                                            \
    X(TF_Tensor *, ForwardInputOrAllocateOutput,                                                                       \
      (TF_OpKernelContext *, const int *candidates, int n_candidates, int index, const int64_t *dims, int n_dims,      \
       int *forwarded, TF_Status *))                                                                                   \
    X(int64_t, GetIterId, (TF_OpKernelContext *))

#define NPT_TF_FIELD(result, name, arguments) result(*name) arguments;
struct npt_tf {
    NPT_TF_SYMBOLS(NPT_TF_FIELD)
    NPT_TF_OPTIONAL(NPT_TF_FIELD)
};
#undef NPT_TF_FIELD

/* npt_tf is filled once, by npt_tf_load, before anything of TensorFlow can call us. */
extern struct npt_tf npt_tf;

/* npt_tf_load fills npt_tf. It returns NULL, or the name of a function that this process's TensorFlow lacks. */
const char *npt_tf_load(void);

/* npt_tf_symbol returns the address of any symbol of the TensorFlow that is loaded in this process, or NULL. */
void *npt_tf_symbol(const char *name);

#endif
