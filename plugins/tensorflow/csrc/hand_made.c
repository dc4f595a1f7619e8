/* Asynchronous kernels for TensorFlow 1.15, whose C API has none.
 *
 * 1. Its framework library exports the constructor and destructor of OpKernel, the table of virtual functions of
 *    AsyncOpKernel, and the constructor that registers a kernel's factory. That is all a derived class needs.
 * 2. Our class is that table with our own destructors and ComputeAsync in place of the base's.
 * 3. The table's layout is checked, not assumed: one slot must hold AsyncOpKernel::Compute, whose address is exported
 *    too. 2.x exports other names, so there this file finds nothing and does nothing.
 * 4. ComputeAsync takes its callback as a std::function by value, that is, by the address of one in the caller's frame:
 *    the same thing that the C API's callback is in 2.x (done.c).
 * No function used here takes or returns a std::string, whose layout depends on how TensorFlow was built. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* The Itanium C++ ABI: a table of virtual functions begins with two words that its users point past. */
enum {
    OFFSET_TO_TOP,
    TYPE_INFO,
    DESTROY,
    DESTROY_AND_FREE,
    COMPUTE,
    AS_ASYNC,
    AS_ASYNC_CONST,
    IS_EXPENSIVE,
    COMPUTE_ASYNC,
    SLOTS
};

/* An OpKernel of 1.15 takes about 350 bytes; nobody but its own constructor and destructor touches them. */
enum { OP_KERNEL_BYTES = 4096 };

struct object {
    void *const *table; /* first in every object of a class with virtual functions */
    char rest[OP_KERNEL_BYTES];
    struct npt_kernel *kernel;
};

struct string_view {
    const char *data;
    size_t length;
};

typedef void construct_fn(struct object *, TF_OpKernelConstruction *);
typedef void destroy_fn(struct object *);
typedef const void *build_fn(void *kernel_def_builder);
typedef struct object *factory_fn(TF_OpKernelConstruction *);
typedef void register_fn(void *registrar, const void *kernel_def, struct string_view, factory_fn *);

static construct_fn *op_kernel_construct;
static destroy_fn *op_kernel_destroy;
static void *table[SLOTS];

/* POSIX makes an object pointer of dlsym a function pointer; ISO C wants the detour. */
static void find(void *function, const char *symbol)
{
    void *address = npt_tf_symbol(symbol);
    memcpy(function, &address, sizeof address);
}

static void destroy(struct object *object)
{
    free(object->kernel);
    op_kernel_destroy(object);
}

static void destroy_and_free(struct object *object)
{
    destroy(object);
    free(object);
}

static void compute_async(struct object *object, TF_OpKernelContext *context, void *done)
{
    struct npt_done taken;
    if (npt_done_take(&taken, done)) {
        npt_compute(object->kernel, context, &taken);
        return;
    }
    npt_compute(object->kernel, context, NULL);
    struct npt_done *theirs = done; /* known to be one, or nothing would have been registered */
    theirs->invoker(theirs->functor);
}

static struct object *create(const struct npt_op *op, TF_OpKernelConstruction *construction)
{
    struct object *object = calloc(1, sizeof *object);
    if (object == NULL)
        abort(); /* TensorFlow, too, ends where an object cannot be made; NULL would be called through. */
    op_kernel_construct(object, construction);
    object->table = (void *const *)&table[DESTROY];
    object->kernel = npt_kernel_new(op, construction);
    return object;
}

#define FACTORY(i)                                                                                                     \
    static struct object *factory_##i(TF_OpKernelConstruction *construction)                                           \
    {                                                                                                                  \
        return create(&npt_ops[i], construction);                                                                      \
    }
FACTORY(0)
FACTORY(1)
FACTORY(2)
FACTORY(3)
FACTORY(4)
FACTORY(5)
static factory_fn *const FACTORIES[NPT_OPS] = {factory_0, factory_1, factory_2, factory_3, factory_4, factory_5};

static bool make_table(void)
{
    void *const *base = npt_tf_symbol("_ZTVN10tensorflow13AsyncOpKernelE");
    void *compute = npt_tf_symbol("_ZN10tensorflow13AsyncOpKernel7ComputeEPNS_15OpKernelContextE");
    find(&op_kernel_construct, "_ZN10tensorflow8OpKernelC2EPNS_20OpKernelConstructionE");
    find(&op_kernel_destroy, "_ZN10tensorflow8OpKernelD2Ev");
    /* A function of the framework with a callback in its name says whose std::function it is: libstdc++'s. */
    const void *takes_callback = npt_tf_symbol("_ZN10tensorflow6Device12ComputeAsyncEPNS_13AsyncOpKernelEPNS_"
                                               "15OpKernelContextESt8functionIFvvEE");
    if (base == NULL || compute == NULL || op_kernel_construct == NULL || op_kernel_destroy == NULL)
        return false;
    if (takes_callback == NULL)
        return false;
    if (base[OFFSET_TO_TOP] != NULL || base[COMPUTE] != compute)
        return false;
    memcpy(table, base, sizeof table);
    destroy_fn *destructors[2] = {destroy, destroy_and_free};
    void (*asynchronous)(struct object *, TF_OpKernelContext *, void *) = compute_async;
    memcpy(&table[DESTROY], destructors, sizeof destructors);
    memcpy(&table[COMPUTE_ASYNC], &asynchronous, sizeof asynchronous);
    return true;
}

static void never_created(void *kernel, TF_OpKernelContext *context)
{
    (void)kernel;
    (void)context;
}

bool npt_hand_made_register(TF_Status *status)
{
    build_fn *build;
    register_fn *registrar;
    find(&build, "_ZN10tensorflow16KernelDefBuilder5BuildEv");
    find(&registrar, "_ZN10tensorflow14kernel_factory17OpKernelRegistrarC1EPKNS_9KernelDefEN4absl11string_viewEPFPNS_"
                     "8OpKernelEPNS_20OpKernelConstructionEE");
    /* Where the C API has asynchronous kernels, nothing is made by hand. */
    if (npt_tf.NewAsyncKernelBuilder != NULL || build == NULL || registrar == NULL || !make_table())
        return false;
    (void)status;
    for (int i = 0; i < NPT_OPS; i++) {
        /* A TF_KernelBuilder of 1.15 begins with the address of the C++ builder it wraps. */
        void **builder = (void **)npt_tf.NewKernelBuilder(npt_ops[i].name, "CPU", NULL, never_created, NULL);
        static char registrars[NPT_OPS][64]; /* objects without fields; their addresses are used nowhere else */
        registrar(registrars[i], build(*builder), (struct string_view){npt_ops[i].name, strlen(npt_ops[i].name)},
                  FACTORIES[i]);
    }
    return true;
}
