/* oracle.h: reductions computed one element at a time, in the plainest way, to compare the engine with. */
#ifndef ORACLE_H
#define ORACLE_H

#include "harness.h"

/* oracle_fill writes `count` values of `dtype` that depend on the seed: small enough that few reductions overflow, with
 * some special ones (NaN, infinities, subnormals, extremes of integers). */
void oracle_fill(void *data, int dtype, int64_t count, uint64_t seed);

/* oracle_reduce computes what an allreduce of the inputs must give. */
void oracle_reduce(void *to, void *const *from, int size, int dtype, int op, int64_t count, double prescale,
                   double postscale);

/* oracle_equal compares bits, except that one NaN is as good as another; it returns the first difference or -1. */
int64_t oracle_difference(const void *a, const void *b, int dtype, int64_t count);

#endif
