/* npci_halves.h: float16 and bfloat16, as pairs of vectors of float; a part of npci_kernels.h.
 *
 * Two vectors are read at once: as 32-bit lanes of which each holds two numbers, an even and an odd one, so that nothing
 * has to be shuffled; or, where the processor converts float16 itself, one after the other. NPCI_VECTOR is the bytes of a
 * vector. */
#define NPCI_PAIR (NPCI_VECTOR / 2) /* numbers in a pair */

typedef float npci_floats __attribute__((vector_size(NPCI_VECTOR)));
typedef uint32_t npci_words __attribute__((vector_size(NPCI_VECTOR)));

typedef struct npci_pair {
    npci_floats a, b;
} npci_pair;

/* npci_choose takes `yes` in lanes where the mask is all ones. */
static inline npci_words npci_choose(npci_words mask, npci_words yes, npci_words no) {
    return (yes & mask) | (no & ~mask);
}

static inline npci_words npci_is_nan(npci_floats value) {
    return (npci_words)(value != value);
}

/* ---- bfloat16: the upper half of a float. */
/* Round to nearest, ties to even, in the upper half; a NaN stays one and becomes quiet. The lower half is rubbish. */
static inline npci_words npci_round_bfloat(npci_floats value) {
    npci_words bits = (npci_words)value;
    npci_words rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return npci_choose(npci_is_nan(value), bits | 0x400000u, rounded);
}

static inline npci_pair npci_load_bfloat(const uint16_t *from) {
    npci_words words;
    memcpy(&words, from, sizeof words);
    return (npci_pair){(npci_floats)(words << 16), (npci_floats)(words & 0xffff0000u)};
}

static inline void npci_store_bfloat(uint16_t *to, npci_pair value) {
    npci_words words = npci_round_bfloat(value.a) >> 16 | (npci_round_bfloat(value.b) & 0xffff0000u);
    memcpy(to, &words, sizeof words);
}

/* ---- float16 */
#if NPCI_HALF_HARDWARE == 512
static inline npci_pair npci_load_half(const uint16_t *from) {
    return (npci_pair){
        (npci_floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from)),
        (npci_floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(from + 16))),
    };
}

static inline void npci_store_half(uint16_t *to, npci_pair value) {
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph((__m512)value.a, _MM_FROUND_TO_NEAREST_INT));
    _mm256_storeu_si256((__m256i *)(void *)(to + 16), _mm512_cvtps_ph((__m512)value.b, _MM_FROUND_TO_NEAREST_INT));
}
#elif NPCI_HALF_HARDWARE == 256
static inline npci_pair npci_load_half(const uint16_t *from) {
    return (npci_pair){
        (npci_floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from)),
        (npci_floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + 8))),
    };
}

static inline void npci_store_half(uint16_t *to, npci_pair value) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph((__m256)value.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(to + 8), _mm256_cvtps_ph((__m256)value.b, _MM_FROUND_TO_NEAREST_INT));
}
#elif NPCI_HALF_HARDWARE == 128 /* every aarch64 */
static inline npci_pair npci_load_half(const uint16_t *from) {
    return (npci_pair){
        (npci_floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))),
        (npci_floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + 4))),
    };
}

static inline void npci_store_half(uint16_t *to, npci_pair value) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value.a)));
    vst1_u16(to + 4, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value.b)));
}
#else
/* A subnormal m * 2^-24 is (1 + m * 2^-10) * 2^-14 - 2^-14. Infinities and NaNs get the largest exponent. */
static inline npci_floats npci_from_half(npci_words half) {
    npci_words sign = (half & 0x8000u) << 16, rest = (half & 0x7fffu) << 13;
    npci_words small = (npci_words)((npci_floats)(rest + 0x38800000u) - 0x1p-14f);
    npci_words number = npci_choose((npci_words)(rest < 0x00800000u), small, rest + 0x38000000u);
    npci_words bits = npci_choose((npci_words)(rest >= 0x0f800000u), rest | 0x7f800000u, number);
    return (npci_floats)(sign | bits);
}

/* Round to nearest, ties to even. Adding 1/2 rounds a number that becomes subnormal at the right place. */
static inline npci_words npci_to_half(npci_floats value) {
    npci_words bits = (npci_words)value, sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    npci_words normal = (rest - 0x38000000u + 0x0fffu + (rest >> 13 & 1u)) >> 13;
    npci_words small = (npci_words)((npci_floats)(rest) + 0.5f) - 0x3f000000u;
    npci_words half = npci_choose((npci_words)(rest < 0x38800000u), small, normal);
    half = npci_choose((npci_words)(rest >= 0x477ff000u), half * 0u + 0x7c00u, half);
    half = npci_choose((npci_words)(rest > 0x7f800000u), (rest >> 13 & 0x3ffu) | 0x7e00u, half);
    return sign | half;
}

static inline npci_pair npci_load_half(const uint16_t *from) {
    npci_words words;
    memcpy(&words, from, sizeof words);
    return (npci_pair){npci_from_half(words & 0xffffu), npci_from_half(words >> 16)};
}

