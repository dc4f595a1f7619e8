/* Finds TensorFlow's functions in the process that loaded us. */
#define _GNU_SOURCE
#include "tf.h"

#include <dlfcn.h>
#include <string.h>

struct npt_tf npt_tf;

/* In this order: 1.15 keeps the C API in its Python module, 2.x in the framework library. */
static const char *const LIBRARIES[] = {
    "libtensorflow_framework.so.2",
    "libtensorflow_cc.so.2",
    "_pywrap_tensorflow_internal.so",
    "libtensorflow_framework.so.1",
};

void *npt_tf_symbol(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);
    for (size_t i = 0; address == NULL && i < sizeof LIBRARIES / sizeof *LIBRARIES; i++) {
        /* NOLOAD: only ever the TensorFlow that is there. The reference keeps what is never unloaded anyway. */
        void *library = dlopen(LIBRARIES[i], RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            address = dlsym(library, name);
    }
    return address;
}

const char *npt_tf_load(void)
{
    void *address;
    /* POSIX, not ISO C, makes an object pointer of dlsym a function pointer: memcpy says so without a warning. */
#define NPT_TF_FIND(result, name, arguments)                                                                           \
    address = npt_tf_symbol("TF_" #name);                                                                              \
    memcpy(&npt_tf.name, &address, sizeof address);
#define NPT_TF_CHECK(result, name, arguments)                                                                          \
    if (npt_tf.name == NULL)                                                                                           \
        return "TF_" #name;
    NPT_TF_SYMBOLS(NPT_TF_FIND)
    NPT_TF_OPTIONAL(NPT_TF_FIND)
    NPT_TF_SYMBOLS(NPT_TF_CHECK)
    return NULL;
}
