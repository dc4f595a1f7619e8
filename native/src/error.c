/* error.c: the texts of errors, and the names of the numbers in the public header. */
#include "npci_comm.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

void npci_append(char *text, size_t room, const char *format, ...) {
    size_t used = strnlen(text, room);
    if (used >= room)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, room - used, format, arguments);
    va_end(arguments);
}

int npci_fail(npc_error *error, int status, const char *format, ...) {
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return status;
}

/* The GNU strerror_r returns the text, which may or may not be in the buffer; others fill the buffer. */
static inline const char *npci_words_returned(const char *words, const char *buffer) {
    (void)buffer;
    return words;
}

static inline const char *npci_words_filled(int code, const char *buffer) {
    return code == 0 ? buffer : "unknown error";
}

#define NPCI_WORDS(result, buffer)                                                                                    \
    _Generic((result), int: npci_words_filled, default: npci_words_returned)(result, buffer)

int npci_fail_errno(npc_error *error, const char *doing, int code) {
    char buffer[128];
    const char *words = NPCI_WORDS(strerror_r(code, buffer, sizeof buffer), buffer);
    int status = code == ENOMEM || code == ENOSPC ? NPC_ERR_MEMORY : NPC_ERR_SYSTEM;
    return npci_fail(error, status, "%s failed: %s (errno %d)", doing, words, code);
}

const char *npc_status_text(int status) {
    switch ((npc_status)status) {
    case NPC_OK: return "success";
    case NPC_ERR_ARGUMENT: return "the call is wrong on this rank";
    case NPC_ERR_MISMATCH: return "the ranks disagree about the call";
    case NPC_ERR_TIMEOUT: return "the deadline passed";
    case NPC_ERR_PEER_LOST: return "a rank is gone";
    case NPC_ERR_CLOSED: return "the communicator is closed";
    case NPC_ERR_FORKED: return "called in a forked child of the rank";
    case NPC_ERR_BUSY: return "another thread is making a numbered call";
    case NPC_ERR_LIMIT: return "a table of the engine is full";
    case NPC_ERR_MEMORY: return "out of memory";
    case NPC_ERR_UNSUPPORTED: return "this dtype cannot be used with this operation";
    case NPC_ERR_INTERRUPTED: return "interrupted";
    case NPC_ERR_SYSTEM: return "a system call failed";
    }
    return "unknown status";
}

const char *npc_kind_name(int kind) {
    switch ((npc_kind)kind) {
    case NPC_BARRIER: return "barrier";
    case NPC_ALLREDUCE: return "allreduce";
    case NPC_BROADCAST: return "broadcast";
    case NPC_ALLGATHER: return "allgather";
    case NPC_REDUCE_SCATTER: return "reduce_scatter";
    case NPC_ALLTOALL: return "alltoall";
    case NPC_REDUCE: return "reduce";
    case NPC_GATHER: return "gather";
    case NPC_SCATTER: return "scatter";
    case NPC_SEND: return "send";
    case NPC_RECV: return "recv";
    }
    return "unknown kind";
}

const char *npc_op_name(int op) {
    switch ((npc_op)op) {
    case NPC_SUM: return "sum";
    case NPC_MEAN: return "mean";
    case NPC_MIN: return "min";
    case NPC_MAX: return "max";
    case NPC_PROD: return "prod";
    }
    return "unknown reduction";
}

const char *npc_dtype_name(int dtype) {
    switch ((npc_dtype)dtype) {
    case NPC_BOOL: return "bool";
    case NPC_INT8: return "int8";
    case NPC_UINT8: return "uint8";
    case NPC_INT16: return "int16";
    case NPC_UINT16: return "uint16";
    case NPC_INT32: return "int32";
    case NPC_UINT32: return "uint32";
    case NPC_INT64: return "int64";
    case NPC_UINT64: return "uint64";
    case NPC_FLOAT16: return "float16";
    case NPC_BFLOAT16: return "bfloat16";
    case NPC_FLOAT32: return "float32";
    case NPC_FLOAT64: return "float64";
    case NPC_COMPLEX64: return "complex64";
    case NPC_COMPLEX128: return "complex128";
    }
    return "unknown dtype";
}

size_t npc_dtype_size(int dtype) {
    switch ((npc_dtype)dtype) {
    case NPC_BOOL:
    case NPC_INT8:
    case NPC_UINT8: return 1;
    case NPC_INT16:
    case NPC_UINT16:
    case NPC_FLOAT16:
    case NPC_BFLOAT16: return 2;
    case NPC_INT32:
    case NPC_UINT32:
    case NPC_FLOAT32: return 4;
    case NPC_INT64:
    case NPC_UINT64:
    case NPC_FLOAT64:
    case NPC_COMPLEX64: return 8;
    case NPC_COMPLEX128: return 16;
    }
    return 0;
}

int npc_reduce_check(int dtype, int op, int scaled, npc_error *error) {
    if (npc_dtype_size(dtype) == 0)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%d is not the number of a dtype", dtype);
    if (op < NPC_SUM || op > NPC_PROD)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%d is not the number of a reduction", op);
    if (dtype == NPC_BOOL && (op == NPC_SUM || op == NPC_MEAN))
        return npci_fail(error, NPC_ERR_UNSUPPORTED,
                         "the %s of bool values is not defined; use min (and) or max (or), or convert to an integer",
                         npc_op_name(op));
    if ((dtype == NPC_COMPLEX64 || dtype == NPC_COMPLEX128) && (op == NPC_MIN || op == NPC_MAX))
        return npci_fail(error, NPC_ERR_UNSUPPORTED, "%s values have no order, so their %s is not defined",
                         npc_dtype_name(dtype), npc_op_name(op));
    if (scaled && dtype < NPC_FLOAT16)
        return npci_fail(error, NPC_ERR_UNSUPPORTED,
                         "prescale and postscale are for float and complex values, not for %s", npc_dtype_name(dtype));
    return NPC_OK;
}
