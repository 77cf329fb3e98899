"""Runs the tasks of this folder by a model of lm-eval."""

import os
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TASKS = ["choice", "continuation", "text"]
# Most tokens that are scored at once, so that some texts need several windows.
WINDOW = 64
# Removed when this program ends.
CACHE = tempfile.TemporaryDirectory()
# All files are here: nothing is looked up elsewhere.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}
# Read when lm-eval is imported.
os.environ["HF_HOME"] = CACHE.name


def log_likelihoods(model, /, **arguments):
    """For each task the log likelihood of each request, whether the continuation is greedy, and the metrics.

    `model` is a model of lm-eval or its name, and `arguments` are those of the name. Whole texts have no continuation.
    """
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    before = os.getcwd()
    # The tasks name their items by path.
    os.chdir(FOLDER)
    tasks = TaskManager(include_path=str(FOLDER), include_defaults=False)
    results = simple_evaluate(model, arguments, tasks=TASKS, task_manager=tasks, bootstrap_iters=0)
    os.chdir(before)
    return {task: of_task(task, results) for task in TASKS}


def of_task(task, results):
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    answers = [answer for sample in samples for (answer,) in sample["resps"]]
    whole = task == "text"
    return {
        "log_likelihoods": [answer if whole else answer[0] for answer in answers],
        "greedy": [] if whole else [bool(answer[1]) for answer in answers],
        "metrics": {
            name.removesuffix(",none"): value
            for name, value in results["results"][task].items()
            if name.endswith(",none") and "stderr" not in name
        },
    }
