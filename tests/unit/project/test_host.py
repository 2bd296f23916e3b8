"""What tests need of the machine is said by name, and its control groups may be of either kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import clock, host

V1 = "12:cpu,cpuacct:/pod\n3:memory:/pod\n0::/pod\n"
QUOTA, PERIOD = "cpu/pod/cpu.cfs_quota_us", "cpu/pod/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("memberships", "files", "expected"),
    [
        (V1, {QUOTA: "-1\n", PERIOD: "100000\n"}, (QUOTA, "25000")),
        ("0::/pod\n", {"pod/cpu.max": "max 100000\n"}, ("pod/cpu.max", "25000 100000")),
    ],
    ids=["v1, and hybrid", "v2"],
)
def test_the_file_that_limits_the_cpu(
    tmp_path: Path, memberships: str, files: dict[str, str], expected: tuple[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    quota, limit = host.cpu_quota(memberships, 0.25, tmp_path)
    assert (str(quota.relative_to(tmp_path)), limit) == expected


def test_a_missing_cpu_feature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset({"avx2"}))
    host.need_cpu("avx2", "avx512f")
    with pytest.raises(pytest.skip.Exception, match="avx512f or amx_tile"):
        host.need_cpu("avx512f", "amx_tile")


def test_missing_control_groups_are_named(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cgroup.procs").touch()
    host.need_control_groups("cpu", root=tmp_path)
    with pytest.raises(pytest.skip.Exception, match="v1 \\(memory\\)"):
        host.need_control_groups("cpu", "memory", root=tmp_path)


def test_the_tests_clock_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.now()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert 0 <= clock.now() - before < 3600
