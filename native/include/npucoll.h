/* npucoll.h: the one public header of the npucoll engine.
 *
 * The engine runs collectives between the ranks of one host over shared memory. It knows no Python and no
 * framework. Everything public is `npc_`; what is shared between the engine's own files is `npci_`.
 *
 * Every function that can fail returns an npc_status and, where it takes an npc_error, writes one sentence a person
 * can act on. Outputs are set on success only. */
#ifndef NPUCOLL_H
#define NPUCOLL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NPC_API_VERSION 1u
#define NPC_MAX_DIMS 8
#define NPC_ERROR_TEXT 2048

typedef enum npc_status {
    NPC_OK = 0,
    NPC_ERR_ARGUMENT = 1,     /* this rank's call is wrong; nothing was sent */
    NPC_ERR_MISMATCH = 2,     /* ranks disagree about the call; every rank of the communicator gets this */
    NPC_ERR_TIMEOUT = 3,      /* the deadline passed; the communicator has ended */
    NPC_ERR_PEER_LOST = 4,    /* a rank died, left or was interrupted; the communicator has ended */
    NPC_ERR_CLOSED = 5,       /* the communicator was closed by this process */
    NPC_ERR_FORKED = 6,       /* called in a forked child of the rank */
    NPC_ERR_BUSY = 7,         /* two threads made numbered calls at once */
    NPC_ERR_LIMIT = 8,        /* a fixed table of the engine is full */
    NPC_ERR_MEMORY = 9,       /* no memory for the area or for a result */
    NPC_ERR_UNSUPPORTED = 10, /* this dtype cannot be used with this operation */
    NPC_ERR_INTERRUPTED = 11, /* the poll function asked to stop; the communicator has ended */
    NPC_ERR_SYSTEM = 12,      /* a system call failed; the text has errno's words */
} npc_status;

typedef enum npc_kind {
    NPC_BARRIER = 1,
    NPC_ALLREDUCE = 2,
    NPC_BROADCAST = 3,
    NPC_ALLGATHER = 4,
    NPC_REDUCE_SCATTER = 5,
    NPC_ALLTOALL = 6,
    NPC_REDUCE = 7,
    NPC_GATHER = 8,
    NPC_SCATTER = 9,
    NPC_SEND = 10,
    NPC_RECV = 11,
} npc_kind;

typedef enum npc_op { NPC_SUM = 1, NPC_MEAN = 2, NPC_MIN = 3, NPC_MAX = 4, NPC_PROD = 5 } npc_op;

typedef enum npc_dtype {
    NPC_BOOL = 1,
    NPC_INT8 = 2,
    NPC_UINT8 = 3,
    NPC_INT16 = 4,
    NPC_UINT16 = 5,
    NPC_INT32 = 6,
    NPC_UINT32 = 7,
    NPC_INT64 = 8,
    NPC_UINT64 = 9,
    NPC_FLOAT16 = 10,
    NPC_BFLOAT16 = 11,
    NPC_FLOAT32 = 12,
    NPC_FLOAT64 = 13,
    NPC_COMPLEX64 = 14,
    NPC_COMPLEX128 = 15,
} npc_dtype;

typedef struct npc_comm npc_comm;       /* a communicator of this process; reference counted */
typedef struct npc_request npc_request; /* a submitted call that somebody waits for */

typedef struct npc_error {
    char text[NPC_ERROR_TEXT]; /* UTF-8, always terminated; empty on success */
} npc_error;

/* npc_buf is one contiguous piece of an input or output: `count` elements of the call's dtype. */
typedef struct npc_buf {
    void *data;
    int64_t count;
} npc_buf;

/* npc_alloc_fn provides the output of a call whose size is known only once the ranks have met (allgather, gather,
 * alltoall, scatter, recv with out == NULL). `dtype`, `ndim` and `shape` describe the result; `counts[r]`, p of them,
 * is the first dimension that came from rank r (NULL for scatter and recv). It returns memory for the whole result,
 * or NULL, which makes the call fail with NPC_ERR_MEMORY on this rank only, after it has taken part. Called once,
 * from the thread that runs the call. */
typedef void *(*npc_alloc_fn)(void *user, int dtype, int ndim, const int64_t *shape, const int64_t *counts);

/* npc_done_fn is told how a submitted call ended; `text` is "" on success and lives until it returns. Called exactly
 * once, from any thread of this process, perhaps before npc_comm_submit returns. It must not block. */
typedef void (*npc_done_fn)(void *user, int status, const char *text);

/* npc_poll_fn is called about every 50 ms by a thread that waits inside npc_comm_run; non-zero interrupts the call. */
typedef int (*npc_poll_fn)(void);

