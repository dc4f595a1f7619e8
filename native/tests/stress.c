/* stress.c: many random collectives, made in random ways, with every result checked: `stress [CALLS [SEED]]`.
 *
 * 1. Communicators of 2, 3 and 5 ranks, which are threads, take turns. Each makes batches of calls. What must be the
 *    same on all ranks is drawn from `same`, and everything else from the rank's own numbers.
 * 2. A call is numbered, or named in one order on all ranks, or named and submitted at a place of its own on each rank,
 *    or named and made by a second thread. A rank that may choose submits it, or blocks, or makes it from a plan.
 *    Whatever blocks comes in the same order on all ranks, so no program that is wrong itself is made.
 * 3. Inputs and outputs are private or communication memory, in place or not, whole or in pieces. Results may be shared,
 *    and are then kept for a while. Some calls differ between ranks on purpose: all must be told so.
 * 4. Every result is compared with the oracle, and what all ranks get, bit for bit, between the ranks. An input that is
 *    not an output too must be as it was. */
#include "oracle.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "npci_area.h"

enum { RANKS = 5, BATCH = 16, PIECES = 4, HELD = 6, CALLS_OF_ONE = 600 };

/* Ways to make a call; those up to ORDERED come in the same order on all ranks. */
typedef enum way { NUMBERED, PLANNED, ORDERED, FREE, BESIDE, WAYS } way;

typedef struct made {
    void *memory;
    int64_t count;
} made;

typedef struct call {
    uint64_t id; /* the same on all ranks, as are those up to `key` */
    int kind, dtype, op, root, repeats;
    double prescale, postscale;
    int64_t count, counts[RANKS], splits[RANKS][RANKS]; /* elements: in all; of each rank; from each to each */
    bool equal, shared, differs;
    way way;
    uint64_t values, key;
    bool blocks, in_place, allocates, in_common, out_common;
    void *in, *out;
    int64_t in_count, out_count;
    npc_buf ins[PIECES], outs[PIECES], results[PIECES];
    made made;
    npc_desc desc;
    npc_request *request;
    npc_plan *plan;
    _Atomic int done; /* 1 + status */
} call;

typedef struct held {
    npc_buf buffer;
    size_t bytes;
    uint64_t hash;
} held;

typedef struct rank_state {
    rank_context c;
    int ranks_on_host;
    call calls[BATCH];
    int count;
    held held[HELD];
    uint64_t beside; /* random numbers of the second thread */
} rank_state;

static uint64_t first_seed;
static int64_t wanted;
static _Atomic uint64_t *agreed; /* of each call, a hash of what all ranks get */

static uint64_t draw(uint64_t *state, uint64_t below) {
    return harness_random(state) % below;
}