static inline void npci_store_half(uint16_t *to, npci_pair value) {
    npci_words words = npci_to_half(value.a) | npci_to_half(value.b) << 16;
    memcpy(to, &words, sizeof words);
}
#endif

/* ---- the reductions; `op`, `brain` (bfloat16) and `scaled` are constants where they are inlined. */
#define NPCI_INLINE static inline __attribute__((always_inline))

NPCI_INLINE npci_floats npci_combine(npci_floats sum, npci_floats next, int op) {
    npci_words keeps;
    switch (op) {
    case NPC_PROD:
        return sum * next;
    case NPC_MIN: /* a NaN on either side wins, as in NumPy */
        keeps = (npci_words)(sum < next) | npci_is_nan(sum);
        break;
    case NPC_MAX:
        keeps = (npci_words)(sum > next) | npci_is_nan(sum);
        break;
    default:
        return sum + next;
    }
    return (npci_floats)npci_choose(keeps, (npci_words)sum, (npci_words)next);
}

/* npci_pair_load reads `left` numbers, at most a pair. */
NPCI_INLINE npci_pair npci_pair_load(const uint16_t *from, size_t left, bool brain, bool scaled, float prescale) {
    uint16_t last[NPCI_PAIR] = {0};
    if (left < NPCI_PAIR)
        from = memcpy(last, from, left * sizeof *from);
    npci_pair pair = brain ? npci_load_bfloat(from) : npci_load_half(from);
    return scaled ? (npci_pair){pair.a * prescale, pair.b * prescale} : pair;
}

NPCI_INLINE void npci_pair_store(uint16_t *to, npci_pair pair, size_t left, bool brain) {
    uint16_t last[NPCI_PAIR];
    uint16_t *place = left < NPCI_PAIR ? last : to;
    if (brain)
        npci_store_bfloat(place, pair);
    else
        npci_store_half(place, pair);
    if (left < NPCI_PAIR)
        memcpy(to, last, left * sizeof *to);
}

typedef struct npci_half_scales {
    float pre, post, ranks;
} npci_half_scales;

NPCI_INLINE void npci_half_step(uint16_t *to, const void *const *from, int size, size_t at, size_t left, int op,
                                bool brain, bool scaled, npci_half_scales scales) {
    npci_pair sum = npci_pair_load((const uint16_t *)from[0] + at, left, brain, scaled, scales.pre);
    for (int r = 1; r < size; r++) {
        npci_pair next = npci_pair_load((const uint16_t *)from[r] + at, left, brain, scaled, scales.pre);
        sum = (npci_pair){npci_combine(sum.a, next.a, op), npci_combine(sum.b, next.b, op)};
    }
    if (op == NPC_MEAN)
        sum = (npci_pair){sum.a / scales.ranks, sum.b / scales.ranks};
    if (scaled)
        sum = (npci_pair){sum.a * scales.post, sum.b * scales.post};
    npci_pair_store(to + at, sum, left, brain);
}

NPCI_INLINE void npci_half_reduce(void *to, const void *const *from, int size, size_t count, int op, bool brain,
                                  bool scaled, npci_half_scales scales) {
    size_t at = 0;
    if (size == 2) {
        scales.ranks = 2; /* the compiler multiplies by a half, which is the same */
        for (; at + NPCI_PAIR <= count; at += NPCI_PAIR)
            npci_half_step(to, from, 2, at, NPCI_PAIR, op, brain, scaled, scales);
    } else {
        for (; at + NPCI_PAIR <= count; at += NPCI_PAIR)
            npci_half_step(to, from, size, at, NPCI_PAIR, op, brain, scaled, scales);
    }
    if (at < count)
        npci_half_step(to, from, size, at, count - at, op, brain, scaled, scales);
}

#define NPCI_HALF_KERNEL(NAME, OP, BRAIN, SCALED)                                                                     \
    static void NAME(void *to, const void *const *from, int size, size_t count, double prescale, double postscale) {  \
        npci_half_scales scales = {(float)prescale, (float)postscale, (float)size};                                   \
        npci_half_reduce(to, from, size, count, OP, BRAIN, SCALED, scales);                                           \
    }
#define NPCI_HALF_KERNELS(DTYPE, BRAIN, PREFIX, SCALED)                                                               \
    NPCI_HALF_KERNEL(npci_##PREFIX##sum_##DTYPE, NPC_SUM, BRAIN, SCALED)                                              \
    NPCI_HALF_KERNEL(npci_##PREFIX##mean_##DTYPE, NPC_MEAN, BRAIN, SCALED)                                            \
    NPCI_HALF_KERNEL(npci_##PREFIX##min_##DTYPE, NPC_MIN, BRAIN, SCALED)                                              \
    NPCI_HALF_KERNEL(npci_##PREFIX##max_##DTYPE, NPC_MAX, BRAIN, SCALED)                                              \
    NPCI_HALF_KERNEL(npci_##PREFIX##prod_##DTYPE, NPC_PROD, BRAIN, SCALED)
NPCI_HALF_KERNELS(float16, false, , false)
NPCI_HALF_KERNELS(float16, false, scaled_, true)
NPCI_HALF_KERNELS(bfloat16, true, , false)
NPCI_HALF_KERNELS(bfloat16, true, scaled_, true)