/* npc_desc describes one call. Zero is a good default for every field but size, kind and dtype.
 * Buffers: the call works on the concatenation of in[0..n_in) and writes the concatenation of out[0..n_out); several
 * buffers (a fused call) are for allreduce, broadcast and reduce; the others take one of each.
 *   allreduce, reduce: in and out hold the same number of elements (reduce: out only on the root).
 *   broadcast: the root reads in; every rank writes out (on the root out may be absent or equal to in).
 *   allgather, gather: in is this rank's part; parts may differ in shape[0]; out is all parts, rank after rank.
 *   reduce_scatter: shape[0] is a multiple of p; out is block `rank` of the reduction.
 *   alltoall: `splits` (p entries of shape[0] that add up to it, or NULL for equal parts) says what goes to whom.
 *   scatter: the root's shape[0] is a multiple of p; other ranks pass n_in == 0, dtype 0 and shape NULL.
 *   send, recv: `root` is the other rank, `tag` must match; recv passes dtype 0 where it does not know.
 * An output may be the very same memory as its input (in place); any other overlap is an error of the caller.
 * Where out is NULL and alloc is set, alloc provides it.
 * allreduce with `shared` (n_in entries, and no out): the engine provides the result, read-only, one buffer for each
 * input, 64-byte aligned; all ranks read the same memory where that pays. Each is given back by npc_memory_release. */
typedef struct npc_desc {
    uint32_t size; /* sizeof(npc_desc) as the caller knows it; later fields read as zero */
    int32_t kind, dtype, op;
    int32_t root, tag;
    uint64_t key;        /* 0: the communicator's next call number; else the name's hash, matched in any order */
    const char *name;    /* shown in messages; may be NULL */
    double prescale;     /* inputs are multiplied by it; 0 means 1 */
    double postscale;    /* the reduction is multiplied by it before the last rounding; 0 means 1 */
    int64_t timeout_ms;  /* 0: the communicator's */
    int32_t n_in, n_out; /* number of buffers */
    const npc_buf *in;
    const npc_buf *out;
    int32_t ndim;         /* shape as the user sees it, for allgather & co. and for messages; */
    const int64_t *shape; /* a fused call passes ndim = 1 and the total count, and the shapes' hash in `detail` */
    uint64_t detail;      /* anything else that must be equal on all ranks; part of the fingerprint */
    const int64_t *splits;
    npc_alloc_fn alloc;
    void *alloc_user;
    npc_buf *shared; /* allreduce without out: where the engine says where the result is; see npc_memory_new */
} npc_desc;

typedef struct npc_options {
    uint32_t size;         /* sizeof(npc_options) as the caller knows it */
    int32_t threads;       /* non-zero: the ranks are threads of one process (test harness): no liveness locks */
    int64_t timeout_ms;    /* of a collective; 0 means 1,800,000 */
    int32_t ranks_on_host; /* ranks sharing this machine's cores, to choose how long to spin; 0 means p */
    npc_poll_fn poll;
} npc_options;

/* npc_area_create makes the anonymous shared memory of one communicator of `size` ranks and returns its descriptor
 * (close-on-exec). Every rank opens it with npc_comm_open; the caller closes its own copy when it has. Never blocks. */
int npc_area_create(int size, int *fd, npc_error *error);

/* npc_comm_open maps the area as rank `rank` and takes a duplicate of fd. `id` names the communicator in this process
 * (0 is the world) for npc_api.comm_acquire; `name` is shown in messages. Never blocks. */
int npc_comm_open(int fd, int rank, int size, uint64_t id, const char *name, const npc_options *options,
                  npc_comm **comm, npc_error *error);

/* npc_comm_close ends this rank's part: peers that wait for it are told that it left; submitted calls complete with
 * NPC_ERR_CLOSED; later calls return NPC_ERR_CLOSED. Waits only for this process's own worker threads. Drops the
 * caller's reference. */
void npc_comm_close(npc_comm *comm);

/* npc_comm_abort ends the communicator on all ranks: they raise NPC_ERR_PEER_LOST with this text, for example the
 * text of an exception that ends this process. Never blocks. */
void npc_comm_abort(npc_comm *comm, const char *text);

int npc_comm_rank(const npc_comm *comm);
int npc_comm_size(const npc_comm *comm);

/* npc_comm_ended returns the status that ended the communicator and its text, or NPC_OK. Never blocks. */
int npc_comm_ended(const npc_comm *comm, npc_error *error);

/* npc_comm_calls returns how many numbered calls this rank has made. */
uint64_t npc_comm_calls(const npc_comm *comm);