static uint64_t hash_of(const void *data, size_t bytes, uint64_t hash) {
    const unsigned char *at = data;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, at + i, sizeof word);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    for (size_t i = bytes / 8 * 8; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void wait_a_little(uint64_t *state) {
    uint64_t number = draw(state, 4000);
    if (number < 300)
        sched_yield();
    else if (number < 360)
        usleep((useconds_t)draw(state, 300));
    else if (number == 360)
        usleep(60000); /* longer than a slice of a wait */
}

/* ---- what all ranks know of a call */

static int64_t draw_count(uint64_t *same, size_t item, int64_t share) {
    static const int64_t most[] = {64, 64, 64, 64, 64, 600, 600, 5000, 5000, 40000};
    uint64_t number = draw(same, 1000);
    int64_t bytes = number < 985 ? most[number % 10] : number < 998 ? 400000 : 3000000;
    int64_t count = (int64_t)draw(same, (uint64_t)bytes) / ((int64_t)item * share);
    return draw(same, 40) == 0 ? 0 : count + (int64_t)draw(same, 2);
}

static void draw_counts(uint64_t *same, int size, call *d) {
    size_t item = npc_dtype_size(d->dtype);
    bool blocks = d->kind == NPC_REDUCE_SCATTER || d->kind == NPC_SCATTER || (d->kind == NPC_ALLTOALL && d->equal);
    bool parts = d->kind == NPC_ALLGATHER || d->kind == NPC_GATHER || d->kind == NPC_ALLTOALL;
    d->count = draw_count(same, item, blocks ? size : 1);
    for (int r = 0; r < size; r++)
        d->counts[r] = blocks ? d->count * size : parts ? draw_count(same, item, size) : d->count;
    if (d->kind != NPC_ALLTOALL)
        return;
    for (int r = 0; r < size; r++) {
        d->counts[r] = 0;
        for (int to = 0; to < size; to++) {
            d->splits[r][to] = d->equal ? d->count : draw_count(same, item, size);
            d->counts[r] += d->splits[r][to];
        }
    }
}

static void draw_call(rank_state *s, call *d, uint64_t id) {
    static const int kinds[] = {NPC_BARRIER,   NPC_ALLREDUCE,      NPC_ALLREDUCE, NPC_ALLREDUCE, NPC_ALLREDUCE,
                                NPC_BROADCAST, NPC_ALLGATHER,      NPC_ALLGATHER, NPC_ALLTOALL,  NPC_REDUCE,
                                NPC_GATHER,    NPC_REDUCE_SCATTER, NPC_SCATTER};
    uint64_t *same = &s->c.same;
    memset(d, 0, sizeof *d);
    d->id = id;
    d->kind = kinds[draw(same, sizeof kinds / sizeof *kinds)];
    bool reduces = d->kind == NPC_ALLREDUCE || d->kind == NPC_REDUCE || d->kind == NPC_REDUCE_SCATTER;
    do {
        d->dtype = NPC_BOOL + (int)draw(same, NPC_COMPLEX128);
        d->op = NPC_SUM + (int)draw(same, 5);
        bool scales = reduces && draw(same, 4) == 0;
        d->prescale = scales ? 0.25 + (double)draw(same, 7) / 3.0 : 1.0;
        d->postscale = scales ? 1.0 / 3.0 : 1.0;
    } while (reduces && npc_reduce_check(d->dtype, d->op, d->prescale != 1.0, NULL) != NPC_OK);
    d->root = (int)draw(same, (uint64_t)s->c.size);
    d->equal = draw(same, 2) == 0;
    if (d->kind != NPC_BARRIER)
        draw_counts(same, s->c.size, d);
    d->way = (way)draw(same, WAYS);
    d->shared = d->kind == NPC_ALLREDUCE && draw(same, 4) == 0;
    d->differs = d->kind == NPC_ALLREDUCE && d->way != PLANNED && draw(same, 40) == 0;
    d->repeats = d->way == PLANNED ? 2 + (int)draw(same, 3) : 1;
    d->values = harness_random(same);
    /* Calls that come in one order may have one name. */
    d->key = d->way == ORDERED ? 1 + draw(same, 2) : d->way == FREE || d->way == BESIDE ? 100 + id % 1000 : 0;
}

static void fill_input(const call *d, int rank, int repeat, void *memory) {
    oracle_fill(memory, d->dtype, d->counts[rank], d->values + (uint64_t)(rank + 100 * repeat));
}

static void *memory_of(int64_t count, size_t item) {
    void *memory = malloc((size_t)count * item + 1);
    CHECK(memory != NULL, "no memory");
    return memory;
}

/* expect computes what a rank must get, and how many elements that is; NULL: nothing. */
static void *expect(const call *d, int rank, int size, int repeat, int64_t *count) {
    size_t item = npc_dtype_size(d->dtype);
    void *of[RANKS];
    bool rooted = d->kind == NPC_REDUCE || d->kind == NPC_GATHER, reduces = rooted && d->kind == NPC_REDUCE;
    reduces = reduces || d->kind == NPC_ALLREDUCE || d->kind == NPC_REDUCE_SCATTER;
    *count = 0;
    if (d->kind == NPC_BARRIER || (rooted && rank != d->root))
        return NULL;
    for (int r = 0; r < size; r++) {
        of[r] = memory_of(d->counts[r], item);
        fill_input(d, r, repeat, of[r]);
    }
    int64_t total = 0, from = 0;
    for (int r = 0; r < size; r++)
        total += d->counts[r];
    char *result = memory_of(total, item);
    if (reduces)
        oracle_reduce(result, of, size, d->dtype, d->op, d->counts[0], d->prescale, d->postscale);
    for (int r = 0; r < size && !reduces; r++) {
        int64_t skip = 0, take = d->counts[r];
        if (d->kind == NPC_BROADCAST || d->kind == NPC_SCATTER)
            take = r == d->root ? d->count : 0;
        if (d->kind == NPC_SCATTER)
            skip = rank * d->count;
        for (int to = 0; d->kind == NPC_ALLTOALL && to < rank; to++)
            skip += d->splits[r][to];
        if (d->kind == NPC_ALLTOALL)
            take = d->splits[r][rank];
        memcpy(result + from * (int64_t)item, (char *)of[r] + skip * (int64_t)item, (size_t)take * item);
        from += take;
    }
    *count = reduces ? d->count : from;
    if (d->kind == NPC_REDUCE_SCATTER)
        memmove(result, result + rank * d->count * (int64_t)item, (size_t)d->count * item);
    for (int r = 0; r < size; r++)
        free(of[r]);
    return result;
}

/* ---- what this rank makes of it */

static void *memory_new(rank_state *s, int64_t count, size_t item, bool common) {
    npc_error error;
    void *memory;
    if (!common)
        return memory_of(count, item);
    CHECK_OK(npc_memory_new(s->c.comm, count * (int64_t)item, &memory, &error));
    return memory;
}

static void memory_drop(rank_state *s, void *memory, bool common) {
    if (common)
        npc_memory_release(s->c.comm, memory);
    else
        free(memory);
}

static int cut(uint64_t *state, npc_buf *pieces, char *memory, int64_t count, size_t item, bool whole) {
    int n = whole ? 1 : 1 + (int)draw(state, PIECES);
    for (int i = 0; i < n; i++) {
        int64_t piece = i == n - 1 ? count : (int64_t)draw(state, (uint64_t)count + 1);
        pieces[i] = (npc_buf){memory, piece};
        memory += piece * (int64_t)item;
        count -= piece;
    }
    return n;
}

static void *provide(void *user, int dtype, int ndim, const int64_t *shape, const int64_t *counts) {
    made *m = user;
    (void)counts;
    m->count = 1;
    for (int i = 0; i < ndim; i++)
        m->count *= shape[i];
    return m->memory = memory_of(m->count, npc_dtype_size(dtype));
}

static void describe(rank_state *s, call *d) {
    uint64_t *own = &s->c.seed;
    int rank = s->c.rank, size = s->c.size, kind = d->kind;
    size_t item = npc_dtype_size(d->dtype);
    bool is_root = rank == d->root, pieces = kind == NPC_ALLREDUCE || kind == NPC_REDUCE || kind == NPC_BROADCAST;
    bool gives = (kind != NPC_BROADCAST && kind != NPC_SCATTER) || is_root;
    bool gets = (kind != NPC_REDUCE && kind != NPC_GATHER) || is_root;
    d->blocks = draw(own, 2) == 0;
    d->in_common = draw(own, 2) == 0;
    d->out_common = draw(own, 2) == 0;
    d->in_place = draw(own, 3) == 0 && gives && gets && !d->shared && (pieces || (kind == NPC_ALLTOALL && d->equal));
    d->desc = desc_of(kind, d->dtype, d->op, NULL, NULL, NULL);
    d->desc.ndim = 0;
    d->desc.root = d->root;
    d->desc.key = d->key;
    d->desc.name = d->key != 0 ? "stress" : NULL;
    if (kind == NPC_BARRIER)
        return;
    d->in_count = d->counts[rank];
    d->in = memory_new(s, d->in_count, item, d->in_common);
    int64_t shape = kind == NPC_BROADCAST ? d->count : d->in_count;
    d->desc.in = d->ins;
    /* The pieces of a shared result are the same on all ranks. */
    uint64_t alike = d->values, *cuts = d->shared ? &alike : own;
    d->desc.n_in = gives ? cut(cuts, d->ins, d->in, d->in_count, item, !pieces || draw(cuts, 2) == 0) : 0;
    if (gives || kind == NPC_BROADCAST) {
        d->desc.ndim = 1;
        d->in_count = shape;
        d->desc.shape = &d->in_count;
    } else if (kind == NPC_SCATTER) {
        d->desc.dtype = 0;
    }
    d->desc.prescale = d->prescale;
    d->desc.postscale = d->postscale;
    if (kind == NPC_ALLTOALL && !d->equal)
        d->desc.splits = d->splits[rank];
    if (d->differs && is_root)
        d->desc.detail = 1;
    free(expect(d, rank, size, 0, &d->out_count));
    if (d->shared) {
        d->desc.shared = d->results;
        return;
    }
    if (!gets)
        return;
    bool sizes = kind == NPC_ALLGATHER || kind == NPC_GATHER || kind == NPC_ALLTOALL || kind == NPC_SCATTER;
    d->allocates = sizes && !d->in_place && d->repeats == 1 && draw(own, 3) == 0;
    if (d->allocates) {
        d->desc.alloc = provide;
        d->desc.alloc_user = &d->made;
        return;
    }
    d->out = d->in_place ? d->in : memory_new(s, d->out_count, item, d->out_common);
    d->desc.out = d->in_place ? d->ins : d->outs;
    d->desc.n_out = d->in_place ? d->desc.n_in : cut(own, d->outs, d->out, d->out_count, item, !pieces);
}

static void what(const rank_state *s, const call *d, char *text, size_t room) {
    snprintf(text, room, "seed %llu, call %llu of %d ranks on rank %d: %s %s %s of %lld, way %d",
             (unsigned long long)first_seed, (unsigned long long)d->id, s->c.size, s->c.rank, npc_kind_name(d->kind),
             npc_dtype_name(d->dtype), npc_op_name(d->op), (long long)d->count, (int)d->way);
}

/* check_bytes compares a result, in one piece, with the oracle and with what other ranks got. */
static void check_bytes(rank_state *s, call *d, const void *got, const void *expected, int repeat) {
    char text[256];
    what(s, d, text, sizeof text);
    int64_t at = oracle_difference(got, expected, d->dtype, d->out_count);
    CHECK(at < 0, "%s: element %lld differs", text, (long long)at);
    if (d->kind != NPC_ALLREDUCE && d->kind != NPC_BROADCAST && d->kind != NPC_ALLGATHER)
        return;
    uint64_t hash = hash_of(got, (size_t)d->out_count * npc_dtype_size(d->dtype), 1) | 1, none = 0;
    if (!atomic_compare_exchange_strong(&agreed[d->id * 4 + (uint64_t)repeat], &none, hash))
        CHECK(none == hash, "%s: its bits differ from another rank's", text);
}

static void release(rank_state *s, held *h) {
    if (h->buffer.data == NULL)
        return;
    CHECK(hash_of(h->buffer.data, h->bytes, 1) == h->hash, "seed %llu: a shared result changed while it was held",
          (unsigned long long)first_seed);
    npc_memory_release(s->c.comm, h->buffer.data);
    h->buffer.data = NULL;
}

static void keep_shared(rank_state *s, call *d) {
    for (int i = 0; i < d->desc.n_in; i++) {
        size_t bytes = (size_t)d->results[i].count * npc_dtype_size(d->dtype);
        held *h = &s->held[draw(&s->c.seed, HELD)];
        release(s, h);
        *h = (held){d->results[i], bytes, hash_of(d->results[i].data, bytes, 1)};
    }
}

static void check_result(rank_state *s, call *d, int status, const char *reason, int repeat) {
    char text[256];
    int64_t count;
    size_t item = npc_dtype_size(d->dtype);
    what(s, d, text, sizeof text);
    CHECK(status == (d->differs ? NPC_ERR_MISMATCH : NPC_OK), "%s: status %d: %s", text, status, reason);
    if (d->kind == NPC_BARRIER || d->differs)
        return;
    char *expected = expect(d, s->c.rank, s->c.size, repeat, &count), *joined = NULL;
    const void *got = d->allocates ? d->made.memory : d->out;
    if (d->shared) {
        char *at = joined = memory_of(d->count, item);
        for (int i = 0; i < d->desc.n_in; i++) {
            CHECK(d->results[i].count == d->ins[i].count, "%s: result %d has another size", text, i);
            memcpy(at, d->results[i].data, (size_t)d->results[i].count * item);
            at += d->results[i].count * (int64_t)item;
        }
        got = joined;
    }
    CHECK(!d->allocates || d->made.count == count, "%s: the output is of another size", text);
    if (expected != NULL)
        check_bytes(s, d, got, expected, repeat);
    if (!d->in_place && d->in != NULL) {
        void *before = memory_of(d->counts[s->c.rank], item);
        fill_input(d, s->c.rank, repeat, before);
        CHECK(memcmp(before, d->in, (size_t)d->counts[s->c.rank] * item) == 0, "%s: its input was changed", text);
        free(before);
    }
    free(joined);
    free(expected);
}

static void finish(rank_state *s, call *d) {
    if (d->shared && !d->differs)
        keep_shared(s, d);
    if (!d->in_place && d->out != NULL)
        memory_drop(s, d->out, d->out_common);
    if (d->in != NULL)
        memory_drop(s, d->in, d->in_common);
    free(d->made.memory);
}

static void told(void *user, int status, const char *text) {
    call *d = user;
    (void)text;
    atomic_store(&d->done, 1 + status);
}

/* A plan on one rank is nothing to the others, unless its result is shared. */
static void make_planned(rank_state *s, call *d) {
    npc_error error;
    bool planned = d->shared || draw(&s->c.seed, 2) == 0;
    if (planned)
        CHECK_OK(npc_plan_new(s->c.comm, &d->desc, 1, &d->plan, &error));
    for (int repeat = 0; repeat < d->repeats; repeat++) {
        if (d->in != NULL)
            fill_input(d, s->c.rank, repeat, d->in);
        wait_a_little(&s->c.seed);
        int status = planned ? npc_plan_run(d->plan, &error) : npc_comm_run(s->c.comm, &d->desc, &error);
        check_result(s, d, status, error.text, repeat);
    }
    npc_plan_free(d->plan);
}

static void make(rank_state *s, call *d, uint64_t *own) {
    npc_error error;
    wait_a_little(own);
    if (d->way == PLANNED) {
        make_planned(s, d);
    } else if (d->way == BESIDE || (d->way != FREE && d->blocks)) {
        int status = npc_comm_run(s->c.comm, &d->desc, &error);
        check_result(s, d, status, error.text, 0);
    } else if (draw(own, 2) == 0) {
        CHECK_OK(npc_comm_submit(s->c.comm, &d->desc, told, d, &error));
        d->blocks = false;
        d->request = NULL;
    } else {
        d->blocks = false;
        CHECK_OK(npc_request_start(s->c.comm, &d->desc, &d->request, &error));
    }
}

static void await(rank_state *s, call *d) {
    npc_error error = {.text = ""};
    int status = -1;
    if (d->way == PLANNED || d->way == BESIDE || d->blocks)
        return;
    for (int64_t limit = (int64_t)draw(&s->c.seed, 3) - 1; d->request != NULL && status == -1; limit = -1)
        status = npc_request_wait(d->request, limit, &error);
    for (int looks = 0; d->request == NULL && (status = atomic_load(&d->done) - 1) < 0; looks++) {
        if (looks > 100)
            usleep(20);
        else
            sched_yield();
    }
    check_result(s, d, status, error.text, 0);
    npc_request_free(d->request);
}

static void *make_beside(void *argument) {
    rank_state *s = argument;
    for (int i = 0; i < s->count; i++) {
        if (s->calls[i].way == BESIDE)
            make(s, &s->calls[i], &s->beside);
    }
    return NULL;
}

/* order_of puts the calls that this rank may make at any time anywhere among the others. */
static int order_of(rank_state *s, int *order) {
    int n = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->calls[i].way <= ORDERED)
            order[n++] = i;
    }
    for (int i = 0; i < s->count; i++) {
        if (s->calls[i].way != FREE)
            continue;
        int at = (int)draw(&s->c.seed, (uint64_t)n + 1);
        memmove(&order[at + 1], &order[at], (size_t)(n - at) * sizeof *order);
        order[at] = i;
        n++;
    }
    return n;
}

