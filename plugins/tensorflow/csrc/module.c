/* What happens when the library is loaded, and the functions that Python calls (library.py, through ctypes).
 *
 * tf.load_op_library opens the library and collects the operators that are registered meanwhile, so registration
 * happens in a constructor. It cannot raise: what went wrong is kept for Python to ask. */
#include "kernel.h"
#include "plan.h"

#include <stdio.h>

#define NPT_EXPORT __attribute__((visibility("default")))

static char problem[512];
static enum npt_mode mode;

__attribute__((constructor)) static void load(void)
{
    const char *missing = npt_tf_load();
    if (missing != NULL) {
        snprintf(problem, sizeof problem, "this process's TensorFlow has no %s", missing);
        return;
    }
    TF_Status *status = npt_tf.NewStatus();
    for (int i = 0; i < NPT_OPS && npt_tf.GetCode(status) == TF_OK; i++)
        npt_op_define(&npt_ops[i], status);
    if (npt_tf.GetCode(status) == TF_OK)
        mode = npt_kernels_register(status);
    if (npt_tf.GetCode(status) != TF_OK)
        snprintf(problem, sizeof problem, "%s", npt_tf.Message(status));
    npt_tf.DeleteStatus(status);
}

/* npt_problem returns why the operators could not be registered, or "". */
NPT_EXPORT const char *npt_problem(void);
const char *npt_problem(void)
{
    return problem;
}

/* npt_mode_of_kernels returns the npt_mode that this TensorFlow allows. */
NPT_EXPORT int npt_mode_of_kernels(void);
int npt_mode_of_kernels(void)
{
    return mode;
}

/* npt_bind_engine takes the address of the engine's table; false where the table is older than we need. */
NPT_EXPORT int npt_bind_engine(const npc_api *api);
int npt_bind_engine(const npc_api *api)
{
    if (api != NULL && (api->version != NPC_API_VERSION || api->size < sizeof *api))
        return 0;
    npt_bind(api);
    return 1;
}

/* npt_mark_calls and npt_marked_calls: npt_mark and npt_pending_before_mark. */
NPT_EXPORT void npt_mark_calls(void);
void npt_mark_calls(void)
{
    npt_mark();
}

NPT_EXPORT int npt_marked_calls(void);
int npt_marked_calls(void)
{
    return npt_pending_before_mark();
}

/* npt_wait_inside makes kernels wait inside their compute function, as they do where done.c does not know the callback:
 * for tests of that. */
NPT_EXPORT void npt_wait_inside(int yes);
void npt_wait_inside(int yes)
{
    npt_done_refuse(yes != 0);
}

NPT_EXPORT int32_t npt_plan(uint64_t graph, uint64_t group, const char *order, uint64_t content, uint64_t fallback,
                            const char *name);
int32_t npt_plan(uint64_t graph, uint64_t group, const char *order, uint64_t content, uint64_t fallback,
                 const char *name)
{
    return npt_plan_add(graph, group, order, content, fallback, name);
}

NPT_EXPORT void npt_name(uint64_t key, const char *name);
void npt_name(uint64_t key, const char *name)
{
    npt_plan_name(key, name);
}
