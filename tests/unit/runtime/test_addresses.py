"""At which addresses a server is reached, by real sockets: with both families of addresses, and with one."""

from __future__ import annotations

import ast
import functools
import importlib.util
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_operator.manifests.server import vllm_arguments
from llmservice_runtime.contract import FailureReason
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor import addresses, vllm_process
from llmservice_runtime.supervisor.client import http_request
from llmservice_vllm.versions import default_version

from tests.support.patience import PATIENCE
from tests.unit.decide_world import an_llmservice
from tests.unit.runtime.runtime_harness import supervised

RENDERED = vllm_arguments(LLMService.from_object(an_llmservice({"model": {"uri": "file:///m"}})), default_version())
HOST = ("--host", RENDERED[RENDERED.index("--host") + 1])
"""As the operator renders it."""
CREATES = "create_server_socket"
NETWORK = ("unshare", "--user", "--map-root-user", "--net")


@functools.cache
def no_namespace() -> str:
    """Why a test cannot have a network of its own; empty: it can."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "unshare or ip is not installed"
    ended = subprocess.run((*NETWORK, "ip", "link", "set", "lo", "up"), check=False, capture_output=True, text=True)
    return ended.stderr.strip() and f"no network namespace: {ended.stderr.strip()}"


@pytest.fixture
def network() -> None:
    if why := no_namespace():
        pytest.skip(why)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_server_is_reached_in_either_family(tmp_path: Path, address: str) -> None:
    async with supervised(tmp_path, flags=HOST) as server:
        await server.ready()
        assert (await http_request(server.port, "/health", timeout=PATIENCE, host=address)).status == 200
        assert (await http_request(server.options.state_port, "/readyz", timeout=PATIENCE, host=address)).status == 200


async def test_a_server_on_a_node_without_ipv6_serves(tmp_path: Path) -> None:
    async with supervised(tmp_path, flags=HOST, has_ipv6=False) as server:
        await server.ready()
        assert (await server.complete()).status == 200
        assert "this node has no IPv6 (Address family not supported by protocol): vLLM gets --host 0.0.0.0" in "".join(
            server.log
        )


@pytest.mark.vllm
def test_vllms_own_socket_takes_both_families() -> None:
    """By its sources: importing them would import torch."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("needs the vllm dependency group")
    texts = [path.read_text() for path in (Path(found.origin).parent / "entrypoints").rglob("*.py")]
    (text,) = (text for text in texts if f"def {CREATES}(" in text)
    (function,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == CREATES)
    names: dict[str, Any] = {"socket": socket, "is_valid_ipv6_address": lambda host: ":" in host}
    exec(compile(ast.Module([function], []), CREATES, "exec"), names)
    with names[CREATES]((HOST[1], 0), reuse_port=False) as opened:
        opened.listen()
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, opened.getsockname()[1])).close()


SETTINGS = {
    "both families": ("", "::", ["127.0.0.1", "::1"]),
    "IPv6 is off": ("conf/all/disable_ipv6", "::", ["127.0.0.1"]),
    "one family a socket": ("bindv6only", "0.0.0.0", ["127.0.0.1"]),
}
BINDS = """
import socket, sys
from pathlib import Path
from llmservice_runtime.supervisor import addresses
if sys.argv[1]:
    Path("/proc/sys/net/ipv6", sys.argv[1]).write_text("1")
host = addresses.EVERY_IPV4 if addresses.only_ipv4("::") else "::"
opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
opened.bind((host, 8000))
opened.listen()
print(host)
for address in ("127.0.0.1", "::1"):
    try:
        socket.create_connection((address, 8000)).close()
        print(address)
    except OSError:
        pass
"""


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_network_with_other_settings(name: str) -> None:
    setting, host, reached = SETTINGS[name]
    assert in_network("ip link set lo up", BINDS, setting) == [host, *reached]


PODS = {
    "IPv4": (["10.9.9.9"], ["10.9.9.9"]),
    "IPv6": (["fd00::5"], ["fd00::5"]),
    "both": (["10.9.9.9", "fd00::5"], ["10.9.9.9", "fd00::5"]),
    "none": ([], []),
}
FINDS = "from llmservice_runtime.supervisor import addresses\nprint(*addresses.of_pod(), sep='\\n')"


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("name", PODS)
def test_the_pods_own_addresses(name: str) -> None:
    given, found = PODS[name]
    commands = ["ip link set lo up"]
    for each in given:
        # An IPv6 address is no source until the kernel has looked whether another host has it.
        at_once = " nodad" if ":" in each else ""
        commands += [f"ip addr add {each} dev lo{at_once}", f"ip route add default dev lo src {each}"]
    assert in_network(" && ".join(commands), FINDS) == found


