"""Virtual hosts, in real namespaces."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rollcall import errors
from rollcall.transport.virtual import traffic_shaping
from rollcall.transport.virtual.hosts import VirtualHost, hosts
from tests.rollcall_command import Runner

from .. import ranks

SRC = Path(errors.__file__).parent.parent
NOBODY = ("--reuid=65534", "--regid=65534", "--clear-groups")


def has_namespaces() -> bool:
    with hosts(1, tell=lambda _: None) as (host,):
        return bool(host.enter)


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="neither root nor user namespaces here")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def refuse(message: str) -> None:
    pytest.fail(f"said without need: {message}")


@contextmanager
def python(host: VirtualHost, script: str, *words: object, **env: object) -> Iterator["subprocess.Popen[str]"]:
    """A script on a host; ended at the end, come what may."""
    with subprocess.Popen(
        [*host.enter, sys.executable, "-u", "-c", textwrap.dedent(script), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ranks.clean_environ(**env),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by(host: VirtualHost, *command: str) -> str:
    return subprocess.run([*host.enter, *command], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


RECEIVE = """
import socket, sys
address, senders = sys.argv[1], int(sys.argv[2])
with socket.create_server((address, 0)) as server:
    print(server.getsockname()[1])
    accepted = [server.accept()[0] for _ in range(senders)]
    print("from", accepted[0].getpeername()[0])
    for connection in accepted:
        while connection.recv(1 << 16):
            pass
    print("all")
"""

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as connection:
    connection.sendall(bytes(int(sys.argv[3])))
"""


def seconds_to_send(size_bytes: int, receiver: VirtualHost, *senders: VirtualHost) -> float:
    """How long it takes until all of them have sent so much to one host."""
    with ExitStack() as running:
        receiving = running.enter_context(python(receiver, RECEIVE, receiver.address, len(senders)))
        port = read_line(receiving)
        began_s = time.monotonic()
        for sender in senders:
            running.enter_context(python(sender, SEND, receiver.address, port, size_bytes))
        assert read_line(receiving) in {f"from {sender.address}" for sender in senders}
        assert read_line(receiving) == "all"
        return time.monotonic() - began_s


@needs_namespaces
def test_hosts_reach_each_other_by_address() -> None:
    """The first host accepts a connection, and sees that it comes from the second host's address."""
    with hosts(2, tell=refuse) as (first, second):
        assert first.address != second.address
        seconds_to_send(1000, first, second)


@needs_namespaces
def test_the_last_of_64_hosts_is_reached() -> None:
    """As many hosts as there may be are all on one network."""
    with hosts(64, tell=refuse) as many:
        assert len({host.address for host in many}) == 64
        seconds_to_send(1000, many[-1], many[0])


@needs_namespaces
def test_each_host_has_its_hostname() -> None:
    """What a host calls itself is its name, while the machine keeps its own."""
    before = socket.gethostname()
    with hosts(2, tell=refuse) as pair:
        assert [said_by(host, "uname", "-n") for host in pair] == ["host-1", "host-2"]
        assert [host.name for host in pair] == ["host-1", "host-2"]
        assert socket.gethostname() == before


@needs_namespaces
def test_the_machines_own_network_is_untouched() -> None:
    """A host has lo and eth0; this machine's own namespace has neither the switch nor an end of a link."""
    with hosts(3, tell=refuse) as many:
        names = said_by(many[2], sys.executable, "-c", "import socket; print([n for _, n in socket.if_nameindex()])")
        assert re.search(r"'lo', .*'eth0'", names)
        # By name: others may make and remove links here meanwhile.
        assert not {"switch", "port1", "port2", "port3"} & {name for _, name in socket.if_nameindex()}


@needs_namespaces
def test_a_command_keeps_what_it_was_given(tmp_path: Path) -> None:
    """Folder, environment, open files, pipes and user of a command are those that it would have without a host."""
    reader, writer = os.pipe()
    ask = "import os, sys; print(os.getcwd(), os.environ['GIVEN'], os.getuid(), os.getgid(), input())"
    ask += f"; os.write({writer}, b'passed on')"
    with hosts(1, tell=refuse) as (host,), open(reader, "rb"):
        answer = subprocess.run(
            [*host.enter, sys.executable, "-c", ask],
            cwd=tmp_path,
            env={**os.environ, "GIVEN": "a b"},
            input="piped",
            stdout=subprocess.PIPE,
            pass_fds=(writer,),
            text=True,
            check=True,
        )
        os.close(writer)
        assert answer.stdout.strip() == f"{tmp_path} a b {os.getuid()} {os.getgid()} piped"
        assert os.read(reader, 100) == b"passed on"


