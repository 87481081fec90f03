"""The jobs of a whole run: which, after which, and of how many tasks."""

import stat
import subprocess

import pytest
from handmade import dense, in_rounds, planned, ticket
from helpers import imp_here, refused, settings

from lottery.executors import slurm
from lottery.executors.slurm import JOBS, Job
from lottery.rundir.names import MaskFiles
from lottery.rundir.run import Run
from lottery.stages import chain

SLOTS = 4


@pytest.fixture
def listed(here):
    """A function that lists the jobs of a recipe in a new run: the tasks of each by its name, and what it begins after."""

    def listed(recipe, slots=SLOTS, run=None):
        jobs = chain.jobs(run or Run(here / "run", recipe), slots)
        return {job.name: job.array for job in jobs}, {job.name: dict(job.after) for job in jobs}

    return listed


def test_one_shot_is_an_array_of_its_networks_so_many_at_a_time_between_masks_and_report(listed):
    tasks, after = listed(planned(quantiles="60..64", rewind="0,1ep", replicates=2))

    assert tasks == {"prepare": None, "train": "1-2", "thresholds": None, "retrain": "1-20%4", "report": None}
    assert after == {
        "prepare": {},
        "train": {"prepare": "afterok"},
        "thresholds": {"train": "afterok"},
        "retrain": {"thresholds": "afterok"},
        "report": {"thresholds": "afterok", "retrain": "afterany"},
    }


def test_rounds_are_an_array_each_whose_tasks_wait_for_their_own_chain_and_all_wait_for_one_shot(listed):
    tasks, after = listed(planned(replicates=3, rounds={"rounds": 2, "rewind": "0,1ep"}))

    assert {name: tasks[name] for name in tasks if name.startswith("round")} == {"round-01": "1-4", "round-02": "1-4"}
    assert after["round-01"] == {"train": "afterok", "retrain": "afterany"}
    assert after["round-02"] == {"round-01": "aftercorr"}
    assert after["report"] == {"thresholds": "afterok", "round-02": "afterany"}


def test_families_of_other_lengths_have_arrays_of_their_own_and_gradual_ones_no_masks(listed):
    short, gmp = {"rounds": 1, "rewind": "1ep"}, {"quantiles": "80", "updates": "gmp", "rewind": "0"}
    tasks, after = listed(planned("", replicates=1, rounds={"rounds": 2}, short=short, gmp=gmp))

    assert list(tasks) == ["prepare", "train", "retrain", "short-round-01", "weights-round-01", "weights-round-02", "report"]
    assert after["retrain"] == {"train": "afterok"}
    assert after["weights-round-01"] == {"train": "afterok", "short-round-01": "afterany"}


def test_controls_of_headlines_and_stability_come_last(listed):
    recipe = planned(
        "60,70", controls=["reinit", "shuffle"], controls_at="", again={"quantiles": "60", "copies": 2, "controls": []}
    )
    tasks, after = listed(recipe)

    assert (tasks["retrain"], tasks["retrain-controls"]) == ("1-9%4", "1-6%4")
    assert after["retrain-controls"] == {"thresholds": "afterok", "retrain": "afterany"}
    assert after["stability"] == {"thresholds": "afterok", "retrain-controls": "afterany"}
    assert after["report"] == {"thresholds": "afterok", "retrain-controls": "afterany", "stability": "afterany"}


def test_an_array_has_no_more_tasks_than_slurm_takes(listed):
    assert listed(planned("60..99", rewind="0,1ep,2ep", replicates=10))[0]["retrain"] == "1-1000%4"


@pytest.fixture
def whole(monkeypatch):
    """Dense networks whose results are made by hand count as whole, without snapshots."""
    monkeypatch.setattr(chain, "is_complete", lambda replicate, steps: replicate.dense.is_finished)


def test_only_what_is_missing_is_a_job(here, listed, whole):
    run = Run(here / "run", planned("", rounds={"rounds": 3}))
    dense(run, 0.9, 0.9)
    assert listed(None, run=run)[0]["train"] == "3"

    dense(run, 0.9, 0.9, 0.9)
    for number in (1, 2):
        in_rounds(run, "weights", number, 0.01)
    assert listed(None, run=run) == (
        {"prepare": None, "round-03": "1-3", "report": None},
        {"prepare": {}, "round-03": {"prepare": "afterok"}, "report": {"prepare": "afterok", "round-03": "afterany"}},
    )


def test_of_one_shot_only_parts_with_a_network_that_is_missing_are_tasks(here, listed, whole, monkeypatch):
    run = Run(here / "run", planned("60,70,80", replicates=1))
    dense(run, 0.9)
    ticket(run, 1, "70", 0.9)
    assert listed(None, run=run)[0]["retrain"] == "1-3"  # of masks that are to be cut, it is not known which are new

    monkeypatch.setattr(MaskFiles, "is_cut", True)
    assert listed(None, run=run)[0]["retrain"] == "1,3"


def test_controls_with_the_mask_of_another_replicate_wait_for_all_of_the_round_before(listed):
    rounds = {"rounds": 2, "rewind": "0", "controls": ["borrowed"], "controls_at": "2"}

    assert listed(planned("", replicates=3, rounds=rounds))[1]["round-02"] == {"round-01": "afterany"}


