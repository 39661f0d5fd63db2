"""A Slurm of one node on 127.0.0.1, from a generated configuration; needs root and four daemons."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", *DAEMONS)
SETTINGS = """\
ClusterName=plk
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait=5
MinJobAge=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PATIENCE = 60.0
"""Seconds in which a daemon must answer."""


def missing() -> str | None:
    """Return why no cluster can be started here, None where one can."""
    absent = [name for name in COMMANDS if shutil.which(name, path=search_path()) is None]
    if absent:
        return f"no Slurm here ({', '.join(absent)} not on PATH): make test-slurm installs it"
    if os.geteuid() != 0:
        return "Slurm's daemons start as root alone"
    return None


def search_path() -> str:
    """Return PATH with the folders of daemons, which it may lack."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class OneNode:
    """Daemons that run, with all of their files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """Write the configuration and the key that the daemons share."""
        for name in ("spool", "state"):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        settings = SETTINGS.format(
            host=socket.gethostname().partition(".")[0],
            folder=self.folder,
            controller_port=free_port(),
            node_port=free_port(),
            cores=len(os.sched_getaffinity(0)),
        )
        (self.folder / "slurm.conf").write_text(settings)

    def start(self, name: str) -> None:
        """Start the daemon of that name, in the foreground."""
        commands = {
            "munged": [
                "--foreground",
                "--force",
                f"--socket={self.folder}/munge.socket",
                f"--key-file={self.folder}/munge.key",
                f"--log-file={self.folder}/munged.log",
                f"--pid-file={self.folder}/munged.pid",
                f"--seed-file={self.folder}/munged.seed",
            ],
            "slurmctld": ["-D"],
            "slurmd": ["-D"],
        }
        program = shutil.which(name, path=search_path())
        assert program is not None
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                [program, *commands[name]], env=self.environment, stdout=out, stderr=out
            )

    def kill(self, name: str) -> None:
        """End a daemon at once, without a word."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def close(self) -> None:
        """Cancel what is left and end all daemons."""
        if "slurmctld" in self.daemons:
            self.ask("scancel", "--user=root", check=False)
            self._wait_for_no_job()
        for process in reversed(self.daemons.values()):
            process.send_signal(signal.SIGTERM)
        for process in self.daemons.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ask(self, *command: str, check: bool = True) -> str:
        """Return what a command of Slurm prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def wait_until_idle(self) -> None:
        """Return once the node takes jobs."""
        deadline = time.monotonic() + PATIENCE
        while "idle" not in self.ask("sinfo", "--noheader", "--format=%T", check=False):
            assert time.monotonic() < deadline, self.logs()
            assert all(one.poll() is None for one in self.daemons.values()), self.logs()
            time.sleep(0.2)

    def _wait_for_no_job(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.ask("squeue", "--noheader", check=False).strip():
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)

    def logs(self) -> str:
        """Return the ends of all logs."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(paths))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def cluster(folder: Path) -> Iterator[OneNode]:
    """Give a cluster of one node that takes jobs; its daemons end with the block."""
    node = OneNode(folder)
    with ExitStack() as stack:
        node.prepare()
        stack.callback(node.close)
        node.start("munged")
        deadline = time.monotonic() + PATIENCE
        while not (folder / "munge.socket").exists():
            assert time.monotonic() < deadline, node.logs()
            time.sleep(0.05)
        for name in ("slurmctld", "slurmd"):
            node.start(name)
        node.wait_until_idle()
        yield node


def variables(node: OneNode) -> Mapping[str, str]:
    """Return what the environment of a command needs to find the cluster."""
    return {"SLURM_CONF": node.environment["SLURM_CONF"], "PATH": search_path()}
