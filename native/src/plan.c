/* plan.c: calls that are prepared once and run many times: nothing is checked, copied or allocated on the way. */
#include "npci_comm.h"

struct npc_plan {
    npc_comm *comm;
    int count;
    void **storage; /* of each call */
    npci_call calls[];
};

static int npci_plan_add(npc_plan *plan, const npc_desc *desc, npc_error *error) {
    npci_call call;
    int status = npci_prepare(&call, plan->comm, desc, error);
    if (status != NPC_OK)
        return status;
    const char *name = npc_kind_name(call.d.kind);
    if (call.d.key != 0 || call.d.kind == NPC_SEND || call.d.kind == NPC_RECV)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: a plan is made of collectives without a name", name);
    if (call.d.alloc != NULL)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: a plan works on fixed buffers; give it an output", name);
    call.planned = call.may_poll = true;
    status = npci_call_keep(&plan->calls[plan->count], &call, &plan->storage[plan->count], error);
    plan->count += status == NPC_OK ? 1 : 0;
    return status;
}

int npc_plan_new(npc_comm *comm, const npc_desc *descs, int count, npc_plan **out, npc_error *error) {
    if (error != NULL)
        error->text[0] = '\0';
    if (comm == NULL || out == NULL || count < 1 || descs == NULL)
        return npci_fail(error, NPC_ERR_ARGUMENT, "a plan needs a communicator and at least one call");
    int status = npci_usable(comm, error);
    if (status != NPC_OK)
        return status;
    npc_plan *plan = calloc(1, sizeof *plan + (size_t)count * sizeof plan->calls[0]);
    void **storage = calloc((size_t)count, sizeof *storage);
    if (plan == NULL || storage == NULL) {
        free(plan);
        free(storage);
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a plan of %d calls", count);
    }
    plan->comm = comm;
    plan->storage = storage;
    npci_comm_retain(comm);
    for (int i = 0; i < count && status == NPC_OK; i++)
        status = npci_plan_add(plan, &descs[i], error);
    if (status == NPC_OK)
        *out = plan;
    else
        npc_plan_free(plan);
    return status;
}

void npc_plan_free(npc_plan *plan) {
    if (plan == NULL)
        return;
    for (int i = 0; i < plan->count; i++)
        free(plan->storage[i]);
    free(plan->storage);
    npci_comm_release(plan->comm);
    free(plan);
}

static int npci_plan_step(npci_call *call, npc_error *error) {
    call->error = error;
    call->started = 0;
    return npci_queue_run(call);
}

int npc_plan_run(npc_plan *plan, npc_error *error) {
    int status = npci_usable(plan->comm, error);
    for (int i = 0; i < plan->count && status == NPC_OK; i++)
        status = npci_plan_step(&plan->calls[i], error);
    return status;
}

int npc_plan_run_on(npc_plan *plan, const void *in, void *out, npc_error *error) {
    int status = npci_usable(plan->comm, error);
    if (status != NPC_OK)
        return status;
    npci_call call = plan->calls[0]; /* several threads may use the plan; one of them gets the lane */
    npc_buf from = {.data = (void *)(uintptr_t)in, .count = call.d.n_in > 0 ? call.d.in[0].count : 0};
    npc_buf to = {.data = out, .count = call.d.n_out > 0 ? call.d.out[0].count : 0};
    uintptr_t a = (uintptr_t)in, b = (uintptr_t)out, item = call.item > 0 ? call.item : 1;
    uintptr_t in_bytes = (uintptr_t)from.count * item, out_bytes = (uintptr_t)to.count * item;
    if (plan->count != 1 || ((a | b) & (item - 1)) != 0 || (a != b && a < b + out_bytes && b < a + in_bytes))
        return -1;
    call.d.in = &from;
    call.d.out = &to;
    return npci_plan_step(&call, error);
}
