"""One line on stderr and an exit code instead of a traceback."""
import sys


class Failure(Exception):
    """Something the user can act on."""

    exit_code = 1  # the input itself is bad


class UsageFailure(Failure):
    exit_code = 2  # a bad flag, value, path or combination


def run(main) -> None:
    """Runs main() and ends the process with 0, or with one line and the failure's exit code."""
    program = sys.argv[0].rsplit("/", 1)[-1]
    try:
        main()
    except Failure as failure:
        print(f"{program}: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
    except OSError as error:
        print(f"{program}: {error.filename or 'I/O'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