/* npc_comm_run performs one call and returns when it is complete on this rank. Blocks; any thread, but numbered calls
 * of one communicator come from one thread at a time (else NPC_ERR_BUSY). */
int npc_comm_run(npc_comm *comm, const npc_desc *desc, npc_error *error);

/* npc_comm_submit starts one call and returns at once; `done` is called when it is complete. The descriptor is
 * copied (its arrays too); the buffers must stay until then. On a status other than NPC_OK, done is not called. */
int npc_comm_submit(npc_comm *comm, const npc_desc *desc, npc_done_fn done, void *user, npc_error *error);

/* npc_memory_new gives `bytes` of communication memory, which all ranks of the communicator can read: collectives on
 * inputs that lie in it copy nothing in. Page aligned, not cleared. It stays until npc_memory_release, after
 * npc_comm_close too. Local: the other ranks need not call it. Any thread. */
int npc_memory_new(npc_comm *comm, int64_t bytes, void **data, npc_error *error);

/* npc_memory_release gives back what npc_memory_new or a call with `shared` gave. In a forked child it does nothing. */
void npc_memory_release(npc_comm *comm, void *data);

/* npc_plan is a list of calls that are prepared once and run many times. */
typedef struct npc_plan npc_plan;

/* npc_plan_new prepares `count` numbered collectives on fixed buffers. The descriptors and their arrays are copied;
 * buffers must stay while the plan is used, and so must `shared`, where the first run says where the result is and
 * will be. It holds a reference to comm until npc_plan_free. */
int npc_plan_new(npc_comm *comm, const npc_desc *descs, int count, npc_plan **plan, npc_error *error);

/* npc_plan_run makes the calls, one after the other, as npc_comm_run does, and stops at the first that fails. */
int npc_plan_run(npc_plan *plan, npc_error *error);

/* npc_plan_run_on makes the plan's only call, with one input and one output of the planned size that lie at `in` and
 * `out`. It returns -1 and does nothing where these are not aligned to their dtype or overlap in part. */
int npc_plan_run_on(npc_plan *plan, const void *in, void *out, npc_error *error);
void npc_plan_free(npc_plan *plan);

/* npc_request_start is npc_comm_submit for a caller that will wait. Freed by npc_request_free, which may be called
 * before the call is complete only after npc_comm_close. */
int npc_request_start(npc_comm *comm, const npc_desc *desc, npc_request **request, npc_error *error);

/* npc_request_wait waits at most timeout_ms (negative: until it is complete; 0: only looks). It returns -1 while
 * the call is not complete, else the call's status. The comm's poll function interrupts the wait, not the call:
 * then it returns NPC_ERR_INTERRUPTED and may be called again. */
int npc_request_wait(npc_request *request, int64_t timeout_ms, npc_error *error);
void npc_request_free(npc_request *request);

/* npc_dtype_size returns the bytes of one element, or 0 for a number that is no dtype. */
size_t npc_dtype_size(int dtype);
/* npc_reduce_check returns NPC_OK where `op` is defined for `dtype`, with scaling if `scaled`. */
int npc_reduce_check(int dtype, int op, int scaled, npc_error *error);
const char *npc_status_text(int status);
const char *npc_kind_name(int kind);
const char *npc_op_name(int op);
const char *npc_dtype_name(int dtype);
/* npc_instructions names the instruction set that reductions use on this processor, such as "AVX2". */
const char *npc_instructions(void);

/* npc_api is what core hands to the native code of plugins, which links nothing of ours. Tables only grow at the end;
 * a caller checks `version` and that `size` covers what it uses. */
typedef struct npc_api {
    uint32_t version;
    uint32_t size;
    /* comm_acquire returns the open communicator with this id (0: the world) or NULL; released by comm_release.
     * Ask anew for every call: shutdown and a new init change the answer. */
    npc_comm *(*comm_acquire)(uint64_t id);
    void (*comm_release)(npc_comm *comm);
    int (*comm_rank)(const npc_comm *comm);
    int (*comm_size)(const npc_comm *comm);
    int (*run)(npc_comm *comm, const npc_desc *desc, npc_error *error);
    int (*submit)(npc_comm *comm, const npc_desc *desc, npc_done_fn done, void *user, npc_error *error);
    size_t (*dtype_size)(int dtype);
    const char *(*status_text)(int status);
    int (*memory_new)(npc_comm *comm, int64_t bytes, void **data, npc_error *error);
    void (*memory_release)(npc_comm *comm, void *data);
} npc_api;

const npc_api *npc_api_get(void);

#ifdef __cplusplus
}
#endif

#endif
