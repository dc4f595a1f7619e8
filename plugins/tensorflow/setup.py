"""The part of the build that pyproject.toml cannot say: the operators, one plain C library for every Python and
TensorFlow.

It is no Python module, it only travels as one: TensorFlow loads it with ``tf.load_op_library``.
"""

import glob
import os
import shutil

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HEADER = "npucoll.h"
IN_REPOSITORY = os.path.join("..", "..", "native", "include")
IN_SDIST = "include"


def header_directory():
    """Return where npucoll.h is: the repository's one copy, or the one that the source distribution carries."""
    return IN_REPOSITORY if os.path.exists(os.path.join(IN_REPOSITORY, HEADER)) else IN_SDIST


class BuildOperators(build_ext):
    """Builds a library without a module's init function."""

    def get_export_symbols(self, ext):
        return []


class SourceDistribution(sdist):
    """Adds the engine's header, which lies outside this directory."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        target = os.path.join(base_dir, IN_SDIST)
        os.makedirs(target, exist_ok=True)
        shutil.copy(os.path.join(header_directory(), HEADER), target)


setup(
    ext_modules=[
        Extension(
            "npucoll_tensorflow._ops",
            sources=sorted(glob.glob("csrc/*.c")),
            depends=sorted(glob.glob("csrc/*.h")) + [os.path.join(header_directory(), HEADER)],
            include_dirs=["csrc", header_directory()],
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread"],
            libraries=["dl"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildOperators, "sdist": SourceDistribution},
    options={"bdist_wheel": {"py_limited_api": "cp37"}},
)