static void batch(rank_state *s, uint64_t id) {
    int order[BATCH];
    bool beside = false;
    pthread_t thread;
    for (int i = 0; i < s->count; i++) {
        call *d = &s->calls[i];
        draw_call(s, d, id + (uint64_t)i);
        describe(s, d);
        if (d->in != NULL)
            fill_input(d, s->c.rank, 0, d->in);
        beside = beside || d->way == BESIDE;
    }
    s->beside = harness_random(&s->c.seed);
    CHECK(!beside || pthread_create(&thread, NULL, make_beside, s) == 0, "no thread");
    for (int i = 0, n = order_of(s, order); i < n; i++)
        make(s, &s->calls[order[i]], &s->c.seed);
    for (int i = 0; i < s->count; i++)
        await(s, &s->calls[i]);
    if (beside)
        pthread_join(thread, NULL);
    for (int i = 0; i < s->count; i++)
        finish(s, &s->calls[i]);
}

typedef struct turn {
    int fd, size, ranks_on_host;
    uint64_t seed, id; /* of its first call */
    int64_t calls;
} turn;

typedef struct rank_start {
    const turn *turn;
    int rank;
} rank_start;

static void *run_rank(void *argument) {
    const rank_start *start = argument;
    const turn *t = start->turn;
    npc_error error;
    npc_options options = {.size = sizeof options, .threads = 1, .timeout_ms = 120000, .ranks_on_host = t->ranks_on_host};
    rank_state *s = calloc(1, sizeof *s);
    s->c = (rank_context){.rank = start->rank, .size = t->size, .same = t->seed};
    s->c.seed = t->seed ^ (UINT64_C(0xabcdef123) * (uint64_t)(start->rank + 1));
    CHECK_OK(npc_comm_open(t->fd, start->rank, t->size, 0, "stress", &options, &s->c.comm, &error));
    for (int64_t at = 0; at < t->calls; at += s->count) {
        int64_t left = t->calls - at;
        s->count = 1 + (int)draw(&s->c.same, BATCH);
        s->count = s->count < left ? s->count : (int)left;
        batch(s, t->id + (uint64_t)at);
    }
    for (int i = 0; i < HELD; i++)
        release(s, &s->held[i]);
    npc_comm_close(s->c.comm);
    free(s);
    return NULL;
}

