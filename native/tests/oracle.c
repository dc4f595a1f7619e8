/* oracle.c: see oracle.h. Conversions of float16 are written from its definition, by value, not by bit tricks. */
#include "oracle.h"

#include <math.h>
#include <pthread.h>

static float half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31)
        return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

static double half_values[0x7c00];
static pthread_once_t half_once = PTHREAD_ONCE_INIT;

static void half_list(void) {
    for (int i = 0; i < 0x7c00; i++)
        half_values[i] = (double)half_value((uint16_t)i);
}

/* The nearest of the two neighbours, ties to the even one. */
static uint16_t half_bits(float value) {
    pthread_once(&half_once, half_list);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs((double)value);
    if (isnan(value))
        return 0x7e00;
    if (size >= 65520.0)
        return sign | 0x7c00;
    uint16_t low = 0, high = 0x7bff;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (half_values[middle] <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - half_values[low], above = half_values[high] - size;
    if (above < below || (above == below && (high & 1) == 0))
        low = high;
    return sign | low;
}

static float bfloat_value(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t bfloat_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return 0x7fc0;
    uint32_t rest = bits & 0xffffu;
    bits >>= 16;
    if (rest > 0x8000u || (rest == 0x8000u && (bits & 1) != 0))
        bits++;
    return (uint16_t)bits;
}

#define FOR_INTEGERS(X)                                                                                               \
    X(NPC_INT8, int8_t)                                                                                               \
    X(NPC_UINT8, uint8_t)                                                                                             \
    X(NPC_INT16, int16_t)                                                                                             \
    X(NPC_UINT16, uint16_t)                                                                                           \
    X(NPC_INT32, int32_t)                                                                                             \
    X(NPC_UINT32, uint32_t)                                                                                           \
    X(NPC_INT64, int64_t)                                                                                             \
    X(NPC_UINT64, uint64_t)

static __int128 integer_get(const void *data, int dtype, int64_t i) {
    switch (dtype) {
#define X(D, T)                                                                                                       \
    case D:                                                                                                           \
        return ((const T *)data)[i];
        FOR_INTEGERS(X)
#undef X
    default: return ((const uint8_t *)data)[i] != 0;
    }
}

static void integer_put(void *data, int dtype, int64_t i, __int128 value) {
    switch (dtype) {
#define X(D, T)                                                                                                       \
    case D:                                                                                                           \
        ((T *)data)[i] = (T)(unsigned __int128)value;                                                                 \
        break;
        FOR_INTEGERS(X)
#undef X
    default: ((uint8_t *)data)[i] = value != 0;
    }
}

static __int128 integer_reduce(void *const *from, int size, int dtype, int op, int64_t i) {
    unsigned __int128 sum = 0, product = 1;
    __int128 least = integer_get(from[0], dtype, i), most = least;
    for (int r = 0; r < size; r++) {
        __int128 value = integer_get(from[r], dtype, i);
        sum += (unsigned __int128)value;
        product *= (unsigned __int128)value;
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    switch (op) {
    case NPC_SUM: return (__int128)sum;
    case NPC_MEAN: return (__int128)sum / size;
    case NPC_MIN: return least;
    case NPC_MAX: return most;
    default: return (__int128)product;
    }
}

static float float_get(const void *data, int dtype, int64_t i) {
    if (dtype == NPC_FLOAT16)
        return half_value(((const uint16_t *)data)[i]);
    if (dtype == NPC_BFLOAT16)
        return bfloat_value(((const uint16_t *)data)[i]);
    return ((const float *)data)[i];
}

static void float_put(void *data, int dtype, int64_t i, float value) {
    if (dtype == NPC_FLOAT16)
        ((uint16_t *)data)[i] = half_bits(value);
    else if (dtype == NPC_BFLOAT16)
        ((uint16_t *)data)[i] = bfloat_bits(value);
    else
        ((float *)data)[i] = value;
}

#define DEFINE_FLOATING(NAME, T, GET)                                                                                 \
    static T NAME(void *const *from, int size, int dtype, int op, int64_t i, T pre, T post) {                        \
        (void)dtype;                                                                                                  \
        T sum = GET(from[0]) * pre;                                                                                   \
        for (int r = 1; r < size; r++) {                                                                              \
            T value = GET(from[r]) * pre;                                                                             \
            if (op == NPC_SUM || op == NPC_MEAN)                                                                      \
                sum = sum + value;                                                                                    \
            else if (op == NPC_PROD)                                                                                  \
                sum = sum * value;                                                                                    \
            else if (isnan(sum) || isnan(value))                                                                      \
                sum = NAN;                                                                                            \
            else if (op == NPC_MIN ? value <= sum : value >= sum)                                                     \
                sum = value;                                                                                          \
        }                                                                                                             \
        return (op == NPC_MEAN ? sum / (T)size : sum) * post;                                                         \
    }
#define GET_FLOAT(data) float_get(data, dtype, i)
#define GET_DOUBLE(data) (((const double *)(data))[i])
DEFINE_FLOATING(float_reduce, float, GET_FLOAT)
DEFINE_FLOATING(double_reduce, double, GET_DOUBLE)

#define DEFINE_COMPLEX(NAME, T)                                                                                       \
    static void NAME(T *to, void *const *from, int size, int64_t i, T pre, T post) {                                 \
        T a = ((const T *)from[0])[2 * i] * pre, b = ((const T *)from[0])[2 * i + 1] * pre;                           \
        for (int r = 1; r < size; r++) {                                                                              \
            T c = ((const T *)from[r])[2 * i] * pre, d = ((const T *)from[r])[2 * i + 1] * pre, e = a * c - b * d;    \
            b = a * d + b * c;                                                                                        \
            a = e;                                                                                                    \
        }                                                                                                             \
        to[2 * i] = a * post;                                                                                         \
        to[2 * i + 1] = b * post;                                                                                     \
    }
DEFINE_COMPLEX(complex64_product, float)
DEFINE_COMPLEX(complex128_product, double)

void oracle_reduce(void *to, void *const *from, int size, int dtype, int op, int64_t count, double prescale,
                   double postscale) {
    bool complex = dtype == NPC_COMPLEX64 || dtype == NPC_COMPLEX128;
    int part = dtype == NPC_COMPLEX64 ? NPC_FLOAT32 : dtype == NPC_COMPLEX128 ? NPC_FLOAT64 : dtype;
    if (complex && op == NPC_PROD) {
        for (int64_t i = 0; i < count; i++) {
            if (dtype == NPC_COMPLEX64)
                complex64_product(to, from, size, i, (float)prescale, (float)postscale);
            else
                complex128_product(to, from, size, i, prescale, postscale);
        }
        return;
    }
    count *= complex ? 2 : 1;
    for (int64_t i = 0; i < count; i++) {
        if (dtype < NPC_FLOAT16)
            integer_put(to, dtype, i, integer_reduce(from, size, dtype, op, i));
        else if (part == NPC_FLOAT64)
            ((double *)to)[i] = double_reduce(from, size, part, op, i, prescale, postscale);
        else
            float_put(to, part, i, float_reduce(from, size, part, op, i, (float)prescale, (float)postscale));
    }
}

static double special_value(uint64_t draw) {
    static const double values[] = {0.0, -0.0, 1e-40, -6e-8, 65504.0, 30000.0, INFINITY, -INFINITY, NAN, 1e30, 3e-5};
    return values[draw % (sizeof values / sizeof *values)];
}

void oracle_fill(void *data, int dtype, int64_t count, uint64_t seed) {
    bool complex = dtype == NPC_COMPLEX64 || dtype == NPC_COMPLEX128;
    int part = dtype == NPC_COMPLEX64 ? NPC_FLOAT32 : dtype == NPC_COMPLEX128 ? NPC_FLOAT64 : dtype;
    count *= complex ? 2 : 1;
    for (int64_t i = 0; i < count; i++) {
        uint64_t draw = harness_random(&seed);
        double value = (double)(int64_t)(draw >> 40) / 4096.0 - 2048.0;
        if (draw % 61 == 0 && !complex)
            value = special_value(draw / 61);
        if (dtype < NPC_FLOAT16)
            integer_put(data, dtype, i, draw % 3 == 0 ? (__int128)(draw >> 20) : (__int128)(draw % 17) - 8);
        else if (part == NPC_FLOAT64)
            ((double *)data)[i] = value;
        else
            float_put(data, part, i, (float)value);
    }
    /* A bool is any byte that is not zero. */
    for (int64_t i = 0; dtype == NPC_BOOL && i < count; i++)
        ((uint8_t *)data)[i] = (uint8_t)(harness_random(&seed) % 3);
}

int64_t oracle_difference(const void *a, const void *b, int dtype, int64_t count) {
    bool complex = dtype == NPC_COMPLEX64 || dtype == NPC_COMPLEX128;
    int part = dtype == NPC_COMPLEX64 ? NPC_FLOAT32 : dtype == NPC_COMPLEX128 ? NPC_FLOAT64 : dtype;
    size_t item = npc_dtype_size(part);
    count *= complex ? 2 : 1;
    if (memcmp(a, b, (size_t)count * item) == 0)
        return -1;
    for (int64_t i = 0; i < count; i++) {
        const char *x = (const char *)a + (size_t)i * item, *y = (const char *)b + (size_t)i * item;
        if (memcmp(x, y, item) == 0)
            continue;
        bool nan = part == NPC_FLOAT64   ? isnan(((const double *)a)[i]) && isnan(((const double *)b)[i])
                   : part >= NPC_FLOAT16 ? isnan(float_get(a, part, i)) && isnan(float_get(b, part, i))
                                         : false;
        if (!nan)
            return i;
    }
    return -1;
}
