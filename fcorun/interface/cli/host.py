"""One of several hosts, which a Dask worker starts: the leader runs the command, and the others follow it."""

import sys

from fcorun.base.errors import HostLost, UserError
from fcorun.base.system.machine import close_hosts
from fcorun.runs.executors.dask_host import join_hosts, read_task


def main() -> None:
    """Compute as one of several hosts. Exit as the command does."""
    task, *place = read_task(int(sys.argv[1]))
    try:
        client = join_hosts(task, *place)
    except (HostLost, UserError) as error:
        print(f"fcorun: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    with client:
        if task.rank == 0:
            from fcorun.interface.cli.main import main as run_command

            sys.argv = ["fcorun", *task.arguments]
            run_command()
        else:
            from fcorun.runs.several_hosts import run_follower

            try:
                code = run_follower()
            except HostLost as error:
                print(f"fcorun: {error}", file=sys.stderr)
                code = 1
            close_hosts(code)


if __name__ == "__main__":
    main()
