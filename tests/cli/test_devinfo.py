# SPDX-License-Identifier: MIT
"""``softverbs devinfo``: the layout of ibv_devinfo."""

import re

import pytest
from tests.cli.command import invoke, run

import softverbs
from softverbs.cli import devinfo


def values(text: str) -> dict[str, str]:
    """Label -> value, of every line that has both."""
    pairs = re.findall(r"^\t+([\w ]+|GID\[ *\d+\]):\t+(.*)$", text, re.MULTILINE)
    return dict(pairs)


def test_short() -> None:
    text = invoke("devinfo").output
    assert text.startswith("hca_id:\tsoftverbs0\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t")
    found = values(text)
    assert found["phys_port_cnt"] == "1"
    assert found["port"] == "1"
    assert found["state"] == "PORT_ACTIVE (4)"
    assert found["active_mtu"] == "4096 (5)"
    assert found["link_layer"] == "Ethernet"
    assert found["board_id"] == f"softverbs, {softverbs.core_build} core"
    assert re.fullmatch("([0-9a-f]{4}:){3}[0-9a-f]{4}", found["node_guid"])
    assert "max_qp_wr" not in found


def test_short_has_the_counters() -> None:
    text = invoke("devinfo").output
    assert values(text)["max_comp_cntr"] == "1024"
    assert values(text)["max_comp_cntr_value"] == "0xffffffffffffffff"
    operations = ("SEND", "RECV", "RDMA_READ", "REMOTE_RDMA_READ", "RDMA_WRITE", "REMOTE_RDMA_WRITE")
    lines = "".join(f"\t\t\t\t\tQP_ATTACH_{name}\n" for name in operations)
    assert f"\tcomp_cntr_caps:\n{lines}" in text


def test_counters_follow_the_options() -> None:
    env = {"SOFTVERBS_OPTIONS": "max_counters=7,counter_max_value=255,counter_ops=0x21"}
    text = invoke("devinfo", env=env).output
    assert values(text)["max_comp_cntr"] == "7"
    assert values(text)["max_comp_cntr_value"] == "0xff"
    assert "\tcomp_cntr_caps:\n\t\t\t\t\tQP_ATTACH_SEND\n\t\t\t\t\tQP_ATTACH_REMOTE_RDMA_WRITE\n\t\tport:" in text


def test_verbose() -> None:
    text = invoke("devinfo", "-v", env={"SOFTVERBS_ADDRESS": "127.0.7.1"}).output
    found = values(text)
    assert found["max_qp_wr"] == "32768"
    assert found["atomic_cap"] == "ATOMIC_HCA (1)"
    assert found["num_comp_vectors"] == "4"
    assert found["max_msg_sz"] == "0x40000000"
    assert found["phys_state"] == "LINK_UP (5)"
    assert found["GID[  0]"] == "::ffff:127.0.7.1, RoCE v2"
    assert "\t\t\t\t\tRC_RNR_NAK_GEN\n" in text


def test_values_are_aligned() -> None:
    lines = invoke("devinfo", "-v").output.expandtabs(8).splitlines()
    for line in lines:
        found = re.match(r"( +)[\w\[\] ]+: +(?=\S)", line)
        if found and found[1] != " " * 16:
            assert found.end() == (40 if found[1] == " " * 8 else 48), line


def test_list() -> None:
    assert invoke("devinfo", "-l").output == "1 HCA found:\n\tsoftverbs0\n\n"


def test_names() -> None:
    assert invoke("devinfo", "-d", "softverbs0").exit_code == 0
    other = invoke("devinfo", "-d", "mlx5_0")
    assert (other.exit_code, other.stderr) == (1, "softverbs: there is no device mlx5_0; there is softverbs0\n")


def test_ports() -> None:
    assert invoke("devinfo", "-i", "1").output.count("\t\tport:\t") == 1
    other = invoke("devinfo", "-i", "2")
    assert (other.exit_code, other.stderr) == (1, "softverbs: there is no port 2: softverbs0 has 1\n")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"SOFTVERBS_ADDRESS": "192.0.2.1"}, "192.0.2.1 is not an address of this machine"),
        ({"SOFTVERBS_ADDRESS": "nowhere"}, "'nowhere' is not an IPv4 or IPv6 address"),
        ({"SOFTVERBS_ADDRESS": "127.255.255.255"}, "127.255.255.255 is a broadcast address"),
        ({"SOFTVERBS_OPTIONS": "nonsense=1"}, "unknown device option 'nonsense'"),
        ({"SOFTVERBS_OPTIONS": "max_qp=\u0663"}, "not a number"),
        ({"SOFTVERBS_FAULTS": "nonsense=1"}, "nonsense"),
        ({"SOFTVERBS_FAULTS": "drop=\u0660.\u0665"}, "drop is a probability"),
        ({"SOFTVERBS_FAULTS": "create_cq:nth=\u0663"}, "nth is a number"),
    ],
)
def test_wrong_environment_is_one_line(env: dict[str, str], words: str) -> None:
    """It names the variable, its value and the reason."""
    done = run("devinfo", env=env)
    assert done.code == 1
    assert words in done.err and done.err.count("\n") == 1
    ((name, value),) = env.items()
    assert f"{name}={value}: " in done.err


def test_flags_without_a_name_are_shown() -> None:
    assert list(devinfo._flags({1: "IBV_X_ONE"}, "IBV_X_", 0x41)) == ["\t\t\t\t\tONE", "\t\t\t\t\tUnknown flags: 0x40"]


def test_numbers_without_a_word_are_shown() -> None:
    assert devinfo._word({}, 77) == "invalid value (77)"
    assert devinfo._mtu(9) == "invalid MTU (9)"
