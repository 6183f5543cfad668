"""Builds the C engine; all metadata is in pyproject.toml, which has no key for cffi modules."""

from setuptools import setup

setup(cffi_modules=["engine/_build.py:ffi"])
