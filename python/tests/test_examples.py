"""The examples in the documentation of the package run, in a world of one rank."""

import doctest
import importlib
import pkgutil

import numpy
import pytest

import hexagram
from hexagram.testing import alone

MODULES = [name for _, name, _ in pkgutil.iter_modules(hexagram.__path__, "hexagram.") if "torch" not in name]


def examples_of(module):
    """Returns the examples of a module and of its public names, including the classes written in Rust."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [example for example in finder.find(module, module.__name__) if example.examples]


@pytest.mark.parametrize("name", ["hexagram", *MODULES])
def test_examples(name):
    if name == "hexagram.__main__":
        pytest.skip("it runs the program")
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    with alone() as world:
        given = {"hexagram": hexagram, "numpy": numpy, "world": world, "comm": world.communicator}
        given["service"] = world.service()
        for example in examples_of(module):
            example.globs = {**vars(module), **given}
            runner.run(example)
    assert runner.summarize(verbose=False).failed == 0


def test_examples_are_found():
    found = [
        example.name
        for name in ("hexagram", "hexagram.asynchronous")
        for example in examples_of(importlib.import_module(name))
    ]
    assert "hexagram.Communicator.all_reduce" in found and "hexagram.asynchronous.Service.window" in found
