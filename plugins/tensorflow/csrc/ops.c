/* Defines the operators: their inputs, outputs, attributes and shapes. */
#include "kernel.h"

#include <stddef.h>

/* TensorFlow 1.15's C API reads only 32-bit integers and types from a node, so what has 64 bits comes in halves. */
static const char *const COMMON[] = {
    "key_high: int = 0",      "key_low: int = 0",      "slot: int = 0",
    "comm_high: int = 0",     "comm_low: int = 0",     "detail_high: int = 0",
    "detail_low: int = 0",    "reduction: int = 1",    "root: int = 0",
    "prescale_high: int = 0", "prescale_low: int = 0", "postscale_high: int = 0",
    "postscale_low: int = 0", "blocking: int = 0",     NULL,
};

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

const struct npt_op npt_ops[NPT_OPS] = {
    {"NpucollAllreduce", NPC_ALLREDUCE, LIST("N: int >= 1", "T: type"), LIST("inputs: N * T"),
     LIST("outputs: N * T"), true},
    {"NpucollBroadcast", NPC_BROADCAST, LIST("T: list(type) >= 1"), LIST("inputs: T"), LIST("outputs: T"), true},
    {"NpucollAllgather", NPC_ALLGATHER, LIST("T: type"), LIST("input: T"),
     LIST("output: T", "counts: int64", "rank: int32"), false},
    {"NpucollReduce", NPC_REDUCE, LIST("N: int >= 1", "T: type"), LIST("inputs: N * T"), LIST("outputs: N * T"), true},
    {"NpucollReduceScatter", NPC_REDUCE_SCATTER, LIST("T: type"), LIST("input: T"), LIST("output: T"), false},
    {"NpucollAlltoall", NPC_ALLTOALL, LIST("T: type"), LIST("input: T", "splits: int64"),
     LIST("output: T", "counts: int64"), false},
};

static void shapes_of_inputs(TF_ShapeInferenceContext *context, TF_Status *status)
{
    TF_ShapeHandle *shape = npt_tf.NewShapeHandle();
    int count = (int)npt_tf.ShapeInferenceContextNumInputs(context);
    npt_tf.ShapeInferenceContextSetUnknownShape(context, status);
    for (int i = 0; i < count && npt_tf.GetCode(status) == TF_OK; i++) {
        npt_tf.ShapeInferenceContextGetInput(context, i, shape, status);
        if (npt_tf.GetCode(status) == TF_OK)
            npt_tf.ShapeInferenceContextSetOutput(context, i, shape, status);
    }
    /* TensorFlow 1.15 gives us only the first input's shape; Python sets what is missing (ops.py). */
    npt_tf.SetStatus(status, TF_OK, "");
    npt_tf.DeleteShapeHandle(shape);
}

/* The other operators' result shapes depend on how many ranks there are; Python sets what is known of them. */
static void unknown_shapes(TF_ShapeInferenceContext *context, TF_Status *status)
{
    npt_tf.ShapeInferenceContextSetUnknownShape(context, status);
}

void npt_op_define(const struct npt_op *op, TF_Status *status)
{
    TF_OpDefinitionBuilder *builder = npt_tf.NewOpDefinitionBuilder(op->name);
    for (const char *const *at = op->inputs; *at != NULL; at++)
        npt_tf.OpDefinitionBuilderAddInput(builder, *at);
    for (const char *const *at = op->outputs; *at != NULL; at++)
        npt_tf.OpDefinitionBuilderAddOutput(builder, *at);
    for (const char *const *at = op->attributes; *at != NULL; at++)
        npt_tf.OpDefinitionBuilderAddAttr(builder, *at);
    for (const char *const *at = COMMON; *at != NULL; at++)
        npt_tf.OpDefinitionBuilderAddAttr(builder, *at);
    /* Stateful: neither folded, nor merged with its like, nor pruned while something that runs needs it. */
    npt_tf.OpDefinitionBuilderSetIsStateful(builder, true);
    npt_tf.OpDefinitionBuilderSetShapeInferenceFunction(builder, op->same_shapes ? shapes_of_inputs : unknown_shapes);
    npt_tf.RegisterOpDefinition(builder, status);
}
