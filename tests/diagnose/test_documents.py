"""Failures that guides and field notes name get their cause and their fix."""

from __future__ import annotations

import pytest

from tests.diagnose.documents import NAMED
from tests.diagnose.logs import WATCHDOG, diagnosed, ids, primary


@pytest.mark.parametrize(
    ("text", "signature", "words"),
    [pytest.param(*document[1:], id=document[0]) for document in NAMED],
)
def test_documented_failure_gets_its_fix(text: str, signature: str, words: tuple[str, ...]) -> None:
    """The signature is the only cause, and the next step agrees with the document."""
    findings = diagnosed(f"start\n{text}\n")
    assert primary(findings) == [signature]
    assert [word for word in words if word not in findings[0].fix] == []


PATH = "/workspace/models/GLM-4.5-Air"
HUB = f"""\
Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/huggingface_hub/utils/_validators.py", line 133, in v
    raise HFValidationError(
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or \
'namespace/repo_name': '{PATH}'. Use `repo_type` argument if needed.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/work/train.py", line 2, in <module>
    AutoConfig.from_pretrained(path)
OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{PATH}'. Use \
`repo_type` argument if needed.
"""


def test_missing_model_directory_is_named() -> None:
    """transformers treats a path that does not exist as a name on the Hub."""
    findings = diagnosed(HUB)
    assert ids(findings) == ["file_missing"] and f"file {PATH}" in findings[0].cause


def test_unread_parameter_count_is_not_a_model_mismatch() -> None:
    """The collective that reads them timed out, which is the cause; other counts are a mismatch."""
    unread = "[rank1]: RuntimeError: DDP expects same model across all ranks, but Rank {} has 20 "
    unread += "params, while rank 1 has inconsistent {} params.\n"
    timed_out = WATCHDOG.format(1, "10") + unread.format(0, 0)
    assert primary(diagnosed(timed_out)) == ["torch_watchdog_timeout"]
    assert primary(diagnosed(WATCHDOG.format(1, "10") + unread.format(0, 18))) == [
        "ddp_model_mismatch"
    ]


STREAM = """\
Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/serialization.py", line 967, in save
    _save(
RuntimeError: basic_ios::clear: iostream error

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/work/train.py", line 40, in <module>
    torch.save(state, path)
RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 640 vs 598
"""


def test_truncated_checkpoint_is_a_full_disk_only_if_a_line_says_so() -> None:
    """torch.save does not pass on the kernel's error; another line of the job may."""
    assert primary(diagnosed(STREAM)) == ["checkpoint_write_failed"]
    full = "OSError: [Errno 28] No space left on device: '/scratch/metrics.json'\n"
    for logs in ((STREAM, full), (full, STREAM)):
        findings = diagnosed(*logs)
        assert primary(findings) == ["disk_full"]
        assert "checkpoint_write_failed" in ids(findings)


def test_shared_memory_of_torch_is_not_a_disk() -> None:
    """Its files are in /dev/shm, although torch names them without it."""
    text = "RuntimeError: unable to write to file </torch_8289_60_0>: No space left on device (28)"
    assert ids(diagnosed(text)) == ["shm_no_space"]


@pytest.mark.parametrize("name", ["google.protobuf", "ruamel.yaml", "mylib.models"])
def test_submodule_may_be_missing_by_itself(name: str) -> None:
    """Only for the known libraries a missing submodule means a different version."""
    assert ids(diagnosed(f"ModuleNotFoundError: No module named '{name}'")) == ["module_missing"]
