"""What the commands share: how flags are read, and how a run ends, whatever happens in it."""

import argparse
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, NoReturn

from refimpl.contract import CheckpointError, ContractError, UsageError, host
from refimpl.interrupt import Brake, brake

__all__ = ["Parser", "check_unicode", "guard", "run_program"]

_NO_VALUE = re.compile(r"(--?[A-Za-z][\w-]*)=--|(-[hi]*[A-Za-z])--")  # -h and -i take none, others may follow them


class Parser(argparse.ArgumentParser):
    """An ArgumentParser of words and flags, whose complaint is one exception, and so one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def print_help(self, file: IO[str] | Any = None) -> None:
        out = file or sys.stdout  # argparse itself passes over a stream that takes nothing
        if out is None:
            raise UsageError("standard output is closed")
        out.write(self.format_help())

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse flags with ``words`` around them; after -- all are words."""
        end = list(argv).index("--") if "--" in argv else len(argv)
        options = self.parse_intermixed_args([_flag(argument) for argument in argv[:end]])
        options.words += argv[end + 1 :]
        return options


def _flag(argument: str) -> str:
    """Write a long flag with hyphens; its value stays. It is not --, which argparse would take for no value at all.

    >>> _flag("--top_p=a_b"), _flag("a_b")
    ('--top-p=a_b', 'a_b')
    """
    bare = _NO_VALUE.fullmatch(argument)
    if bare:
        raise UsageError(f"argument {bare[1] or bare[2]}: expected a value, got --")
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else argument


@host
def check_unicode(text: str, where: str) -> str:
    """Return ``text`` if it has a UTF-8 form; bytes of the command line that are not UTF-8 come as lone surrogates.

    >>> check_unicode("Grüße", "the prompt")
    'Grüße'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where} is not valid UTF-8") from None
    return text


def _fail(name: str, message: str) -> int:
    """Say in one line why it cannot be done; return the exit code."""
    if sys.stderr is not None:
        line = " ".join(message.split())
        with contextlib.suppress(OSError, ValueError):
            print(f"{name}: error:", line if len(line) <= 500 else line[:500] + " ...", file=sys.stderr, flush=True)
    return 2


def _drop_output() -> None:
    """Give up a standard output that takes no more, so that Python's own flush at exit does not complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (AttributeError, ValueError):  # there is none, or it is closed
        pass


def _flushed(work: Callable[[], int]) -> int:
    """Do the work; what it printed must be out before it counts as done."""
    try:
        code = work()
    except SystemExit as leave:  # --help
        code = int(leave.code or 0)
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()
    return code


@host
def guard(name: str, work: Callable[[Brake], int]) -> int:
    """Do the work of a command and return its exit code; what goes wrong is one line on standard error.

    >>> guard("example", lambda hand: 0)
    0
    """
    with brake() as hand:
        return _guard(name, lambda: work(hand))


def _guard(name: str, work: Callable[[], int]) -> int:
    try:
        return _flushed(work)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough: no reason to complain
        _drop_output()
        return 2
    except (UsageError, CheckpointError, ContractError) as error:
        return _fail(name, str(error))
    except OSError as error:
        _drop_output()
        return _fail(name, f"{error.filename or 'input or output'}: {error.strerror or error}")
    except MemoryError:
        return _fail(name, "there is not enough memory for this model and this context")
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # it broke off what this error stumbled over
            return 130
        if sys.flags.dev_mode:  # python -X dev shows where
            raise
        return _fail(name, f"this is a fault of the program: {type(error).__name__}: {error}")


@host
def run_program(main: Callable[[], int]) -> NoReturn:
    """Run a command as this process, to the process's end."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, Brake())
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said; Python's own exit is short
    sys.exit(code)
