"""Builds the engine as the extension module ``npucoll._engine``: C11 behind cffi in API mode, one abi3 file.

setuptools finds :data:`ffibuilder` through ``cffi_modules`` in ``setup.py``. The declarations that Python sees are
read from ``include/npucoll.h`` itself, so that the two cannot differ.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
# setuptools wants paths relative to the directory it runs in, which is the repository root.
ROOT = HERE.parent


def declarations() -> str:
    """Return the part of npucoll.h that cffi can read: no preprocessor lines, no ``extern "C"``."""
    text = (HERE / "include" / "npucoll.h").read_text(encoding="utf-8")
    constants = re.findall(r"^#define (NPC_[A-Z_]+) (\d+)u?$", text, flags=re.MULTILINE)
    for name, value in constants:
        text = text.replace(f"[{name}]", f"[{value}]")
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    callbacks = [
        "int npucoll_poll(void);",
        "void *npucoll_alloc(void *user, int dtype, int ndim, const int64_t *shape, const int64_t *counts);",
    ]
    return "\n".join([text, *(f'extern "Python" {callback}' for callback in callbacks)])


def sources() -> list[str]:
    """Return the engine's C files, relative to the repository root."""
    return sorted(os.path.relpath(str(path), str(ROOT)) for path in (HERE / "src").glob("*.c"))


ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "npucoll._engine",
    '#include "npucoll.h"',
    sources=sources(),
    include_dirs=["native/include", "native/src"],
    depends=[os.path.relpath(str(path), str(ROOT)) for path in HERE.glob("*/*.h")],
    extra_compile_args=["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
