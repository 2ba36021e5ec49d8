"""`genesis view`: what a script made Genesis do, as one page or as text.

`script_run.py` runs the script and writes down what was seen, as numbers and texts; `graphs.py`
writes down graphs and what rules did to them, `tensorboard.py` reads curves of other runs.
`page.html` shows all of it, `text.py` in a terminal.
"""

from genesis.view.script_run import ScriptRun, record

__all__ = ["ScriptRun", "record"]
