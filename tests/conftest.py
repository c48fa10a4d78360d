"""Settings of all tests."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from tiers import MARKERS, guard, install, names_of, select, summary_of

# Deadlines are off, as how long an example takes says something of the machine. The suite tries the same examples in each run, so that
# what passed once passes again; `make fuzz` tries new ones.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("new examples", deadline=None)
settings.load_profile("new examples" if os.environ.get("QCONVERT_NEW_EXAMPLES") else "suite")

#: What the tests that were left out are, in words.
LEFT_OUT = pytest.StashKey[str]()


@pytest.fixture(scope="module")
def builder() -> Iterator[Any]:
    """TensorRT's builder."""
    from qconvert.runtimes.tensorrt import Builder

    found = Builder()
    yield found
    found.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run the tests of `make test`: core, formats and a cross-section of the others")


def pytest_configure(config: pytest.Config) -> None:
    install()
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_FromWorkers())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests without a marker as core, leave out what --quick leaves out, and what takes half a minute."""
    for item in items:
        if "core" in names_of(item):
            item.add_marker(pytest.mark.core)
        if "slow" in names_of(item) and not os.environ.get("QCONVERT_SLOW"):
            item.add_marker(pytest.mark.skip(reason="takes half a minute: make slow runs it"))
    if config.getoption("quick"):
        items[:], others = select(items)
        config.hook.pytest_deselected(items=others)
        config.stash[LEFT_OUT] = summary_of(others)


def pytest_collection_finish() -> None:
    """Fifteen thousand tests are millions of objects that stay: a collection of garbage, of which each conversion asks for some, need not
    look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with guard(names_of(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with guard(names_of(item)):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that prints."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash.get(LEFT_OUT, ""):
        terminalreporter.write_line(config.stash[LEFT_OUT])


class _FromWorkers:
    """Hears what workers of pytest-xdist tell."""

    def pytest_testnodedown(self, node: object) -> None:
        config, output = node.config, getattr(node, "workeroutput", {})  # type: ignore[attr-defined]
        config.stash[LEFT_OUT] = output.get("left_out", "")
