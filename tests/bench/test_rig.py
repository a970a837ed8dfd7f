"""The benchmark's own arithmetic: the gate on foreign CPU use, the choice of samples, ratios, reading and writing."""

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def rig():
    """The modules of ``bench/rig``, by name."""
    sys.path.insert(0, str(BENCH))
    try:
        names = ("compare", "cpu", "model", "ours", "peers", "processes", "report", "rounds")
        yield {name: importlib.import_module(f"rig.{name}") for name in names}
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture
def snapshot(rig, monkeypatch):
    """Makes a snapshot of the CPU accounts, of a machine that counts without rounding."""
    monkeypatch.setattr(rig["cpu"], "TICK_NOISE", 0)

    def make(wall, busy, own, others, steal=0.0, own_kernel=0.0):
        return rig["cpu"].Snapshot(
            wall, busy, steal, own, own_kernel, {(pid, "1"): used for pid, used in others.items()}
        )

    return make


@pytest.fixture
def make_row(rig):
    """Makes a row from pairs of a value and whether it is clean."""
    model = rig["model"]

    def make(*samples, unit=model.LATENCY, wanted=3):
        case = model.Case(model.TURNS, "somebody", unit, 8, lambda plan: 0.0)
        return model.Row(case, [model.Sample(value, 0.0, 0.0, clean) for value, clean in samples], wanted=wanted)

    return make


def test_our_own_time_is_not_foreign(rig, snapshot):
    usage = rig["cpu"].between(snapshot(0, 10.0, 5.0, {1: 3.0}), snapshot(1, 11.91, 6.9, {1: 3.01}))
    assert usage.foreign == pytest.approx(0.01)
    assert not usage.disturbed(0.05)


def test_a_neighbour_disturbs(rig, snapshot):
    usage = rig["cpu"].between(snapshot(0, 10.0, 5.0, {1: 3.0}), snapshot(1, 11.2, 6.0, {1: 3.1, 2: 0.1}))
    assert usage.foreign_share == pytest.approx(0.2)
    assert usage.disturbed(0.05)


def test_busy_time_that_no_account_explains_is_foreign(rig, snapshot):
    usage = rig["cpu"].between(snapshot(0, 10.0, 5.0, {}), snapshot(1, 11.5, 5.5, {}))
    assert usage.foreign > 0.5
    assert usage.disturbed(0.05)


def test_time_that_the_kernel_spends_on_our_packets_is_ours(rig, snapshot):
    usage = rig["cpu"].between(snapshot(0, 10.0, 5.0, {}), snapshot(1, 11.5, 6.0, {}, own_kernel=0.5))
    assert usage.foreign == pytest.approx(0)


def test_stolen_time_disturbs(rig, snapshot):
    usage = rig["cpu"].between(snapshot(0, 10.0, 5.0, {}), snapshot(1, 10.0, 5.0, {}, steal=0.1))
    assert usage.disturbed(0.05)


def test_a_snapshot_of_this_machine_adds_up(rig):
    before = rig["cpu"].snapshot()
    after = rig["cpu"].snapshot()
    assert after.own >= before.own > 0
    assert after.busy >= before.busy > 0
    assert rig["cpu"].between(before, after).foreign >= 0


def test_a_row_uses_its_clean_samples(make_row):
    row = make_row((1.0, True), (100.0, False), (3.0, True))
    assert (row.state, row.values, row.median) == ("ok", [1.0, 3.0], 2.0)


def test_a_row_with_too_few_clean_samples_is_marked(make_row, rig):
    row = make_row((1.0, True), (100.0, False), (3.0, False))
    assert (row.state, row.median) == ("disturbed", 3.0)
    assert rig["report"].MARK in rig["report"].cell(row)


def test_a_row_without_samples_says_why(make_row, rig):
    row = make_row()
    assert (row.state, row.median, rig["report"].cell(row)) == ("failed", None, "failed")
    row.missing = True
    assert rig["report"].cell(row) == "missing"


@pytest.mark.parametrize(("unit", "times"), [("us", 2.0), ("op/s", 0.5), ("GB/s", 0.5)])
def test_better_is_less_for_a_latency_and_more_for_a_rate(make_row, rig, unit, times):
    row, other = make_row((10.0, True), unit=unit, wanted=1), make_row((20.0, True), unit=unit, wanted=1)
    assert rig["compare"].times_better(row, other) == times


def test_every_comparison_names_cases_that_exist(rig):
    cases = [*rig["ours"].cases("python3", Path("src")), *rig["peers"].cases("python3")]
    known = {(case.section, case.subject) for case in cases}
    named = {pair[:2] for pair in rig["compare"].PAIRS} | {pair[2:] for pair in rig["compare"].PAIRS}
    assert named <= known
    assert len({case.key for case in cases}) == len(cases)


def test_aims_without_figures_are_not_judged(rig):
    assert {aim.met for aim in rig["compare"].aims({})} == {None}


def test_reads_fi_pingpong(rig):
    output = (
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
        "8       200     =200     3.1k        0.03s      0.12      65.00       0.02\n"
    )
    assert rig["peers"].parse_fabric(output) == 65.0
    with pytest.raises(rig["model"].Failed, match="usec/xfer"):
        rig["peers"].parse_fabric("fi_getinfo: -61\n")


def test_a_program_that_fails_says_its_last_words(rig):
    with pytest.raises(rig["model"].Failed, match="the reason"):
        rig["processes"].run_worker([sys.executable, "-c", "import sys; sys.exit('the reason')"])
    with pytest.raises(rig["model"].Failed, match="no-such-program"):
        rig["processes"].run_worker(["no-such-program"])


def test_a_disturbed_sample_is_taken_again_and_a_missing_peer_is_asked_once(rig, monkeypatch):
    model, rounds = rig["model"], rig["rounds"]
    asked = []

    def missing(plan):
        asked.append(plan)
        raise model.Missing("no such peer")

    shares = iter([0.9, 0.0, 0.0])
    monkeypatch.setattr(rounds.cpu, "snapshot", lambda: None)
    monkeypatch.setattr(rounds.cpu, "between", lambda before, after: rig["cpu"].Usage(1.0, next(shares), 0.0))
    monkeypatch.setattr(rounds.cpu, "wait_for_calm", lambda limit, patience: 0.0)
    cases = [model.Case(model.TURNS, "a", "us", 8, lambda plan: 7.0), model.Case(model.TURNS, "b", "us", 8, missing)]
    found = rounds.run(cases, model.Plan(0.1, 2, 0.05, 10.0, (0, 0)), lambda line: None)
    assert [sample.clean for sample in found[0].samples] == [True, True]
    assert (found[1].state, found[1].note, len(asked)) == ("missing", "no such peer", 1)