@needs_namespaces
def test_the_process_is_the_command_itself() -> None:
    """Its pid is that of the script, so signals reach it, and its exit code or death is seen as it was."""
    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print(os.getpid())
        time.sleep(60)
    """
    with hosts(1, tell=refuse) as (host,):
        for number, code in (signal.SIGTERM, 7), (signal.SIGKILL, -signal.SIGKILL):
            with python(host, script) as process:
                assert read_line(process) == str(process.pid)
                process.send_signal(number)
                assert process.wait(60) == code


def namespaces_with_names() -> list[str]:
    """What `ip netns add` would make: the one way to keep a namespace without a process that has it."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - nsfs " in line]


@needs_namespaces
def test_nothing_is_left_after_the_block(rollcall: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts were open files of this process, which are closed; no process or name keeps a namespace."""
    name, _, mark = rollcall.mark.partition("=")
    monkeypatch.setenv(name, mark)
    open_before, names_before = os.listdir("/proc/self/fd"), namespaces_with_names()
    with hosts(2, tell=refuse):
        assert len(os.listdir("/proc/self/fd")) > len(open_before)
        assert not rollcall.processes()
        assert namespaces_with_names() == names_before
    assert os.listdir("/proc/self/fd") == open_before


HOLD = """
import signal
from rollcall.transport.virtual.hosts import hosts
with hosts(2) as (first, second):
    print(*first.enter)
    signal.pause()
"""


@needs_namespaces
def test_nothing_is_left_after_kill_9(rollcall: Runner) -> None:
    """When the process that made the hosts is killed with SIGKILL, nothing that belonged to it runs, has a name, or
    can be entered."""
    name, _, mark = rollcall.mark.partition("=")
    names_before = namespaces_with_names()
    with python(VirtualHost("here", "127.0.0.1", ()), HOLD, **{name: mark}) as holder:
        enter = read_line(holder).split()
        assert [process.pid for process in rollcall.processes()] == [holder.pid]
        subprocess.run([*enter, "true"], check=True)
        holder.kill()
        holder.wait(60)
        assert not rollcall.processes()
        assert namespaces_with_names() == names_before
        assert subprocess.run([*enter, "true"], capture_output=True, check=False).returncode != 0


@needs_namespaces
@pytest.mark.parametrize("senders", [1, 2], ids=["sending", "receiving"])
def test_link_limits(senders: int) -> None:
    """5 MB over --link 20mbit take two seconds, from one host, or from two of which each sends half."""
    with hosts(1 + senders, link="20mbit", tell=pytest.skip) as (receiver, *others):
        assert seconds_to_send(5_000_000 // senders, receiver, *others) > 1.5


ROUND_TRIP = """
import socket, sys, time
began_s = time.monotonic()
socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
print(time.monotonic() - began_s)
"""


@needs_namespaces
def test_delay_is_applied_or_said_to_be_missing() -> None:
    """With --delay 20ms a round trip takes 40 ms, with and without --link; a kernel without netem is named once."""
    for link in None, "100mbit":
        said: list[str] = []
        with hosts(2, link=link, delay="20ms", tell=said.append) as (first, second):
            if said:
                (message,) = said
                assert message.startswith("this kernel has no netem, so --delay 20ms is not applied: ")
                seconds_to_send(1000, first, second)
                continue
            with (
                python(first, RECEIVE, first.address, 1) as receiving,
                python(second, ROUND_TRIP, first.address, read_line(receiving)) as asking,
            ):
                assert float(read_line(asking)) >= 0.04


def test_delay_lies_inside_link() -> None:
    """tc is to put netem below tbf, as both cannot be a device's root."""
    lines = traffic_shaping.stacked("eth0", traffic_shaping.layers("1gbit", "2ms")).splitlines()
    assert lines[0].startswith("qdisc add dev eth0 root handle 1: tbf rate 1000000000bit burst 125000 ")
    assert lines[1].startswith("qdisc add dev eth0 parent 1:1 handle 2: netem delay 2ms ")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"count": 0}, "--virtual-hosts 0 is not possible: use a number from 1 to 64"),
        ({"count": 65}, "--virtual-hosts 65 is not possible: use a number from 1 to 64"),
        ({"link": "fast"}, "--link fast is not a rate: .* such as --link 100mbit"),
        ({"link": "0mbit"}, "--link 0mbit is not a rate"),
        ({"link": "1mbit; ls"}, "--link 1mbit; ls is not a rate"),
        ({"delay": "2"}, "--delay 2 is not a time: .* such as --delay 2ms"),
    ],
)
def test_bad_words_are_refused(options: dict[str, object], sentence: str) -> None:
    """What cannot be meant is named, with what can."""
    with pytest.raises(errors.UsageError, match=f"^{sentence}"), hosts(**{"count": 2, **options}):  # type: ignore[arg-type]
        pass