/* The border from which results are written past the caches is set low here, so that messages need not be huge. */
static void take_turn(turn *t) {
    npc_error error;
    pthread_t threads[RANKS];
    rank_start starts[RANKS];
    uint64_t seed = t->seed, stream = 30000 + draw(&seed, 600000);
    CHECK_OK(npc_area_create(t->size, &t->fd, &error));
    CHECK(pwrite(t->fd, &stream, sizeof stream, offsetof(npci_header, stream)) == sizeof stream, "pwrite");
    t->ranks_on_host = draw(&seed, 3) == 0 ? 1000 : t->size;
    for (int r = 0; r < t->size; r++) {
        starts[r] = (rank_start){t, r};
        CHECK(pthread_create(&threads[r], NULL, run_rank, &starts[r]) == 0, "no thread");
    }
    for (int r = 0; r < t->size; r++)
        pthread_join(threads[r], NULL);
    close(t->fd);
}

int main(int count, char **arguments) {
    static const int sizes[] = {2, 3, 5};
    wanted = count > 1 ? atoll(arguments[1]) : 100000;
    first_seed = count > 2 ? strtoull(arguments[2], NULL, 0) : (uint64_t)time(NULL);
    printf("%lld collectives, seed %llu\n", (long long)wanted, (unsigned long long)first_seed);
    fflush(stdout);
    agreed = calloc((size_t)wanted * 4 + 4, sizeof *agreed);
    double start = harness_seconds();
    uint64_t seed = first_seed;
    int64_t done = 0;
    for (int i = 0; done < wanted; i++) {
        turn t = {.size = sizes[i % 3], .seed = harness_random(&seed), .id = (uint64_t)done};
        t.calls = wanted - done < CALLS_OF_ONE ? wanted - done : CALLS_OF_ONE;
        take_turn(&t);
        done += t.calls;
    }
    printf("all right, %.0f s\n", harness_seconds() - start);
    free(agreed);
    return 0;
}
