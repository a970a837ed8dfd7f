# SPDX-License-Identifier: MIT
"""The benchmark's own arithmetic: the gate on foreign CPU use, the choice of samples, ratios, reading and writing."""

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def rig():
    """The modules of ``bench/rig``, by name."""
    before = list(sys.path)
    sys.path[:0] = [str(BENCH), str(BENCH.parent)]
    try:
        names = (
            *("compare", "cpu", "debian", "model", "ours", "peers", "perftest"),
            *("processes", "profile", "report", "rounds", "ucx"),
        )
        yield {name: importlib.import_module(f"rig.{name}") for name in names}
    finally:
        sys.path[:] = before


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
    cases += [*rig["perftest"].cases("python3"), *rig["peers"].c_cases(), *rig["ucx"].cases()]
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


LATENCY_OF_PERFTEST = """\
 local address: LID 0000 QPN 0xaa0010 PSN 0xe88df4 RKey 0x0001aa VAddr 0x005556a38b5000
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
99% percentile[usec]   99.9% percentile[usec]
 8       1000          12.32          5816.90      21.79    \t       148.74      \t616.00 \t\t3929.74 \t\t5816.90
---------------------------------------------------------------------------------------
"""
STREAM_OF_PERFTEST = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      2000             324.88             318.30 \t\t   0.005093
---------------------------------------------------------------------------------------
"""
LATENCY_OF_UCX = """\
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                        5000     10.407    20.840    21.840      187.44     187.44       47985       47985
"""


def test_reads_the_latencies_of_perftest(rig):
    reading = rig["perftest"].parse_latency(LATENCY_OF_PERFTEST)
    assert (reading.value, reading.mean) == (21.79, 148.74)


def test_reads_the_streams_of_perftest(rig):
    parse = rig["perftest"].parse_stream
    assert parse(STREAM_OF_PERFTEST, "op/s") == pytest.approx(5093)
    # Its MB are MiB: this many bytes in so many messages.
    assert parse(STREAM_OF_PERFTEST, "GB/s") == pytest.approx(5093 * 65536 / 1e9, rel=1e-3)


@pytest.mark.parametrize("output", ["", "Couldn't connect\n", " #bytes #iterations t_min[usec]\n 8 1000\n"])
def test_says_that_perftest_has_no_figures(rig, output):
    with pytest.raises(rig["model"].Failed, match="perftest"):
        rig["perftest"].parse_latency(output)


def test_says_which_figure_of_perftest_is_missing(rig):
    with pytest.raises(rig["model"].Failed, match=r"t_typical\[usec\]"):
        rig["perftest"].parse_latency(STREAM_OF_PERFTEST)


def test_reads_ucx_perftest(rig):
    reading = rig["ucx"].parse_latency(LATENCY_OF_UCX)
    assert (reading.value, reading.mean) == (10.407, 21.84)
    assert rig["ucx"].parse_stream(LATENCY_OF_UCX, "op/s", 4096) == 47985
    assert rig["ucx"].parse_stream(LATENCY_OF_UCX, "GB/s", 4096) == pytest.approx(0.19655, rel=1e-4)
    with pytest.raises(rig["model"].Failed, match="ucx_perftest"):
        rig["ucx"].parse_latency("ucx_perftest.c:1 UCX ERROR connect() failed\n")


def test_sums_up_what_strace_has_written(rig):
    calls = rig["profile"].parse_strace(
        [
            "10029 process_vm_readv(10339, [...], 1, [...], 1, 0) = 32768 <0.001516>\n",
            "10029 process_vm_readv(10339, [...], 1, [...], 1, 0) = 16384 <0.000022>\n",
            "10029 recvmmsg(3, 0x55e64d883040, 8, MSG_DONTWAIT, NULL) = -1 EAGAIN (Resource unavailable) <0.000014>\n",
            "10029 recvmmsg(3, [{msg_hdr={...}, msg_len=60}, {msg_hdr={...}, msg_len=40}], 8, 0) = 2 <0.000010>\n",
            "10029 rt_sigtimedwait([HUP INT], NULL, NULL, 8 <unfinished ...>\n",
            "10030 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 5, 0) = 0x7f1200000000 <0.000012>\n",
            "10030 <... rt_sigtimedwait resumed>) = ? <0.500000>\n",
            "10030 +++ exited with 0 +++\n",
        ]
    )
    found = {name: (call.count, call.errors, call.bytes, round(call.seconds, 6)) for name, call in calls.items()}
    assert found == {
        "process_vm_readv": (2, 0, 49152, 0.001538),
        "recvmmsg": (2, 1, 100, 0.000024),
        "mmap": (1, 0, 0, 0.000012),
        "rt_sigtimedwait": (1, 0, 0, 0.5),
    }


def test_reads_the_report_of_perf(rig):
    found = rig["profile"].parse_perf(
        [
            "# Overhead  Shared Object         Symbol                         \n",
            "     2.80%  [kernel.kallsyms]     [k] do_sched_yield              -      -\n",
            "    19.40%  libpython3.11.so.1.0  [.] _PyEval_EvalFrameDefault    -      -\n",
        ]
    )
    assert found == [
        (19.4, "libpython3.11.so.1.0", "_PyEval_EvalFrameDefault"),
        (2.8, "kernel", "do_sched_yield"),
    ]


def test_the_breakdown_is_for_one_operation(rig):
    profile = rig["profile"]
    watched = profile.Watched(100, 0.01, {"device": profile.Account(0.001, 0.002, 0.003, 50, 10)})
    watched.turns = {"turns": 400, "working": 100, "naps": 3}
    text = "\n".join(profile._accounts(watched))
    assert "| device | 10 | 20 | 30 | 0.5 / 0.1 |" in text
    assert "4 turns an operation, 25% of them with work, and 3 sleeps" in text
    calls = {"process_vm_readv": profile.Call(200, 100, 6400, 0.5), "poll": profile.Call(50, 0, 0, 9.0)}
    text = "\n".join(profile._calls(watched, calls))
    assert "| process_vm_readv | 2 | 100 | 64 | 100% |" in text
    assert "; 4 turns an operation)" in text
    assert "| poll | 0.5 | 0 |  | asleep |" in text


def test_means_are_compared_where_a_program_knows_no_median(rig):
    model = rig["model"]

    def row(value, mean, by_mean=False):
        case = model.Case(model.C_SEND, "somebody", model.LATENCY, 8, lambda plan: 0.0, by_mean)
        return model.Row(case, [model.Sample(value, 0.0, 0.0, True, mean)])

    ours, ucx, fabric = row(10.0, 40.0), row(20.0, 30.0), row(60.0, None, by_mean=True)
    assert rig["compare"].times_better(ours, ucx) == 2.0
    assert rig["compare"].times_better(ours, fabric) == 1.5
    assert fabric.mean == 60.0


def test_a_sample_has_the_median_and_the_mean_of_its_program(rig):
    model = rig["model"]
    case = model.Case(model.C_SEND, "somebody", model.LATENCY, 8, lambda plan: model.Reading(2.0, 3.0))
    sample = rig["rounds"].measure(case, model.Plan(0.1, 1, 0.05, 0.0, (0, 0)))
    assert (sample.value, sample.mean) == (2.0, 3.0)


def test_no_round_is_begun_that_has_no_time(rig, monkeypatch):
    model, rounds = rig["model"], rig["rounds"]
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(rounds.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(
        rounds, "take_sample", lambda row, plan, patience: row.samples.append(model.Sample(1, 0, 0, True))
    )
    monkeypatch.setattr(rounds.cpu, "wait_for_calm", lambda limit, patience: 0.0)
    case = model.Case(model.TURNS, "a", "us", 8, lambda plan: 7.0)
    (row,) = rounds.run([case], model.Plan(0.1, 100, 0.05, 10.0, (0, 0), budget=25.0), lambda line: None)
    assert (len(row.samples), row.wanted, row.state) == (2, 2, "ok")


def test_a_program_of_debian_that_cannot_be_had_is_missing_and_asked_for_once(rig, monkeypatch):
    debian, asked = rig["debian"], []

    def unavailable(program, *sets):
        asked.append(program)
        raise debian.programs.Unavailable("no network")

    monkeypatch.setattr(debian.programs, "find", unavailable)
    for _ in range(2):
        with pytest.raises(rig["model"].Missing, match="no test-program here: no network"):
            debian.find("test-program", debian.UCX)
    assert asked == ["test-program"]


def test_the_report_says_what_the_figures_of_the_c_face_are(rig):
    model, report = rig["model"], rig["report"]
    case = model.Case(model.C_SEND, "somebody", model.LATENCY, 8, lambda plan: 0.0)
    plan = model.Plan(0.1, 1, 0.05, 0.0, (0, 1), whole=False)
    text = report.markdown([model.Row(case, [model.Sample(2.0, 0.0, 0.0, True, 3.0)])], plan, {}, [])
    assert "| somebody | 3 µs |" in text
    assert "t_typical" in text
    assert "## Aims" not in text
    assert "t_typical" not in report.markdown([], plan, {}, [])


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