def test_networks_without_masks_of_one_shot_do_not_wait_for_them(listed):
    after = listed(planned("60", replicates=1, rounds={"rounds": 1}))[1]

    assert after["round-01"] == {"train": "afterok", "retrain": "afterany"}


def test_a_task_alone_leaves_controls_of_headlines_to_their_own_job(here):
    recipe = planned("", replicates=3, rounds={"rounds": 2, "controls": ["reinit"], "controls_at": ""})
    jobs = {job.name: job.arguments for job in chain.jobs(Run(here / "run", recipe), 1)}

    assert jobs["round-01"][-6:] == ("--headlines", "leave", "--bundle", "1", "--part", f"{slurm.TASK}/1")
    assert "only" in jobs["round-controls"]


def test_the_script_submits_all_or_nothing_and_keeps_the_numbers(here):
    """With an sbatch that is played: it refuses the script `bad.sh`."""
    programs = {
        "sbatch": 'case "$*" in *bad.sh) echo no >&2; exit 1;; esac; echo "$*" >> asked; wc -l < asked',
        "scancel": 'echo "cancel $*" >> asked',
        "squeue": 'case "$*" in "-h -j 1"*) cat queue;; *) exit 1;; esac',
    }
    for name, body in programs.items():
        (here / name).write_text(f"#!/bin/sh\n{body}\n")
        (here / name).chmod(0o755)
    folder = here / "my jobs"
    folder.mkdir()
    asked, queue = folder / "asked", folder / "queue"
    queue.touch()

    def submit(*names):
        jobs = [Job(name, (name,), dict.fromkeys(names[: names.index(name)], "afterok")) for name in names]
        (here / "run.sh").write_text(slurm.chain(jobs, folder))
        environment = {"PATH": f"{here}:/usr/bin:/bin"}
        return subprocess.run(["bash", "run.sh"], cwd=here, env=environment, capture_output=True, text=True)

    assert submit("a", "b-2").returncode == 0
    assert asked.read_text() == "--parsable a.sh\n--parsable --dependency=afterok:1 b-2.sh\n"
    assert (folder / JOBS).read_text() == "a 1\nb-2 2\n"

    asked.unlink()
    assert submit("a", "bad").returncode == 1
    assert asked.read_text().splitlines()[1:] == ["cancel 1"]

    queue.write_text("1\n")
    asked.unlink()
    assert submit("a").returncode == 2
    assert not asked.exists()


@pytest.mark.parametrize(
    ("jobs", "shown"), [("", None), ("x\n", None), ("a 1 2\nb 2\n", {"b (job 2)": {"pending (Dependency)": 1}})]
)
def test_of_a_damaged_list_of_jobs_what_can_be_read_is_asked_for(tmp_path, monkeypatch, jobs, shown):
    (tmp_path / JOBS).write_text(jobs)
    (tmp_path / "squeue").write_text("#!/bin/sh\n[ $6 = 2 ] && echo '2 PENDING Dependency'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert slurm.queued(tmp_path) == shown


def test_scripts_of_a_run_that_has_not_begun_are_written_by_one_line(here):
    told = imp_here(
        *("slurm", "run", "digits", "--set", "replicates=3", "--nodes", "2", "--gpus-per-ticket", "2", "--gpus-per-node", "4"),
        *("--time", "4:00:00"),
        cwd=here,
    ).stdout

    folder = here / "runs/digits/slurm/run"
    assert "submit all with `bash runs/digits/slurm/run/run.sh`" in told
    train, report = (folder / "train.sh").read_text(), (folder / "report.sh").read_text()
    assert "#SBATCH --array=1-3\n" in train
    assert "#SBATCH --gpus-per-node=2\n" in train
    assert "imp train --run runs/digits --replicate $SLURM_ARRAY_TASK_ID\n" in train
    assert "--gpus-per-node" not in report
    assert "#SBATCH --kill-on-invalid-dep=yes\n" in report
    assert "bash" in (folder / "run.sh").read_text().splitlines()[0]
    assert not (folder / "run.sh").stat().st_mode & stat.S_IXOTH


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus-per-node", "4"], "--gpus-per-ticket"),
        (["--gpus-per-ticket", "8", "--gpus-per-node", "4"], "1 to 4"),
        (["--gpus-per-ticket", "1", *settings("train.devices=2")], "train.devices is 2"),
        (["--nodes", "0"], "--nodes"),
        (settings("train.snapshots=99ep"), "past the end"),
        (["--time", "1:00\n2"], "cannot be a line"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(here, arguments, words):
    refused(imp_here("slurm", "run", "digits", *arguments, cwd=here, check=False), words)
    assert not list(here.glob("runs/*"))


def test_tickets_are_to_train_on_as_many_devices_as_their_dense_network(work):
    done = imp_here("slurm", "run", "--gpus-per-ticket", "4", cwd=work, check=False)
    refused(done, "replicate-1/train was trained on 1 CPU, its tickets would be on 4 GPUs")
    done = imp_here("slurm", "retrain", "--gpus-per-node", "4", "--tasks-per-node", "2", cwd=work, check=False)
    refused(done, "on 2 GPUs: give them the same")
    assert not list(work.glob("runs/digits/slurm"))
