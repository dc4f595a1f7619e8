/* plan.h: how graph collectives of different ranks find each other. */
#ifndef NPT_PLAN_H
#define NPT_PLAN_H

#include <stdint.h>

/* npt_plan_add notes an unnamed collective of a graph and returns its slot, 1 or more; 0 where memory is short.
 * `graph` (a graph and a communicator) and `group` say which collectives are numbered together; `order` describes this
 * one, the same text on every rank; `content` stands for it in the hash of the graph's content, or is 0 in graphs that
 * have none; `fallback` is the key used where the graph has been carried to another process; `name` is for messages. */
int32_t npt_plan_add(uint64_t graph, uint64_t group, const char *order, uint64_t content, uint64_t fallback,
                     const char *name);

/* npt_plan_name notes what a key is called in messages. */
void npt_plan_name(uint64_t key, const char *name);

struct npt_match {
    uint64_t key;
    uint64_t detail;
    const char *name; /* may be NULL; lives as long as the process */
};

/* npt_plan_match returns how the collective with this slot and fallback key finds its peers; any thread. */
struct npt_match npt_plan_match(int32_t slot, uint64_t fallback);

/* npt_mix returns a well-mixed hash of `hash` and one more number. */
uint64_t npt_mix(uint64_t hash, uint64_t more);

#endif
