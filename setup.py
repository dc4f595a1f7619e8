"""The part of the build that pyproject.toml cannot say: the compiled engine, as one abi3 wheel."""

from setuptools import setup

setup(
    cffi_modules=["native/build_engine.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp37"}},
)