def test_without_tools_there_are_loopback_addresses(tmp_path: Path) -> None:
    """One line says that and why the hosts are only addresses, and which options are lost; programs run there."""
    said: list[str] = []
    with hosts(2, "1gbit", "2ms", tell=said.append, path=str(tmp_path)) as (first, second):
        assert (first.address, first.enter) == ("127.0.0.2", ())
        assert (second.address, second.enter) == ("127.0.0.3", ())
        seconds_to_send(1000, first, VirtualHost("", "127.0.0.1", ()))
    assert said == [
        "virtual hosts are only loopback addresses (127.0.0.2 to 127.0.0.3), without hostnames of their own, "
        "and without --link 1gbit --delay 2ms: ip is not installed (package iproute2)"
    ]


def test_without_tc_there_is_no_shaping(tmp_path: Path) -> None:
    """Hosts without tc have their network, and are told what it lacks."""
    for tool in "ip", "nsenter", "unshare":
        where = shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if where is None or not has_namespaces():
            pytest.skip("no namespaces here")
        (tmp_path / tool).symlink_to(where)
    said: list[str] = []
    with hosts(1, link="1gbit", tell=said.append, path=str(tmp_path)) as (host,):
        assert host.enter
    assert said == ["--link 1gbit is not applied: tc is not installed (package iproute2)"]


def python_for_all() -> str:
    """An interpreter that any user may start."""
    for candidate in sys.executable, "/usr/bin/python3":
        # By way of a shell: setpriv itself still has root's right to read everything.
        tried = subprocess.run(["setpriv", *NOBODY, "sh", "-c", '"$0" -c ""', candidate], capture_output=True)
        if tried.returncode == 0:
            return candidate
    pytest.skip("no interpreter that another user may start")


AS_NOBODY = """
import subprocess, sys
from rollcall.transport.virtual.hosts import hosts
with hosts(2, link="1gbit", tell=lambda message: print("told:", message)) as (first, second):
    print(first.address)
    show = "id -u; id -g; uname -n; grep CapEff /proc/self/status"
    subprocess.run([*second.enter, "sh", "-c", show], check=True)
    server = f"import socket; s = socket.create_server(({first.address!r}, 2000)); print(1, flush=True); s.accept()"
    client = f"import socket; print(socket.create_connection(({first.address!r}, 2000)).getsockname()[0])"
    with subprocess.Popen([*first.enter, sys.executable, "-c", server], stdout=subprocess.PIPE) as listening:
        listening.stdout.readline()
        print("seen from outside:", bool(open(f"/proc/{listening.pid}/environ").read()))
        subprocess.run([*second.enter, sys.executable, "-c", client], check=True, timeout=180)
"""


def as_nobody(*before: str) -> list[str]:
    done = subprocess.run(
        [*before, python_for_all(), "-u", "-c", AS_NOBODY],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=180,
    )
    return done.stdout.splitlines()


@needs_root
@needs_namespaces
def test_without_root_a_script_sees_its_own_user() -> None:
    """Another user than root has hosts as well; there, a command keeps its uid and gid and has no capabilities."""
    if subprocess.run(["setpriv", *NOBODY, "unshare", "--user", "--net", "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    lines = as_nobody("setpriv", *NOBODY)
    assert lines == [
        "10.53.0.1",
        "65534",
        "65534",
        "host-2",
        "CapEff:\t0000000000000000",
        "seen from outside: True",
        "10.53.0.2",
    ]


@needs_root
@needs_namespaces
def test_without_root_and_user_namespaces_there_are_loopback_addresses(tmp_path: Path) -> None:
    """A user in a changed root, whom the kernel refuses user namespaces, is told so and goes on."""
    jail = 'mount --rbind / "$0" && exec chroot --userspec=65534:65534 --groups= "$0" "$@"'
    told, address, *_ = as_nobody("unshare", "--mount", "sh", "-c", jail, str(tmp_path))
    assert address == "127.0.0.2"
    assert re.search(
        r"without --link 1gbit: user namespaces do not work here \(unshare: .*\): allow them, or be root", told
    )
