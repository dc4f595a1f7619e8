/* api.c: the calls of the public header, and the table of them for plugins. */
#include "npci_comm.h"

static bool npci_is_mail(const npci_call *call) {
    return call->d.kind == NPC_SEND || call->d.kind == NPC_RECV;
}

/* npci_begin checks that calls may be made and prepares this one. */
static int npci_begin(npci_call *call, npc_comm *comm, const npc_desc *desc, npc_error *error) {
    if (error != NULL)
        error->text[0] = '\0';
    if (comm == NULL)
        return npci_fail(error, NPC_ERR_ARGUMENT, "there is no communicator");
    int status = npci_usable(comm, error);
    return status == NPC_OK ? npci_prepare(call, comm, desc, error) : status;
}

int npc_comm_run(npc_comm *comm, const npc_desc *desc, npc_error *error) {
    npci_call call;
    int status = npci_begin(&call, comm, desc, error);
    if (status != NPC_OK)
        return status;
    call.may_poll = true;
    /* A close in another thread must not unmap the area under this call. */
    npci_comm_retain(comm);
    if (npci_is_mail(&call))
        status = npci_mail_run(&call);
    else if (call.d.key != 0)
        status = npci_keyed_run(&call);
    else
        status = npci_queue_run(&call);
    npci_comm_release(comm);
    return status;
}

static int npci_submit(npc_comm *comm, const npc_desc *desc, npc_done_fn done, void *user, npc_request **request,
                       npc_error *error) {
    npci_call call;
    int status = npci_begin(&call, comm, desc, error);
    if (status != NPC_OK)
        return status;
    if (npci_is_mail(&call))
        return npci_mail_submit(&call, done, user, request);
    if (call.d.key != 0)
        return npci_keyed_submit(&call, done, user, request);
    return npci_queue_submit(&call, done, user, request);
}

int npc_comm_submit(npc_comm *comm, const npc_desc *desc, npc_done_fn done, void *user, npc_error *error) {
    if (done == NULL)
        return npci_fail(error, NPC_ERR_ARGUMENT, "a submitted call needs a function to tell how it ended");
    return npci_submit(comm, desc, done, user, NULL, error);
}

int npc_request_start(npc_comm *comm, const npc_desc *desc, npc_request **request, npc_error *error) {
    if (request == NULL)
        return npci_fail(error, NPC_ERR_ARGUMENT, "there is no place for the request");
    return npci_submit(comm, desc, NULL, NULL, request, error);
}

static const npc_api npci_api = {
    .version = NPC_API_VERSION,
    .size = sizeof(npc_api),
    .comm_acquire = npci_registry_acquire,
    .comm_release = npci_comm_release,
    .comm_rank = npc_comm_rank,
    .comm_size = npc_comm_size,
    .run = npc_comm_run,
    .submit = npc_comm_submit,
    .dtype_size = npc_dtype_size,
    .status_text = npc_status_text,
    .memory_new = npc_memory_new,
    .memory_release = npc_memory_release,
};

const npc_api *npc_api_get(void) {
    return &npci_api;
}
