"""The figures and samples of a run, for the page: out of its folder, or out of memory."""

from verl_core.control.run.files import RunFiles
from verl_core.control.run.query import SampleQuery
from verl_core.control.run.recorder import Recorder
from verl_core.control.run.source import NoRun, RunSource, SamplePage

__all__ = ["NoRun", "Recorder", "RunFiles", "RunSource", "SamplePage", "SampleQuery"]
