"""Every launcher format: what it makes of good variables, and of bad ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import pytest

from npucoll.bootstrap.detect import LAUNCHERS, explain, identify
from npucoll.bootstrap.identity import Identity, place, place_evenly
from npucoll.bootstrap.launching import launcher_process
from npucoll.bootstrap.slurm import tasks_per_node
from npucoll.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]

NPUCOLL = {"NPUCOLL_RANK": "1", "NPUCOLL_SIZE": "3", "NPUCOLL_JOB": "abc"}
RANK_ENV = {"RANK_ID": "1", "RANK_SIZE": "4", "JOB_ID": "10087"}
CM = {
    "CM_CHIEF_IP": "10.0.0.1",
    "CM_CHIEF_PORT": "6000",
    "CM_CHIEF_DEVICE": "4",
    "CM_WORKER_SIZE": "2",
    "CM_WORKER_IP": "10.0.0.1",
    "ASCEND_DEVICE_ID": "5",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_NAMESPACE": "prterun-1@1",
    "PMIX_RANK": "3",
}
MPICH = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMI_FD": "9",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "PMI_RANK": "2",
    "PMI_SIZE": "3",
    "PMIX_RANK": "2",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
}
CLUSTER = {"cluster": {"chief": ["a:1"], "worker": ["b:1", "a:2"]}, "task": {"type": "worker", "index": 1}}
TF_CONFIG = {"TF_CONFIG": json.dumps(CLUSTER)}


def numbers(found: Identity) -> Tuple[int, ...]:
    return found.rank, found.size, found.local_rank, found.local_size, found.node_rank, found.node_count


def servers(*sizes: int, rank_ids: Optional[List[str]] = None) -> Dict[str, Any]:
    """Return a rank table 1.0 with servers of these sizes."""
    ids = iter(rank_ids or [str(rank) for rank in range(sum(sizes))])
    return {
        "status": "completed",
        "version": "1.0",
        "server_count": str(len(sizes)),
        "server_list": [
            {
                "server_id": f"10.0.0.{number}",
                "host_nic_ip": "reserve",
                "device": [{"device_id": str(d), "device_ip": "1.2.3.4", "rank_id": next(ids)} for d in range(size)],
            }
            for number, size in enumerate(sizes)
        ],
    }


GROUPS = {
    "status": "completed",
    "group_count": "1",
    "group_list": [
        {
            "group_name": "job",
            "device_count": "3",
            "instance_count": "2",
            "instance_list": [
                {"pod_name": "pod-a", "server_id": "h1", "devices": [{"device_id": "0"}, {"device_id": "1"}]},
                {"pod_name": "pod-b", "server_id": "h2", "devices": [{"device_id": "4"}]},
            ],
        }
    ],
}


@pytest.fixture
def table(tmp_path: Path) -> Any:
    def write(content: Any, **env: str) -> Dict[str, str]:
        path = tmp_path / "table.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return {"RANK_TABLE_FILE": str(path), **env}

    return write


@pytest.mark.parametrize(
    ("env", "source", "expected"),
    [
        ({}, "single", (0, 1, 0, 1, 0, 1)),
        (NPUCOLL, "npucoll run", (1, 3, 1, 3, 0, 1)),
        (RANK_ENV, "RANK_ID/RANK_SIZE", (1, 4, 1, 4, 0, 1)),
        ({"RANK_ID": "localhost-2020", "RANK_SIZE": "1"}, "RANK_ID/RANK_SIZE", (0, 1, 0, 1, 0, 1)),
        ({"RANK_SIZE": "1", "RANK_TABLE_FILE": "/gone.json", "RANK_ID": "0"}, "RANK_ID/RANK_SIZE", (0, 1, 0, 1, 0, 1)),
        (CM, "CM_*", (1, 2, 1, 2, 0, 1)),
        (OPEN_MPI, "Open MPI", (3, 4, 1, 2, 1, 2)),
        (MPICH, "MPICH/PMI", (1, 2, 1, 2, 0, 1)),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x", "PMIX_SIZE": "2"}, "PMIx", (1, 2, 1, 2, 0, 1)),
        (SLURM, "Slurm", (2, 3, 0, 1, 1, 2)),
        (TORCHRUN, "torchrun", (3, 4, 1, 2, 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "torchrun", (1, 2, 1, 2, 0, 1)),
        (HOROVOD, "Horovod", (1, 2, 1, 2, 0, 1)),
        (TF_CONFIG, "TF_CONFIG", (2, 3, 1, 2, 0, 2)),
    ],
)
def test_formats(env: Mapping[str, str], source: str, expected: Tuple[int, ...]) -> None:
    found = identify(env)
    assert (found.source, numbers(found)) == (source, expected)
    assert found.detail


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_variable_is_unset(blank: str) -> None:
    assert identify({"RANK_ID": blank, "RANK_SIZE": blank, "TF_CONFIG": blank, "RANK": blank}).source == "single"


def test_the_documented_order_decides() -> None:
    order = [NPUCOLL, RANK_ENV, OPEN_MPI, MPICH, SLURM, TORCHRUN, HOROVOD, TF_CONFIG]
    sources = []
    while order:
        env: Dict[str, str] = {}
        for variables in order:
            env.update({name: value for name, value in variables.items() if name not in env})
        # Their own test says how launchers inside a Slurm step are told apart.
        if order[0] is SLURM:
            env.pop("TORCHELASTIC_RUN_ID")
            env.pop("HOROVOD_RANK")
        sources.append(identify(env).source)
        order.pop(0)
    assert sources == [
        "npucoll run",
        "RANK_ID/RANK_SIZE",
        "Open MPI",
        "MPICH/PMI",
        "Slurm",
        "torchrun",
        "Horovod",
        "TF_CONFIG",
    ]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NPUCOLL_RANK": "1"}, "NPUCOLL_RANK is set, but NPUCOLL_SIZE is not"),
        ({"NPUCOLL_SIZE": "1"}, "NPUCOLL_SIZE is set, but NPUCOLL_RANK is not"),
        ({"NPUCOLL_RANK": "3", "NPUCOLL_SIZE": "3"}, "rank 3 does not exist: the size is 3, so it must be 0 to 2"),
        ({"NPUCOLL_RANK": "-1", "NPUCOLL_SIZE": "3"}, "NPUCOLL_RANK=-1 is below 0"),
        ({**NPUCOLL, "NPUCOLL_LOCAL_RANK": "0"}, "on a single host the local rank and size are the rank and size"),
        ({"RANK_ID": "4", "RANK_SIZE": "4"}, "rank 4 does not exist"),
        ({"RANK_ID": "one", "RANK_SIZE": "2"}, "RANK_ID='one' is not a whole number"),
        ({"RANK_ID": "0", "RANK_SIZE": "0"}, "RANK_SIZE=0 is below 1"),
        ({"RANK_SIZE": "4"}, "RANK_SIZE=4, but RANK_ID is not set"),
        ({"RANK_ID": "1"}, "RANK_ID=1, but RANK_SIZE is not set"),
        ({**RANK_ENV, "CM_CHIEF_IP": "10.0.0.1"}, "keep RANK_\\* or CM_\\*"),
        ({**CM, "RANK_ID": "1"}, "CM_CHIEF_IP=10.0.0.1 and RANK_ID=1 are both set"),
        ({**CM, "CM_WORKER_IP": "10.0.0.2"}, "two hosts"),
        ({**CM, "ASCEND_DEVICE_ID": "6"}, "device 6 is none of the 2 devices"),
        ({"CM_CHIEF_IP": "10.0.0.1"}, "CM_CHIEF_IP is set, but CM_WORKER_SIZE is not"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not"),
        ({"PMI_RANK": "0"}, "PMI_SIZE is not"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}, "no variable says how many ranks there are"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "many"}, "is not of the form"),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "LOCAL_WORLD_SIZE is not set"),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK is not"),
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE is not"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
        ({"TF_CONFIG": "[]"}, "not a JSON object"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "no task"),
        ({"TF_CONFIG": '{"cluster": {"ps": ["a:1"], "worker": ["a:2"]}, "task": {"type": "ps"}}'}, "parameter servers"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief"}}'}, "does not list"),
    ],
)
def test_contradictions_are_errors(env: Mapping[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        identify(env)


@pytest.mark.parametrize("variable", ["RANK_ID", "WORLD_SIZE"])
def test_a_lone_variable_warns_that_there_is_one_rank(variable: str) -> None:
    env = {"RANK_ID": {"RANK_ID": "0"}, "WORLD_SIZE": {"WORLD_SIZE": "4"}}[variable]
    with pytest.warns(UserWarning, match=f"{variable}=. *, but .* is not set: npucoll runs as one rank"):
        assert identify(env).size == 1


def test_jobs_have_names_of_their_own() -> None:
    def job(env: Mapping[str, str], **changes: str) -> str:
        return identify({**env, **changes}).job

    assert job(NPUCOLL) == "abc"
    assert job(RANK_ENV) != job(RANK_ENV, JOB_ID="other")
    assert job(RANK_ENV) == job(RANK_ENV, RANK_ID="0")
    assert job(OPEN_MPI) != job(OPEN_MPI, PMIX_NAMESPACE="prterun-2@1")
    assert job(SLURM) != job(SLURM, SLURM_STEP_ID="1")
    assert job(TORCHRUN) != job(TORCHRUN, MASTER_PORT="29501")
    assert job(TORCHRUN) != job(TORCHRUN, TORCHELASTIC_RESTART_COUNT="1")
    assert job(HOROVOD) != job(HOROVOD, HOROVOD_GLOO_RENDEZVOUS_PORT="4712")


# -- rank tables


def test_rank_table(table: Any) -> None:
    env = table(servers(2, 3), RANK_ID="3", JOB_ID="1")
    found = identify(env)
    assert (found.source, numbers(found)) == ("rank table", (3, 5, 1, 3, 1, 2))
    assert identify({**env, "RANK_ID": "0"}).job == found.job
    assert identify({**env, "JOB_ID": "2"}).job != found.job
    assert identify(table(servers(2, 2), RANK_ID="3", JOB_ID="1")).job != found.job


def test_rank_table_in_another_layout_is_the_same_job(table: Any) -> None:
    first = identify(table(servers(2), RANK_ID="0")).job
    assert identify(table(json.dumps(servers(2), indent=4, sort_keys=True), RANK_ID="1")).job == first


def test_rank_table_order_is_by_rank_id(table: Any) -> None:
    content = servers(2, rank_ids=["1", "0"])
    assert "device 1" in identify(table(content, RANK_ID="0")).detail


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"RANK_ID": "2"}, (2, 3, 0, 1, 1, 2)),
        ({"POD_NAME": "pod-b"}, (2, 3, 0, 1, 1, 2)),
        ({"RANK_ID": "pod-b"}, (2, 3, 0, 1, 1, 2)),
        ({"POD_NAME": "pod-a", "DEVICE_ID": "1"}, (1, 3, 1, 2, 0, 2)),
    ],
)
def test_older_rank_table(table: Any, env: Mapping[str, str], expected: Tuple[int, ...]) -> None:
    assert numbers(identify(table(GROUPS, **env))) == expected


@pytest.mark.parametrize(
    ("content", "env", "words"),
    [
        ("{", {"RANK_ID": "0"}, "is not JSON"),
        ([], {"RANK_ID": "0"}, "not a JSON object"),
        ({}, {"RANK_ID": "0"}, "neither a server_list nor a group_list"),
        ({**servers(2), "status": "initializing"}, {"RANK_ID": "0"}, "status is 'initializing'"),
        ({**servers(2), "server_count": "2"}, {"RANK_ID": "0"}, "server_count is 2, but server_list has 1"),
        ({"server_list": [{}]}, {"RANK_ID": "0"}, "lacks 'server_id'"),
        ({"server_list": []}, {"RANK_ID": "0"}, "lists no devices"),
        (servers(2, rank_ids=["0", "0"]), {"RANK_ID": "0"}, "rank_id 0 occurs twice"),
        (servers(2, rank_ids=["0", "2"]), {"RANK_ID": "0"}, "rank_id 1 is missing"),
        (servers(2, rank_ids=["0", "x"]), {"RANK_ID": "0"}, "rank_id 'x' is not a number"),
        (
            servers(2, 2, rank_ids=["0", "2", "1", "3"]),
            {"RANK_ID": "0"},
            "ranks of server 10.0.0.0 are not consecutive",
        ),
        (servers(2), {"RANK_ID": "2"}, "RANK_ID=2, but the rank table .* lists 2 ranks only"),
        (servers(2), {"RANK_ID": "0", "RANK_SIZE": "4"}, "RANK_SIZE=4, but the rank table .* lists 2 ranks"),
        (servers(2), {}, "RANK_TABLE_FILE=.* is set, but RANK_ID is not"),
        (GROUPS, {"POD_NAME": "pod-c"}, "does not say which rank this process is"),
        (GROUPS, {"POD_NAME": "pod-a"}, "does not say which rank this process is"),
    ],
)
def test_bad_rank_tables(table: Any, content: Any, env: Mapping[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        identify(table(content, **env))


def test_a_missing_rank_table_is_told() -> None:
    with pytest.raises(ConfigError, match="/gone.json cannot be read: No such file"):
        identify({"RANK_TABLE_FILE": "/gone.json", "RANK_ID": "0"})


def test_a_table_of_one_rank_needs_no_rank_id(table: Any) -> None:
    assert identify(table(servers(1))).size == 1


# -- Slurm, TF_CONFIG, MPI


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": ""},  # an allocation
        {"SLURM_STEP_ID": "4294967291"},  # a batch script
        {"SLURM_STEP_ID": "4294967290"},  # an interactive shell
    ],
)
def test_slurm_counts_only_inside_a_step(changes: Mapping[str, str]) -> None:
    env = {name: value for name, value in SLURM.items() if not name.startswith("PMI")}
    assert identify({**env, **changes}).source == "single"


@pytest.mark.parametrize(("inner", "source"), [(TORCHRUN, "torchrun"), (HOROVOD, "Horovod")])
def test_a_launcher_inside_a_slurm_step_is_nearer(inner: Mapping[str, str], source: str) -> None:
    assert identify({**SLURM, **inner}).source == source


@pytest.mark.parametrize(("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2)", [1, 2, 2])])
def test_tasks_per_node(text: str, counts: List[int]) -> None:
    assert tasks_per_node(text) == counts


def test_evaluator_is_one_rank_of_its_own() -> None:
    content = {"cluster": CLUSTER["cluster"], "task": {"type": "evaluator", "index": 0}}
    found = identify({"TF_CONFIG": json.dumps(content)})
    assert found.size == 1
    assert found.job != identify(TF_CONFIG).job


def test_tf_config_without_a_cluster_says_nothing() -> None:
    assert identify({"TF_CONFIG": '{"environment": "cloud"}'}).source == "single"


def test_the_launcher_is_found_through_shells() -> None:
    """Ranks of an MPI that names no job share the process that started them, whatever lies between."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from npucoll.bootstrap.detect import identify; print(identify().job)"
    )
    env = {**os.environ, **MPICH}
    direct = [sys.executable, "-c", code, str(ROOT)]
    shell = ["sh", "-c", '"$@"; true', "sh", *direct]
    jobs = {subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=True).stdout for argv in (direct, shell)}
    assert len(jobs) == 1
    assert launcher_process("NO_SUCH_VARIABLE", pid=os.getpid()).startswith(f"{os.getpid()}.")