def in_network(commands: str, script: str, *arguments: str) -> list[str]:
    """The lines that a script prints in a network of its own."""
    shell = f'{commands} && exec "$@"'
    command = (*NETWORK, "sh", "-ec", shell, "sh", sys.executable, "-c", script, *arguments)
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


async def test_a_server_that_is_healthy_on_loopback_alone_is_not_ready(tmp_path: Path) -> None:
    """As one of IPv4 in a pod that has an address of IPv6 only."""
    own = functools.partial(tuple, ("127.0.0.2",))
    async with supervised(tmp_path, flags=("--host", "127.0.0.1"), pod_addresses=own) as server:
        failure = await server.failed()
    assert failure.reason is FailureReason.INVALID_CONFIGURATION
    assert f"refuses connections to port {server.port} of 127.0.0.2" in failure.message
    assert "--host ::" in failure.remedy


async def test_one_family_of_two_is_enough_and_the_other_is_named(tmp_path: Path) -> None:
    own = functools.partial(tuple, ("127.0.0.1", "::1"))
    async with supervised(tmp_path, flags=("--host", "0.0.0.0"), pod_addresses=own) as server:
        await server.ready()
        assert "clients are refused at ::1, since vLLM listens at 0.0.0.0" in "".join(server.log)


async def test_no_answer_is_no_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert await addresses.refused(silent.getsockname()[1], ("127.0.0.1", "127.0.0.2")) == ("127.0.0.2",)


PROXIES = {
    "uvicorn's own": (None, "127.0.0.1,::1,::ffff:127.0.0.1"),
    "an address": ("10.0.0.1", "10.0.0.1,::ffff:10.0.0.1"),
    "networks": ("10.0.0.0/8, 192.168.0.0/16", "10.0.0.0/8,192.168.0.0/16,::ffff:10.0.0.0/104,::ffff:192.168.0.0/112"),
    "IPv6": ("fd00::/8", "fd00::/8"),
    "all": ("*", "*"),
    "none": ("", ""),
    "a socket's name": ("unix:/a", "unix:/a"),
    "given in both forms": ("10.0.0.1,::ffff:10.0.0.1", "10.0.0.1,::ffff:10.0.0.1"),
}


@pytest.mark.parametrize("name", PROXIES)
def test_proxies_that_vllm_trusts_are_trusted_by_either_form_of_their_address(name: str) -> None:
    given, trusted = PROXIES[name]
    inherited = {} if given is None else {"FORWARDED_ALLOW_IPS": given}
    for host, expected in (("::", trusted), ("0.0.0.0", given)):
        flags = vllm_process.read_flags(("--host", host))
        found = vllm_process.environment(ServeOptions(accelerator="cpu"), flags, inherited, print)
        assert found.get("FORWARDED_ALLOW_IPS") == expected


def test_uvicorn_reads_such_networks() -> None:
    proxy_headers = pytest.importorskip("uvicorn.middleware.proxy_headers")
    trusted = proxy_headers._TrustedHosts(addresses.trusted_proxies("10.0.0.0/8,192.168.1.1"))
    seen = ("::ffff:10.1.2.3", "10.1.2.3", "::ffff:192.168.1.1", "::ffff:11.0.0.1", "::ffff:192.168.1.2")
    assert [address in trusted for address in seen] == [True, True, True, False, False]


def test_what_asyncio_raises_after_a_time_is_caught_in_python_3_10_too() -> None:
    """There asyncio.TimeoutError is neither the builtin TimeoutError nor an OSError."""
    root = Path(str(addresses.__file__)).parent.parent
    found = [
        f"{path.relative_to(root)}:{handler.lineno}"
        for path in sorted(root.rglob("*.py"))
        for block in ast.walk(ast.parse(path.read_text()))
        if isinstance(block, ast.Try) and any("asyncio.wait_for" in ast.unparse(step) for step in block.body)
        for handler in block.handlers
        if handler.type is not None and "TimeoutError" in ast.unparse(handler.type).replace("asyncio.TimeoutError", "")
    ]
    assert not found