# -- identities


def test_place() -> None:
    hosts = ["a", "a", "b", "c", "c"]
    assert [place(rank, hosts) for rank in range(5)] == [
        (0, 2, 0, 3),
        (1, 2, 0, 3),
        (0, 1, 1, 3),
        (0, 2, 2, 3),
        (1, 2, 2, 3),
    ]
    assert place_evenly(5, 6, 1, 4) == (1, 4, 1, 2)
    assert place_evenly(1, 2, 1, 2) == (1, 2, 0, 1)


@pytest.mark.parametrize(
    "values", [(2, 2, 0, 1, 0, 2), (0, 0, 0, 1, 0, 1), (0, 2, 2, 2, 0, 2), (0, 2, 0, 1, 2, 2), (0, 2, 0, 3, 0, 2)]
)
def test_impossible_identities_are_refused(values: Tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="test"):
        Identity(*values, job="", source="test", detail="")


def test_explain_tells_about_every_format() -> None:
    findings = explain({**RANK_ENV, "PMI_RANK": "0"})
    assert [finding.name for finding in findings] == [name for name, _ in LAUNCHERS]
    by_name = {finding.name: finding for finding in findings}
    assert by_name["RANK_ID/RANK_SIZE"].identity is not None
    assert by_name["MPICH/PMI"].error is not None and by_name["MPICH/PMI"].identity is None
    assert by_name["Slurm"][1:] == (None, None)


def test_a_plugins_launcher_is_asked_in_its_place() -> None:
    mine = Identity.on_one_host(0, 2, job="mine", source="mine", detail="")
    assert identify(RANK_ENV, [("mine", lambda env: mine), *LAUNCHERS]) is mine
    assert identify(RANK_ENV, [*LAUNCHERS, ("mine", lambda env: mine)]).source == "RANK_ID/RANK_SIZE"
